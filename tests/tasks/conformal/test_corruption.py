from __future__ import annotations

import numpy as np
import pytest

from tasks.conformal.corruption import corrupt, corruption_probabilities


@pytest.mark.parametrize("draw", ["standard_normal", "random", "standard_exponential"])
def test_top_quarter_is_corrupted_and_nothing_else(draw):
    z = getattr(np.random.default_rng(0), draw)(20_000)
    p = corruption_probabilities(z)
    low = z < np.quantile(z, 0.75)
    assert p[low].max() == 0.0
    assert p.mean() == pytest.approx(0.2, abs=0.002)
    assert p[~low].mean() == pytest.approx(0.8, abs=0.01)
    assert p.max() <= 0.99


@pytest.mark.parametrize(
    "z",
    [
        np.random.default_rng(1).standard_normal(2000) * 3 - 1,
        np.random.default_rng(1).standard_t(1.5, 3000),
        np.append(np.random.default_rng(1).random(199), 100.0),  # a row far out counts in the mean with the value that is replaced later
        np.random.default_rng(1).poisson(3, 2000).astype(float),  # ties at every quantile
        -np.random.default_rng(1).random(2000) - 5,
    ],
    ids=["normal", "heavy tails", "one far out", "counts", "negative"],
)
def test_probabilities_by_a_plain_loop(z):
    shifted = z - min(np.quantile(z, 0.05), 0)
    threshold, cap, unit, far = (np.quantile(shifted, q) for q in (0.75, 0.85, 0.9, 0.999))
    v = [min(s, cap) / unit if s >= threshold and s > 0 else 0.0 for s in shifted]
    powers = [k / 100 for k in range(1, 1000)]
    power = min(powers, key=lambda k: abs(np.mean([x**k if x > 0 else 0.0 for x in v]) - 0.2))
    expected = [x**power if x > 0 else 0.0 for x in v]
    expected = [0.95 + 0.05 * (1 - 1.2 * far / s) if s > 1.2 * far else e for s, e in zip(shifted, expected, strict=True)]
    np.testing.assert_allclose(corruption_probabilities(z), np.minimum(expected, 0.99), atol=1e-12)


def test_rows_far_out_are_nearly_always_corrupted():
    z = np.append(np.random.default_rng(2).random(5000), 100.0)
    p = corruption_probabilities(z)
    assert 0.95 < p[-1] <= 0.99


def test_several_columns_count_by_their_mean():
    z = np.random.default_rng(3).random((500, 3))
    np.testing.assert_array_equal(corruption_probabilities(z), corruption_probabilities(z.mean(axis=1)))


def test_mechanisms_touch_corrupted_labels_alone():
    y, masked = np.random.default_rng(4).standard_normal(5000), np.random.default_rng(5).random(5000) < 0.3
    for mechanism in ("missing", "noisy", "dispersive"):
        observed = corrupt(y, masked, mechanism, np.random.default_rng(6))
        np.testing.assert_array_equal(observed[~masked], y[~masked])
    assert np.isnan(corrupt(y, masked, "missing", np.random.default_rng(6))[masked]).all()
    np.testing.assert_allclose(corrupt(y, masked, "noisy", np.random.default_rng(6))[masked], (y[masked] + y.mean()) / 2)
    noise = (corrupt(y, masked, "dispersive", np.random.default_rng(6)) - y)[masked]
    assert noise.std() == pytest.approx(5 * y.std(), rel=0.05)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"rate must lie in \(0, 1\), got 1.0"):
        corruption_probabilities([1.0, 2.0], rate=1.0)
    with pytest.raises(ValueError, match="1 of 2 values are not finite"):
        corruption_probabilities([1.0, np.nan])
    with pytest.raises(ValueError, match="z is empty"):
        corruption_probabilities([])
    for flat in (np.full(100, 3.0), np.append(np.zeros(95), np.ones(5))):
        with pytest.raises(ValueError, match="no top part stands out"):
            corruption_probabilities(flat)
    with pytest.raises(ValueError, match="y 2, masked 1"):
        corrupt([1.0, 2.0], np.array([True]), "missing", np.random.default_rng(0))
    with pytest.raises(ValueError, match="missing, noisy or dispersive, got 'lost'"):
        corrupt([1.0], np.array([True]), "lost", np.random.default_rng(0))  # type: ignore[arg-type]
