from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tasks.conformal.mlp import MlpParams, _Batch, _pinball, fit_mlp_quantiles

QUICK = MlpParams(hidden=(16, 16), dropout=0.0, learning_rate=0.01, epochs=40, patience=20)


def sample(seed: int, n: int = 600):
    rng = np.random.default_rng(seed)
    x = rng.random((n, 2)) * [1.0, 100.0]
    return x, 3 * x[:, 0] + rng.standard_normal(n) * 0.5


def test_quantiles_are_learned():
    x, y = sample(0)
    (train, test) = sample(1), sample(2)
    [(lower, upper)] = fit_mlp_quantiles([(x, y)], [test[0]], 0.2, QUICK, seeds=[0])
    assert ((lower <= test[1]) & (test[1] <= upper)).mean() == pytest.approx(0.8, abs=0.08)
    assert np.corrcoef((lower + upper) / 2, 3 * test[0][:, 0])[0, 1] > 0.9
    assert train[0].shape == test[0].shape


def test_a_batch_of_networks_is_each_alone():
    sets = [sample(3), sample(4)]
    together = fit_mlp_quantiles(sets, [s[0][:9] for s in sets], 0.1, QUICK.model_copy(update={"dropout": 0.1, "epochs": 3}), seeds=[5, 6])
    for seed, one, (lower, upper) in zip((5, 6), sets, together, strict=True):
        [(a, b)] = fit_mlp_quantiles([one], [one[0][:9]], 0.1, QUICK.model_copy(update={"dropout": 0.1, "epochs": 3}), seeds=[seed])
        np.testing.assert_allclose(a, lower, atol=1e-4)
        np.testing.assert_allclose(b, upper, atol=1e-4)


def test_sets_of_different_sizes_and_repeatability():
    sets = [sample(3, 200), sample(4, 330)]
    runs = [
        fit_mlp_quantiles(sets, [sets[0][0][:3], sets[1][0][:5]], 0.1, QUICK.model_copy(update={"epochs": 2}), seeds=[0, 1]) for _ in "ab"
    ]
    assert [len(lower) for lower, _ in runs[0]] == [3, 5]
    for (a, b), (c, d) in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, c)
        np.testing.assert_array_equal(b, d)


def test_batched_forward_is_a_plain_network_per_seed():
    net = _Batch(4, MlpParams(hidden=(8, 5)), [torch.Generator().manual_seed(s) for s in (1, 2)], "cpu")
    x = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(0))
    out = net.forward(x)
    for s in range(2):
        h = x[s]
        for i in range(3):
            h = h @ net.parameters[2 * i][s] + net.parameters[2 * i + 1][s]
            h = torch.relu(h) if i < 2 else h
        torch.testing.assert_close(out[s], h)


def test_pinball_loss_is_least_at_the_quantile():
    y = torch.arange(1.0, 102.0)[None]
    levels = torch.tensor([0.1, 0.9])
    losses = {q: float(_pinball(torch.tensor([[[float(q), 91.0]]]).expand(1, 101, 2), y, torch.ones_like(y), levels)) for q in range(1, 60)}
    assert min(losses, key=losses.get) == 11


def test_patience_ends_training_and_keeps_the_best():
    # A learning rate that ruins the network: without keeping the best epoch, predictions would be far off.
    x, y = sample(7)
    wild = MlpParams(hidden=(8,), learning_rate=5.0, epochs=200, patience=2, dropout=0.0)
    [(lower, upper)] = fit_mlp_quantiles([(x, y)], [x], 0.2, wild, seeds=[0])
    assert np.isfinite(lower).all()
    assert np.abs(upper).max() < 1000


def test_bad_input_is_refused():
    x, y = sample(0, 50)
    with pytest.raises(ValueError, match="got 1, 2 and 1"):
        fit_mlp_quantiles([(x, y)], [x, x], 0.1, QUICK, seeds=[0])
    with pytest.raises(ValueError, match="alpha must lie in"):
        fit_mlp_quantiles([(x, y)], [x], 1.0, QUICK, seeds=[0])
    with pytest.raises(ValueError, match="got 0, 0 and 0"):
        fit_mlp_quantiles([], [], 0.1, QUICK, seeds=[])
    for few in ((x[:1], y[:1]), (x, np.full(50, np.nan))):
        with pytest.raises(ValueError, match="network 0 needs at least 2 rows of finite numbers"):
            fit_mlp_quantiles([few], [x], 0.1, QUICK, seeds=[0])
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        MlpParams(hidden=(0,))
    with pytest.raises(ValidationError, match="less than 1"):
        MlpParams(dropout=1.0)
