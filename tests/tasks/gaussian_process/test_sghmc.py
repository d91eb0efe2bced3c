from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tasks.gaussian_process.deep_gp import build_layers
from tasks.gaussian_process.problem import Problem
from tasks.gaussian_process.sghmc import ChainPosterior, SghmcParams, build_sampled
from tasks.gaussian_process.streams import SeedStreams
from tasks.gaussian_process.training import FitParams, train


def data(replicas: int = 1, rows: int = 12) -> Problem:
    x = torch.stack([torch.randn(rows, 2, generator=torch.Generator().manual_seed(r)) for r in range(replicas)])
    y = torch.sin(2 * x[..., 0])
    return Problem(x, y, x, y, torch.ones(replicas).numpy(), 0)


def model(problem: Problem, params: SghmcParams, depth: int = 2):
    return build_sampled(build_layers(problem.x[:, :5], problem.x, depth, outputs=1), "gaussian", params)


def conjugate(deep, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """The density that a one-layer model's chains sample: precision I + A A^T / noise, A = L^-1 k(Z, x), prior N(0, I)."""
    layer = deep.layers[0]
    with torch.no_grad():
        a = torch.linalg.solve_triangular(layer.factor(), layer.kernel(layer.z, problem.x), upper=False)[0].double().numpy()
        noise = deep.likelihood.noise().item()
    covariance = np.linalg.inv(np.eye(5) + a @ a.T / noise)
    return covariance @ a @ problem.y[0].double().numpy() / noise, covariance


def test_mean_and_covariance_of_a_conjugate_gaussian_target_are_recovered():
    problem = data()
    deep = model(problem, SghmcParams(rate=0.15, friction=0.1, chains=64, burn_in=300, window=400), depth=1)
    streams = SeedStreams([0])
    for _ in range(900):
        deep.move(problem.x, problem.y, problem.rows, streams)
    mean, covariance = conjugate(deep, problem)
    states = deep.draw(64 * 400, streams)[0].values[0, :, :, 0].double().numpy()
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(states.mean(0) / sd, mean / sd, atol=0.15)
    np.testing.assert_allclose(states.std(0), sd, rtol=0.12)
    correlation = covariance / np.outer(sd, sd)
    np.testing.assert_allclose(np.corrcoef(states.T), correlation, atol=0.15)
    assert np.abs(correlation - np.eye(5)).max() > 0.3  # the target is no product of independent parts


def test_one_move_by_hand():
    # After burn-in the preconditioner stays: square 4 gives m = 1/2, so rate^2 m = 0.25 * 0.5 = 0.125,
    # momentum = 0.8 * 1 - 0.125 * 2 + sqrt(2 * 0.2 * 0.125) * 3.
    chain = ChainPosterior(1, 1, 1, SghmcParams(rate=0.5, friction=0.2, chains=1, burn_in=1, window=2))
    chain.moved = 1
    chain.square.fill_(4.0)
    chain.momentum.fill_(1.0)
    chain.values.fill_(10.0)
    chain.move(torch.full((1, 1, 1, 1), 2.0), torch.full((1, 1, 1, 1), 3.0))
    momentum = 0.8 - 0.25 + 0.05**0.5 * 3
    assert chain.momentum.item() == pytest.approx(momentum)
    assert chain.values.item() == pytest.approx(10 + momentum)
    assert chain.square.item() == 4.0


def test_the_preconditioner_learns_the_gradients_scale_during_burn_in_only():
    chain = ChainPosterior(1, 4, 1, SghmcParams(burn_in=500))
    generator = torch.Generator().manual_seed(0)
    scales = torch.tensor([0.1, 1.0, 10.0, 100.0])[:, None]
    for _ in range(500):
        chain.move(scales * torch.randn(1, 2, 4, 1, generator=generator), torch.zeros(1, 2, 4, 1))
    np.testing.assert_allclose((chain.square.sqrt() / scales).numpy(), 1.0, rtol=0.3)
    before = chain.square.clone()
    chain.move(torch.full((1, 2, 4, 1), 1e3), torch.zeros(1, 2, 4, 1))
    assert torch.equal(chain.square, before)


def test_states_are_drawn_jointly_over_layers_evenly_over_chains_and_time():
    problem = data()
    deep = model(problem, SghmcParams(chains=2, window=3, burn_in=1))
    for number, chain in enumerate(deep.chains):
        for move in range(4):  # the first of four states has left the window of three
            chain.values.copy_(torch.tensor([move, 10.0 + move])[None, :, None, None].expand_as(chain.values) + 100 * number)
            chain.momentum.zero_()
            chain.move(torch.zeros_like(chain.values), torch.zeros_like(chain.values))
    first, second = deep.draw(6, SeedStreams([0]))
    assert sorted(first.values[0, :, 0, 0].tolist()) == [1, 2, 3, 11, 12, 13]
    assert torch.equal(second.values[..., 0, 0] - 100, first.values[..., 0, 0])
    assert {v // 10 for v in deep.draw(2, SeedStreams([0]))[0].values[0, :, 0, 0].tolist()} == {0.0, 1.0}
    assert deep.draw(9, SeedStreams([0]))[0].values.shape[1] == 9


def test_the_energy_is_the_loop_over_rows_and_states():
    problem = data(rows=6)
    deep = model(problem, SghmcParams(chains=3), depth=1)
    streams = SeedStreams([0])
    v = streams.normal(3, 5, 1)
    found = deep.log_likelihood([v], problem.x, problem.y, rows=12, streams=streams)  # a batch of 6 stands for 12 rows
    noise = deep.likelihood.noise().item()
    layer = deep.layers[0]
    for c in range(3):
        total = 0.0
        for i in range(6):
            a = torch.linalg.solve_triangular(layer.factor(), layer.kernel(layer.z, problem.x[:, i : i + 1]), upper=False)[0, :, 0]
            mean, variance = (a @ v[0, c, :, 0]).item(), 1.0 - a.square().sum().item()
            error = problem.y[0, i].item() - mean
            total += -0.5 * np.log(2 * np.pi * noise) - (error**2 + variance) / (2 * noise)
        assert found[0, c].item() == pytest.approx(2 * total, rel=1e-4)


def test_hyperparameters_learn_and_runs_are_the_same_again_and_the_same_for_a_seed_alone():
    problem, params = data(2), FitParams(batch=12, curve=0, draws=8)

    def fitted(problem: Problem, seeds: tuple[int, ...]):
        deep = model(problem, SghmcParams(rate=0.1, burn_in=30))
        start = {name: p.detach().clone() for name, p in deep.named_parameters()}
        fit = train(deep, problem, params, 60, seeds)
        moved = [name for name, p in deep.named_parameters() if not torch.equal(p, start[name])]
        return fit, deep, moved

    (first, deep, moved), (again, other, _) = fitted(problem, (0, 1)), fitted(problem, (0, 1))
    assert (first.elbo == again.elbo).all()
    assert torch.equal(deep.chains[0].kept, other.chains[0].kept)
    assert any("log_lengthscale" in name for name in moved)
    assert any(name == "likelihood.log_variance" for name in moved)
    assert (first.elbo[-10:].mean(0) > first.elbo[:10].mean(0)).all()
    assert [c.moved for c in deep.chains] == [60, 60]
    second = Problem(problem.x[1:], problem.y[1:], problem.x_test[1:], problem.y_test[1:], problem.y_sd[1:], 0)
    alone, _, _ = fitted(second, (1,))
    assert alone.elbo[:20, 0] == pytest.approx(first.elbo[:20, 1], abs=1e-3)


def test_chains_start_where_they_are_told():
    problem = data()
    deep = model(problem, SghmcParams(chains=2))
    start = [torch.full((1, 1, 5, layer.outputs), 0.5 + n) for n, layer in enumerate(deep.layers)]
    deep.start_at(start)
    assert deep.draw(2, SeedStreams([0]))[1].values.unique().tolist() == [1.5]
    deep.move(problem.x, problem.y, problem.rows, SeedStreams([0]))
    with pytest.raises(ValueError, match="start_at needs one tensor for each of 2 layers, before any move; got 2"):
        deep.start_at(start)


def test_impossible_settings_and_gradients_are_refused():
    for change in ({"rate": 0.0}, {"friction": 1.0}, {"chains": 0}, {"window": 0}):
        with pytest.raises(ValidationError, match=r"greater than|less than"):
            SghmcParams(**change)
    with pytest.raises(ValueError, match="replicas, inducing and outputs must be at least 1, got 1, 0 and 1"):
        ChainPosterior(1, 0, 1, SghmcParams())
    problem = data()
    deep = model(problem, SghmcParams(chains=1))
    with pytest.raises(ValueError, match=r"y must have shape \(1, 12\), got \(1, 11\)"):
        deep.bound(problem.x, problem.y[:, 1:], 12, 1, SeedStreams([0]))
    deep.chains[1].values.fill_(float("inf"))
    with pytest.raises(FloatingPointError, match=r"gradient in layer \d is not finite at move 0; lower the rate"):
        deep.move(problem.x, problem.y, problem.rows, SeedStreams([0]))
