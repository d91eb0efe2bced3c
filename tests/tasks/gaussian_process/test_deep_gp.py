from __future__ import annotations

import numpy as np
import pytest
import torch
from test_layers import by_hand

from tasks.gaussian_process.deep_gp import DeepGP, build_deep_gp, build_layers
from tasks.gaussian_process.diffusion_bridge import BridgeParams, BridgePosterior
from tasks.gaussian_process.gaussian import GaussianPosterior
from tasks.gaussian_process.layers import Inducing
from tasks.gaussian_process.likelihoods import Gaussian
from tasks.gaussian_process.streams import SeedStreams

SMALL = BridgeParams(steps=3, hidden=8, amortiser=8)


def rows(replicas: int = 2, n: int = 7, features: int = 2):
    return torch.randn(replicas, n, features, generator=torch.Generator().manual_seed(0)).double()


def bridged(x, depth: int = 2, params: BridgeParams = SMALL, likelihood: str = "gaussian", outputs: int = 1):
    layers = build_layers(x[:, :4], x, depth, outputs)
    streams = SeedStreams(range(x.shape[0]), 7)
    posteriors = [BridgePosterior(4, layer.z.shape[-1], layer.outputs, params, streams, layer.factor) for layer in layers]
    return build_deep_gp(layers, posteriors, likelihood).double()


def test_forward_pass_is_that_of_a_loop_over_replicas_and_samples():
    x = rows()
    model = bridged(x, depth=2)
    g = torch.Generator().manual_seed(1)
    v = [torch.randn(2, 3, 4, layer.outputs, generator=g).double() for layer in model.layers]
    mean, variance = model.propagate(x, [Inducing(values) for values in v], 3, SeedStreams([5, 6], dtype=torch.float64))
    noise = SeedStreams([5, 6], dtype=torch.float64).normal(3, 7, 2).numpy()
    for r in range(2):
        for s in range(3):
            hidden, covariance = by_hand(model.layers[0], x[r].numpy(), v[0][r, s].numpy(), r)
            h = hidden + np.sqrt(np.maximum(np.diag(covariance), 1e-6))[:, None] * noise[r, s]
            expected, last = by_hand(model.layers[1], h, v[1][r, s].numpy(), r)
            np.testing.assert_allclose(mean[r, s].detach().numpy(), expected, atol=1e-9)
            np.testing.assert_allclose(variance[r, s, :, 0].detach().numpy(), np.maximum(np.diag(last), 1e-6), atol=1e-9)


def test_bound_is_data_minus_divergence():
    x, y = rows(), rows()[..., 0]
    model = bridged(x)
    bound = model.bound(x, y, 70, 3, SeedStreams([0, 1], dtype=torch.float64))
    streams = SeedStreams([0, 1], dtype=torch.float64)
    drawn = model.draw(3, streams)
    mean, variance = model.propagate(x, drawn, 3, streams)
    data = 10 * model.likelihood.expected(mean, variance, y, mean).mean(1).sum(1)  # 70 rows, 7 of them in the batch
    torch.testing.assert_close(bound.data, data)
    torch.testing.assert_close(bound.kl, sum(layer.kl for layer in drawn))
    torch.testing.assert_close(bound.per_datum, (data - bound.kl) / 70)


def test_replicas_do_not_touch_each_other():
    x = rows()
    other = x.clone()
    other[1] += 1.0
    first, second = (bridged(data).bound(x, x[..., 0], 7, 2, SeedStreams([0, 1], dtype=torch.float64)).per_datum for data in (x, other))
    assert first[0].item() == pytest.approx(second[0].item(), abs=1e-12)
    assert abs(first[1].item() - second[1].item()) > 1e-6


def test_layers_start_as_described():
    x = rows(features=3)
    layers = build_layers(x[:, :4], x, depth=3, outputs=2, hidden=2)
    assert [(layer.z.shape[-1], layer.outputs) for layer in layers] == [(3, 2), (2, 2), (2, 2)]
    torch.testing.assert_close(layers[1].z.data, layers[0].z.data @ layers[0].mean)
    assert layers[-1].mean is None
    assert [round(layer.kernel.diagonal()[0].item(), 4) for layer in layers] == [0.01, 0.01, 1.0]
    assert layers[0].kernel.lengthscale()[0, 0].item() == pytest.approx(3**0.5)


@pytest.mark.parametrize("likelihood", ["softmax", "bernoulli"])
def test_bound_of_classes_is_finite(likelihood):
    x = rows()
    outputs = 3 if likelihood == "softmax" else 1
    model = bridged(x, likelihood=likelihood, outputs=outputs)
    labels = (x[..., 0] > 0).long()
    bound = model.bound(x, labels, 7, 2, SeedStreams([0, 1], dtype=torch.float64))
    assert bool(torch.isfinite(bound.per_datum).all())
    assert bool((bound.data < 0).all())


@pytest.mark.parametrize("center", ["amortised", "zero", "vector"])
def test_every_parameter_gets_a_gradient_from_the_bound(center):
    x = rows()
    model = bridged(x, params=SMALL.model_copy(update={"center": center, "learn_sigma": True}))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator).double()
    (-model.bound(x, x[..., 0], 7, 2, SeedStreams([0, 1], dtype=torch.float64)).per_datum.sum()).backward()
    context = {"from_context"} if center == "zero" else set()  # nothing flows in from mu = 0
    for name, parameter in model.named_parameters():
        moved = parameter.grad.reshape(2, -1).abs().max(1).values
        assert bool((moved > 0).all()) != (name.split(".")[-1] in context), name


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: build_layers(x[:, :4], x, 0, 1), "depth must be at least 1, got 0"),
        (lambda x: build_layers(torch.cat([x, x], 1), x, 1, 1), "must not outnumber the 7 training rows, got 14"),
        (lambda x: DeepGP(build_layers(x[:, :4], x, 2, 1), [GaussianPosterior(2, 4, 2)], Gaussian(2)), "2 layers and 1 posteriors"),
        (lambda x: DeepGP([], [], Gaussian(2)), "0 layers"),
        (lambda x: bridged(x).bound(x, x[:, :3, 0], 7, 1, SeedStreams([0, 1])), "y must have shape"),
        (lambda x: bridged(x).bound(x[..., :1], x[..., 0], 7, 1, SeedStreams([0, 1], dtype=torch.float64)), "x must have shape"),
    ],
)
def test_impossible_models_and_rows_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(rows())
