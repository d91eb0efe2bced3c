from __future__ import annotations

import numpy as np
import pytest
import torch
from test_problem import split

from tasks.gaussian_process.diffusion_bridge import BridgeParams
from tasks.gaussian_process.experiment import Architecture
from tasks.gaussian_process.problem import stack_splits
from tasks.gaussian_process.streams import SeedStreams
from tasks.gaussian_process.train_bridge import bridge_model
from tasks.gaussian_process.training import LAST_STEPS, FitParams, _script_loss, clipped, train
from tasks.gaussian_process.warmstart import gaussian_model

FAST = FitParams(batch=16, curve=2, curve_draws=4, draws=4)


def run(seeds, kind: str = "dbvi", steps: int = 6, fit: FitParams = FAST):
    problem = stack_splits([split(seed) for seed in seeds])
    architecture = Architecture(inducing=6)
    if kind == "dsvi":
        model = gaussian_model(problem, architecture, list(seeds))
    else:
        model = bridge_model(problem, architecture, list(seeds), BridgeParams(steps=3, hidden=8, amortiser=8))
    return train(model, problem, fit, steps, list(seeds)), model


def test_clipping_is_that_of_each_replica_alone():
    g = torch.Generator().manual_seed(0)
    scales = torch.tensor([100.0, 0.01, 1.0])
    start = [torch.randn(3, 2, 4, generator=g), torch.randn(3, generator=g)]

    def losses(a, b):
        return scales * (a.square().sum((1, 2)) + b**2)

    together = [torch.nn.Parameter(p.clone()) for p in start]
    value = clipped(losses(*together), together, 1.0)
    assert value.item() == pytest.approx(losses(*start).sum().item())
    value.backward()
    for r in range(3):
        alone = [torch.nn.Parameter(p.clone()) for p in start]
        losses(*alone)[r].backward()
        torch.nn.utils.clip_grad_norm_(alone, 1.0)
        for mine, theirs in zip(together, alone, strict=True):
            torch.testing.assert_close(mine.grad[r], theirs.grad[r], rtol=1e-4, atol=1e-6)


def test_parameters_without_influence_get_zero():
    a, b = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    clipped(a**2, [a, b], 1.0).backward()
    assert b.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["dsvi", "dbvi"])
def test_a_seed_runs_as_it_does_alone(kind):
    both, _ = run([0, 3], kind)
    alone, _ = run([3], kind)
    np.testing.assert_allclose(both.elbo[:, 1], alone.elbo[:, 0], rtol=2e-3)
    np.testing.assert_allclose(both.scores["rmse"][1], alone.scores["rmse"][0], rtol=5e-3)


def test_same_seeds_give_the_same_run():
    first, _ = run([0, 1])
    second, _ = run([0, 1])
    assert np.array_equal(first.elbo, second.elbo)
    assert all(np.array_equal(first.scores[name], second.scores[name]) for name in first.scores)


def test_training_raises_the_bound():
    fit, _ = run([0, 1], steps=60)
    assert (fit.elbo[-10:].mean(0) > fit.elbo[:10].mean(0) + 0.1).all()


def test_final_numbers_are_means_over_the_last_steps():
    fit, _ = run([0, 1], steps=LAST_STEPS + 5)
    final = fit.final()
    np.testing.assert_allclose(final["elbo"], fit.elbo[5:].mean(0))
    terms = sum(final[f"{name}_{layer}"] for name in ("start", "path", "end") for layer in (1, 2))
    np.testing.assert_allclose(final["kl"], terms, rtol=1e-4)
    assert {"route_1", "center_norm_2", "rmse", "nll", "coverage"} <= set(final)


def test_curve_has_its_marks_and_no_curve_none():
    fit, _ = run([0], steps=6)
    assert sorted({step for step, _, _ in fit.curve}) == [3, 6]
    without, _ = run([0], steps=6, fit=FAST.model_copy(update={"curve": 0, "draws": 0}))
    assert (without.curve, without.scores) == ([], {})
    np.testing.assert_allclose(without.elbo, fit.elbo)  # looking does not disturb


def test_scripts_loss_is_the_data_term_alone_while_corrections_are_zero():
    fit, _ = run([0], steps=1, fit=FAST.model_copy(update={"objective": "dsm"}))
    bound, _ = run([0], steps=1)
    np.testing.assert_allclose(fit.elbo, bound.elbo)  # what is reported is the bound, whatever is minimised
    problem = stack_splits([split(0)])
    model = bridge_model(problem, Architecture(inducing=6), [0], BridgeParams(steps=3, hidden=8, amortiser=8))
    one = model.bound(problem.x, problem.y, 30, 2, SeedStreams([0]))
    torch.testing.assert_close(_script_loss(one), -one.data / 30)
    with pytest.raises(ValueError, match="objective 'dsm' needs posteriors"):
        run([0], "dsvi", fit=FAST.model_copy(update={"objective": "dsm"}))


def test_bound_that_is_not_finite_names_step_seed_and_layer():
    problem = stack_splits([split(0), split(4)])
    model = gaussian_model(problem, Architecture(inducing=6), [0, 4])
    model.posteriors[1].mean.data[1] = float("inf")
    with pytest.raises(FloatingPointError, match="step 0, seed 4: divergence of layer 2"):
        train(model, problem, FAST, 3, [0, 4])


def test_other_seeds_than_replicas_are_refused():
    problem = stack_splits([split(0)])
    with pytest.raises(ValueError, match="one per replica, got 2 for 1"):
        train(gaussian_model(problem, Architecture(inducing=6), [0]), problem, FAST, 3, [0, 1])
