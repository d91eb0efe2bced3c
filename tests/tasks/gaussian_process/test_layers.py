from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.gaussian_process.layers import SMALLEST_VARIANCE, Inducing, SparseLayer, linear_mean


def made(replicas: int = 2, inducing: int = 3, features: int = 2, outputs: int = 2, mean: bool = True):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(replicas, 6, features, generator=g).double()
    layer = SparseLayer(x[:, :inducing], outputs, linear_mean(x, outputs) if mean else None, variance=0.7, name="layer 1").double()
    return layer, x, g


def by_hand(layer, h, v, r):
    """Mean and covariance of f at rows h (B, D) given whitened values v (M, d), by matrices of replica r."""
    scale, variance = layer.kernel.lengthscale()[r].detach().numpy(), layer.kernel.diagonal()[r].item()
    z = layer.z[r].detach().numpy()

    def k(a, b):
        return variance * np.exp(-0.5 * (((a[:, None] - b[None]) / scale) ** 2).sum(-1))

    lower = np.linalg.cholesky(k(z, z) + layer.jitter * variance * np.eye(len(z)))
    gram, cross = lower @ lower.T, k(h, z)
    mean = cross @ np.linalg.solve(gram, lower @ v)
    if layer.mean is not None:
        mean = mean + h @ layer.mean[r].numpy()
    return mean, k(h, h) - cross @ np.linalg.solve(gram, cross.T)


def test_moments_are_those_of_a_loop_over_replicas_and_samples():
    layer, _, g = made()
    v, h = torch.randn(2, 4, 3, 2, generator=g).double(), torch.randn(2, 4, 5, 2, generator=g).double()
    mean, variance = layer.moments(h, Inducing(v))
    for r in range(2):
        for s in range(4):
            expected, covariance = by_hand(layer, h[r, s].numpy(), v[r, s].numpy(), r)
            np.testing.assert_allclose(mean[r, s].detach().numpy(), expected, atol=1e-10)
            np.testing.assert_allclose(variance[r, s, :, 0].detach().numpy(), np.diag(covariance), atol=1e-10)


def test_common_inputs_are_computed_once_with_the_same_result():
    layer, x, g = made()
    v = torch.randn(2, 4, 3, 2, generator=g).double()
    once, spread = layer.moments(x[:, None], Inducing(v))
    many, wide = layer.moments(x[:, None].expand(-1, 4, -1, -1), Inducing(v))
    assert spread.shape == (2, 1, 6, 1)
    torch.testing.assert_close(once, many)
    torch.testing.assert_close(spread.expand_as(wide), wide)


def test_gaussian_values_are_integrated_out():
    layer, x, g = made(mean=False)
    factor = torch.randn(2, 2, 3, 3, generator=g).double().tril()
    centre = torch.randn(2, 1, 3, 2, generator=g).double()
    mean, variance = layer.moments(x[:, None], Inducing(centre, factor))
    for column in range(2):
        draws = centre[..., column] + (factor[:, column] @ torch.randn(2, 3, 40_000, generator=g).double()).mT
        sampled, own = layer.moments(x[:, None], Inducing(draws[..., None].expand(-1, -1, -1, 2)))
        torch.testing.assert_close(variance[:, 0, :, column], own[:, 0, :, 0] + sampled[..., 0].var(1), rtol=0.03, atol=0.01)
        torch.testing.assert_close(mean[:, 0, :, column], sampled[..., 0].mean(1), atol=0.03, rtol=0)


def test_at_inducing_inputs_f_is_u():
    layer, _, g = made(mean=False)
    layer.jitter = 0.0
    v = torch.randn(2, 1, 3, 2, generator=g).double()
    mean, variance = layer.moments(layer.z[:, None], Inducing(v))
    torch.testing.assert_close(mean[:, 0], layer.factor() @ v[:, 0])
    assert variance.max().item() == SMALLEST_VARIANCE


def test_mean_functions():
    x = torch.randn(2, 50, 3, generator=torch.Generator().manual_seed(0)).double() * torch.tensor([1.0, 5.0, 0.1]).double()
    assert torch.equal(linear_mean(x, 3)[1], torch.eye(3).double())
    assert torch.equal(linear_mean(x, 5)[0], torch.eye(3, 5).double())
    axis = linear_mean(x, 1)[0, :, 0]
    assert axis.argmax().item() == 1
    assert axis.norm().item() == pytest.approx(1.0)
    torch.testing.assert_close(linear_mean(-x, 2), linear_mean(x, 2))


def test_divergence_sums_the_terms():
    values = torch.zeros(2, 1, 3, 1)
    assert Inducing(values).kl.tolist() == [0.0, 0.0]
    assert Inducing(values, None, {"a": torch.ones(2), "b": torch.tensor([1.0, 2.0])}).kl.tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SparseLayer(torch.zeros(3, 2), 1), "z must have shape"),
        (lambda: SparseLayer(torch.zeros(1, 3, 2), 0), "outputs must be at least 1"),
        (lambda: SparseLayer(torch.zeros(1, 3, 2), 1, torch.zeros(1, 2, 2)), "mean must have shape"),
    ],
)
def test_impossible_layers_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_coinciding_inducing_inputs_without_jitter_name_the_layer():
    layer = SparseLayer(torch.full((1, 3, 2), float("nan")), 1, name="layer 2")
    with pytest.raises(RuntimeError, match="layer 2"):
        layer.factor()
