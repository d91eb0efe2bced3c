from __future__ import annotations

import copy

import pytest
import torch
from pydantic import ValidationError

from tasks.gaussian_process.deep_gp import build_layers
from tasks.gaussian_process.ipvi import DensityRatio, ImplicitParams, ImplicitPosterior, build_implicit
from tasks.gaussian_process.problem import Problem
from tasks.gaussian_process.streams import SeedStreams
from tasks.gaussian_process.training import FitParams, train

SMALL = ImplicitParams(hidden=16, draws=32)


def data(replicas: int = 2, rows: int = 12) -> Problem:
    """The same problem for every replica count: replica r has seed r."""
    parts = [torch.randn(rows, 2, generator=torch.Generator().manual_seed(r)) for r in range(replicas)]
    x = torch.stack(parts)
    y = torch.sin(2 * x[..., 0])
    return Problem(x, y, x, y, torch.ones(replicas).numpy(), 0)


def model(problem: Problem, params: ImplicitParams = SMALL, seeds: tuple[int, ...] = (0, 1)):
    layers = build_layers(problem.x[:, :5], problem.x, depth=2, outputs=1)
    return build_implicit(layers, "gaussian", params, seeds)


def test_the_log_ratio_of_two_known_gaussians_is_learned():
    # q = N(m, s^2 I) with m = (0.8, -0.5), s = 0.6, p = N(0, I): log q - log p = |v|^2 / 2 - |v - m|^2 / (2 s^2) - 2 log s, whose
    # mean under q is KL = (|m|^2 + 2 s^2 - 2) / 2 - 2 log s = 0.827.
    streams, m, s = SeedStreams([0]), torch.tensor([0.8, -0.5]), 0.6
    ratio = DensityRatio(2, 32, 5e-3, streams)
    for _ in range(600):
        loss = ratio.improve(m + s * streams.normal(256, 2), streams.normal(256, 2))
    v = m + s * streams.normal(2000, 2)
    exact = v.square().sum(-1) / 2 - (v - m).square().sum(-1) / (2 * s**2) - 2 * torch.log(torch.tensor(s))
    assert exact.mean().item() == pytest.approx(0.827, abs=0.06)
    assert (ratio(v) - exact).abs().mean().item() < 0.15
    assert ratio(v).mean().item() == pytest.approx(exact.mean().item(), abs=0.1)
    assert loss.item() < 1.3


def test_equal_distributions_have_no_log_ratio():
    streams = SeedStreams([3])
    ratio = DensityRatio(2, 16, 1e-3, streams)
    for _ in range(200):
        ratio.improve(streams.normal(256, 2), streams.normal(256, 2))
    assert ratio(streams.normal(500, 2)).abs().mean().item() < 0.1


def test_improving_the_discriminator_lowers_its_loss_and_moves_nothing_else():
    posterior = ImplicitPosterior(3, 1, SMALL, SeedStreams([0]))
    with torch.no_grad():
        posterior.generator.biases[-1] += 2.0
    before = copy.deepcopy(dict(posterior.named_parameters()))
    losses = [posterior.improve(SeedStreams([1])).item() for _ in range(30)]
    assert losses[-1] < losses[0] - 0.1
    for name, parameter in posterior.named_parameters():
        assert torch.equal(parameter, before[name]) == (not name.startswith("ratio")), name
        assert parameter.grad is None


def test_the_generator_gets_its_gradient_through_the_samples_and_the_discriminator_none():
    problem = data()
    deep = model(problem)
    for _ in range(3):  # output layers start at zero: their first step makes the gradients behind them non-zero
        deep.zero_grad()
        bound = deep.bound(problem.x, problem.y, problem.rows, 4, SeedStreams([0, 1], 5))
        (-bound.per_datum.sum()).backward()
        with torch.no_grad():
            for parameter in deep.parameters():
                if parameter.requires_grad:
                    parameter -= 0.05 * parameter.grad
    for name, parameter in deep.named_parameters():
        if ".ratio." in name:
            assert parameter.grad is None
            assert not parameter.requires_grad
        else:
            assert parameter.grad.reshape(2, -1).abs().amax(1).min() > 0, name


def test_the_divergences_gradient_pulls_the_generator_back_to_the_prior():
    # With the discriminator of a shifted generator learned, descending E_q T alone must undo the shift.
    posterior = ImplicitPosterior(2, 1, ImplicitParams(hidden=32, draws=256, updates=3, rate=5e-3), SeedStreams([0]))
    with torch.no_grad():
        posterior.generator.biases[-1] += 1.5
    streams = SeedStreams([1])
    optimiser = torch.optim.Adam([*posterior.generator.parameters(), posterior.log_scale], lr=0.005)
    for _ in range(500):
        posterior.improve(streams)
        optimiser.zero_grad()
        posterior.draw(torch.zeros(1, 2, 1), 64, streams).kl.sum().backward()
        optimiser.step()
    v = posterior.sample(4000, streams).detach()
    assert v.mean(1).abs().max().item() < 0.4
    assert v.std(1).sub(1).abs().max().item() < 0.35


def test_training_fits_and_is_the_same_again_and_the_same_for_a_seed_alone():
    problem, params = data(), FitParams(batch=12, curve=0, draws=16)

    def fitted(seeds: tuple[int, ...], problem: Problem):
        deep = model(problem, seeds=seeds)
        return train(deep, problem, params, 60, seeds), deep.draw(3, SeedStreams(seeds, 9))

    (first, drawn), (again, drawn_again) = fitted((0, 1), problem), fitted((0, 1), problem)
    assert (first.elbo == again.elbo).all()
    assert all(torch.equal(a.values, b.values) for a, b in zip(drawn, drawn_again, strict=True))
    assert (first.elbo[-10:].mean(0) > first.elbo[:10].mean(0) + 0.1).all()
    second = Problem(problem.x[1:], problem.y[1:], problem.x_test[1:], problem.y_test[1:], problem.y_sd[1:], 0)
    alone, _ = fitted((1,), second)
    assert alone.elbo[:20, 0] == pytest.approx(first.elbo[:20, 1], abs=1e-3)


def test_impossible_settings_are_refused():
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        ImplicitParams(updates=0)
    with pytest.raises(ValueError, match="inducing and outputs must be at least 1, got 0 and 1"):
        ImplicitPosterior(0, 1, SMALL, SeedStreams([0]))
    with pytest.raises(ValueError, match="seeds must be one per replica, got 1 for 2"):
        model(data(), seeds=(0,))
