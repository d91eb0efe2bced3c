"""Our doubly stochastic variational inference against GPyTorch's, number by number, for copied parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.gaussian_process.deep_gp import build_deep_gp, build_layers
from tasks.gaussian_process.gaussian import GaussianPosterior
from tasks.gaussian_process.gpytorch_reference import ReferenceDeepGP, predict
from tasks.gaussian_process.streams import SeedStreams

ROWS, BATCH, SAMPLES, INDUCING = 40, 15, 6, 7


class Recorded(SeedStreams):
    """Hands out streams' normal numbers and keeps them, so that both implementations can use the same."""

    def normal(self, *shape: int) -> torch.Tensor:
        drawn = super().normal(*shape)
        self.__dict__.setdefault("drawn", []).append(drawn)
        return drawn


@pytest.fixture(autouse=True)
def _double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def problem(depth: int, hidden: int | None = None):
    """Two replicas of a model whose every parameter was moved away from where it starts."""
    generator = torch.Generator().manual_seed(depth)
    x = torch.randn(2, ROWS, 3, generator=generator)
    y = torch.sin(x[..., 0]) + 0.1 * torch.randn(2, ROWS, generator=generator)
    layers = build_layers(x[:, :INDUCING], x, depth, outputs=1, hidden=hidden, jitter=1e-6)
    model = build_deep_gp(layers, [GaussianPosterior(2, INDUCING, layer.outputs) for layer in layers]).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        for posterior in model.posteriors:
            posterior.mean += 0.5 * torch.randn(posterior.mean.shape, generator=generator)
    return model, x[:, :BATCH], y[:, :BATCH]


def streams() -> Recorded:
    return Recorded([0, 1], dtype=torch.float64)


@pytest.mark.parametrize(("depth", "hidden"), [(1, None), (2, None), (2, 2), (3, None)])
def test_bounds_agree_for_copied_parameters(depth, hidden):
    model, x, y = problem(depth, hidden)
    recorded = streams()
    ours = model.bound(x, y, ROWS, SAMPLES, recorded).per_datum
    for replica in range(2):
        noise = [n[replica] for n in getattr(recorded, "drawn", [])]
        assert len(noise) == depth - 1
        theirs = ReferenceDeepGP(model, replica).bound(x[replica], y[replica], ROWS, noise)
        assert theirs.item() == pytest.approx(ours[replica].item(), abs=1e-3)


def test_divergences_agree():
    model, x, y = problem(2)
    ours = model.bound(x, y, ROWS, 1, streams()).kl
    for replica in range(2):
        assert ReferenceDeepGP(model, replica).divergence() == pytest.approx(ours[replica].item(), rel=1e-6)


def test_gradients_of_posteriors_and_inducing_inputs_agree():
    model, x, y = problem(2)
    recorded = streams()
    model.bound(x, y, ROWS, SAMPLES, recorded).per_datum.sum().backward()
    reference = ReferenceDeepGP(model, 1)
    reference.bound(x[1], y[1], ROWS, [n[1] for n in recorded.drawn]).backward()
    for layer, posterior, theirs in zip(model.layers, model.posteriors, reference.stack, strict=True):
        strategy = theirs.variational_strategy
        distribution = strategy._variational_distribution
        mean = distribution.variational_mean.grad.reshape(layer.outputs, INDUCING).T
        np.testing.assert_allclose(posterior.mean.grad[1], mean, atol=1e-5)
        root = distribution.chol_variational_covar.grad.reshape(layer.outputs, INDUCING, INDUCING)
        np.testing.assert_allclose(posterior.root.grad[1].tril(), root.tril(), atol=1e-4)
        np.testing.assert_allclose(layer.z.grad[1], strategy.inducing_points.grad, atol=1e-4)


def test_predictions_agree():
    model, x, _ = problem(2)
    recorded = streams()
    with torch.no_grad():
        mean, variance = model.propagate(x, model.draw(SAMPLES, recorded), SAMPLES, recorded)
    variance = variance + model.likelihood.noise()[:, None, None, None]
    theirs = predict(ReferenceDeepGP(model, 0), x[0], [recorded.drawn[0][0]])
    np.testing.assert_allclose(theirs[0], mean[0, ..., 0], atol=1e-4)
    np.testing.assert_allclose(theirs[1], variance[0, ..., 0].expand(SAMPLES, -1).detach(), atol=1e-4)


def test_the_copy_does_not_forget_its_posterior_at_the_first_call():
    model, x, y = problem(1)
    reference = ReferenceDeepGP(model, 0)
    before = reference.stack[0].variational_strategy._variational_distribution.variational_mean.detach().clone()
    first = reference.bound(x[0], y[0], ROWS, []).item()
    np.testing.assert_array_equal(reference.stack[0].variational_strategy._variational_distribution.variational_mean.detach(), before)
    assert reference.bound(x[0], y[0], ROWS, []).item() == pytest.approx(first, abs=1e-12)


def test_the_comparison_can_fail():
    model, x, y = problem(1)
    reference = ReferenceDeepGP(model, 0)
    with torch.no_grad():
        model.posteriors[0].mean += 0.1
    ours = model.bound(x, y, ROWS, 1, streams()).per_datum[0]
    assert abs(reference.bound(x[0], y[0], ROWS, []).item() - ours.item()) > 1e-2


def test_what_it_cannot_copy_is_refused():
    from tasks.gaussian_process.ipvi import ImplicitParams, build_implicit

    model, x, _ = problem(1)
    with pytest.raises(ValueError, match=r"replica must lie in 0..1, got 2"):
        ReferenceDeepGP(model, 2)
    layers = build_layers(x[:, :4], x, depth=1, outputs=1)
    with pytest.raises(ValueError, match=r"posteriors must be Gaussian, got \['ImplicitPosterior'\]"):
        ReferenceDeepGP(build_implicit(layers, "gaussian", ImplicitParams(hidden=4), [0, 1]), 0)
    layers = build_layers(x[:, :4], x, depth=1, outputs=3)
    with pytest.raises(ValueError, match="it needs a Gaussian likelihood and one output"):
        ReferenceDeepGP(build_deep_gp(layers, [GaussianPosterior(2, 4, 3)], "softmax"), 0)
