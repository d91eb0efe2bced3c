"""Bellman losses and their matching, beside slow twins and against the supervised case."""

import doctest

import numpy as np
import pytest
import torch

from tasks.distillation import additive, bellman, predictors
from tasks.distillation.additive import additive_regressors, td_rows
from tasks.distillation.bellman import MatchingConfig, bellman_losses, distil_transitions, relative_loss_error
from tasks.distillation.descent import descend_gauss_newton, jacobian, mismatch
from tasks.distillation.predictors import BankConfig, RffBank, bank_from, bank_tensors, draw_bank, to
from tasks.distillation.quadratic import losses
from tasks.offline_rl.transitions import TdBatch


def transitions(n=200, d=2, n_actions=3, seed=0, terminal=0.1):
    rng = np.random.default_rng(seed)
    s = rng.standard_normal((n, d))
    action = np.concatenate([np.arange(n_actions), rng.integers(n_actions, size=n - n_actions)])
    return TdBatch(s, action, rng.standard_normal(n), s + 0.2 * rng.standard_normal((n, d)), (rng.random(n) > terminal) * 1.0)


def bank(family="rff", k=6, d=2, n_actions=3, seed=1, **law):
    made = draw_bank(BankConfig(family=family, features=8, **law), k, d, n_actions, 1.0, np.random.default_rng(seed))
    return to(made, torch.float64)


def slow_value(made, state, action, j):
    """f_j(s, a) from the formulas of the two families."""
    t = {name: value.numpy() for name, value in bank_tensors(made).items()}
    if isinstance(made, RffBank):
        phi = np.append(np.sqrt(2 / 8) * np.cos(state @ t["frequency"] + t["phase"]), 1.0)
        return phi @ t["coefficients"][action, :, j]
    hidden = np.maximum(state @ t["hidden"][:, j] + t["hidden_bias"][j], 0)
    return hidden @ t["coefficients"][action, j] + t["bias"][action, j]


@pytest.mark.parametrize("module", [additive, bellman, predictors])
def test_examples_in_the_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("family", ["rff", "mlp"])
def test_losses_equal_their_definition_one_by_one(family):
    batch, made = transitions(20), bank(family)
    lam = made.reward_scale.numpy()
    for j in range(6):
        total = 0.0
        for s, a, r, s2, c in zip(*batch, strict=True):
            ahead = max(slow_value(made, s2, b, j) for b in range(3))
            total += (slow_value(made, s, a, j) - lam[j] * r - 0.9 * c * ahead) ** 2 / 20
        assert bellman_losses(batch, made, 0.9, chunk=7)[j] == pytest.approx(total, rel=1e-9)


def test_supervised_regression_is_the_case_without_discount_and_choice():
    """gamma = 0, one action, lambda = 1 and the reward as label: the loss is that of the regressor (v, -1) on rows (phi(s), r)."""
    made = bank(k=5, n_actions=1, reward_scale="one")
    batch = transitions(n_actions=1)
    rows = np.hstack([made.embed(torch.as_tensor(batch.obs)).numpy(), batch.reward[:, None]])
    regressors = np.hstack([made.coefficients[0].numpy().T, -np.ones((5, 1))])
    np.testing.assert_allclose(bellman_losses(batch, made, 0.0), losses(rows, regressors), rtol=1e-10)


def test_additive_losses_are_those_of_additive_functions():
    batch, rng = transitions(30), np.random.default_rng(0)
    r = additive_regressors(4, 2, 3, 0.9, 2.0, rng)
    v1, v2, lam = r[:, :2], r[:, 2:5], -r[:, 5]
    slow = []
    for j in range(4):
        error = [
            v1[j] @ s + v2[j, a] - lam[j] * rew - 0.9 * c * max(v1[j] @ s2 + v2[j, b] for b in range(3))
            for s, a, rew, s2, c in zip(*batch, strict=True)
        ]
        slow.append(np.mean(np.square(error)))
    np.testing.assert_allclose(losses(td_rows(batch, 3), r), slow, rtol=1e-10)
    with pytest.raises(ValueError, match=r"gamma = 1\.0"):
        additive_regressors(4, 2, 3, 1.0, 1.0, rng)


def test_next_states_of_terminal_rows_do_not_matter():
    batch, made = transitions(terminal=0.5), bank()
    moved = batch.next_obs + 100.0 * (1 - batch.continuation)[:, None]
    other = TdBatch(batch.obs, batch.action, batch.reward, moved, batch.continuation)
    np.testing.assert_array_equal(bellman_losses(batch, made, 0.9), bellman_losses(other, made, 0.9))
    blind = BankConfig(terminals=False)
    assert not np.allclose(bellman_losses(batch, made, 0.9, blind), bellman_losses(other, made, 0.9, blind))


def test_values_only_ignores_rewards_and_next_states():
    law = BankConfig(reward_scale="zero", bootstrap=False)
    batch, made = transitions(), bank(reward_scale="zero", bootstrap=False)
    other = TdBatch(batch.obs, batch.action, batch.reward + 3, batch.next_obs - 2, 0 * batch.continuation)
    np.testing.assert_array_equal(bellman_losses(batch, made, 0.9, law), bellman_losses(other, made, 0.9, law))


def test_order_of_rows_does_not_matter():
    batch, made = transitions(), bank("mlp")
    shuffled = batch.take(np.random.default_rng(0).permutation(200))
    np.testing.assert_allclose(bellman_losses(batch, made, 0.9), bellman_losses(shuffled, made, 0.9), rtol=1e-12)


@pytest.mark.parametrize("family", ["rff", "mlp"])
@pytest.mark.parametrize("optimiser", ["gauss_newton", "lbfgs", "adam"])
def test_matching_reaches_the_training_losses(family, optimiser):
    batch, made = transitions(), bank(family, k=10)
    targets = bellman_losses(batch, made, 0.9)
    config = MatchingConfig(optimiser=optimiser, steps=300 if optimiser == "adam" else 60)
    found = distil_transitions(batch.take(np.arange(12)), targets, made, 0.9, config)
    assert found.end < 1e-2 * found.start
    again = relative_loss_error(bellman_losses(found.batch, made, 0.9), targets)
    assert again == pytest.approx(np.sqrt(found.end), rel=1e-3, abs=1e-7)


def test_starting_from_the_training_set_there_is_nothing_to_do():
    batch, made = transitions(terminal=-1.0), bank()
    config = MatchingConfig(clip=1e-9)
    found = distil_transitions(batch, bellman_losses(batch, made, 0.9), made, 0.9, config)
    assert found.start < 1e-12
    np.testing.assert_allclose(np.sort(found.batch.obs, 0), np.sort(batch.obs, 0), atol=1e-5)


@pytest.mark.parametrize("move", ["all", "tied", "signal"])
def test_what_may_move_moves_and_the_rest_stays(move):
    batch, made = transitions(), bank(k=10)
    first = batch.take(np.arange(12))
    config = MatchingConfig(move=move, optimiser="adam", steps=20)
    found = distil_transitions(first, bellman_losses(batch, made, 0.9), made, 0.9, config).batch
    order = np.argsort(first.action, kind="stable")
    np.testing.assert_array_equal(found.action, first.action[order])
    assert not np.allclose(found.reward, first.reward[order])
    assert ((found.continuation > 0) & (found.continuation < 1)).all()
    assert np.allclose(found.obs, first.obs[order]) == (move == "signal")
    step = (found.next_obs - found.obs) - (first.next_obs - first.obs)[order]
    assert np.abs(step).max() < {"all": np.inf, "tied": 0.06, "signal": 1e-6}[move]


def test_implied_rewards_mix_the_two_levels():
    batch, made = transitions(), bank(k=10)
    config = MatchingConfig(reward="implied", optimiser="adam", steps=20)
    targets = bellman_losses(batch, made, 0.9)
    found = distil_transitions(batch.take(np.arange(12)), targets, made, 0.9, config, reward_levels=(-0.1, 2.0)).batch
    np.testing.assert_allclose(found.reward, -0.1 * found.continuation + 2.0 * (1 - found.continuation), atol=1e-6)


def test_relative_weights_and_anchors_change_the_solution():
    batch, made = transitions(), bank(k=40)
    targets = bellman_losses(batch, made, 0.9)
    first = batch.take(np.arange(6))
    order = np.argsort(first.action, kind="stable")

    def solve(**options):
        return distil_transitions(first, targets, made, 0.9, MatchingConfig(optimiser="adam", steps=100, **options)).batch

    plain, anchored, relative = solve(), solve(anchor=10.0), solve(weighting="relative")
    far = np.abs(plain.obs - first.obs[order]).mean()
    assert np.abs(anchored.obs - first.obs[order]).mean() < 0.5 * far
    weighted = [np.mean((bellman_losses(x, made, 0.9) / targets - 1) ** 2) for x in (plain, relative)]
    assert weighted[1] < weighted[0]


def test_jacobian_by_forward_derivatives_equals_autograd():
    made = bank(k=5)
    x = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def per_row(rows):
        return made.values(made.embed(rows), 1).square()

    slow = torch.autograd.functional.jacobian(lambda rows: per_row(rows).mean(0), x)  # (k, m, p)
    torch.testing.assert_close(jacobian(per_row, x), slow.reshape(5, 8).T)


@pytest.mark.parametrize("k", [3, 30])
def test_gauss_newton_agrees_with_least_squares(k):
    """A linear problem is solved in one undamped step, with more unknowns than losses and with fewer."""
    generator = torch.Generator().manual_seed(k)
    a = torch.randn(2, k, dtype=torch.float64, generator=generator)
    goal = torch.randn(k, dtype=torch.float64, generator=generator)
    weight = torch.ones(k, dtype=torch.float64)
    x = descend_gauss_newton(lambda rows: rows @ a, torch.zeros(5, 2, dtype=torch.float64), goal, weight, 60)
    best = torch.linalg.lstsq(a.T, goal[:, None]).solution[:, 0]
    left = (a.T @ best - goal).square().mean()
    assert float(mismatch(lambda rows: rows @ a, x, goal, weight)) == pytest.approx(float(left), abs=1e-8)


def test_banks_survive_a_round_trip_and_take_their_first():
    for family in ("rff", "mlp"):
        made = bank(family, k=9)
        again = bank_from(bank_tensors(made))
        batch = transitions(15)
        np.testing.assert_array_equal(bellman_losses(batch, made, 0.5), bellman_losses(batch, again, 0.5))
        np.testing.assert_allclose(bellman_losses(batch, made.first(4), 0.5), bellman_losses(batch, made, 0.5)[:4], rtol=1e-12)


def test_scaled_banks_contain_small_predictors():
    wide = draw_bank(BankConfig(scale_low=0.03), 500, 2, 2, 1.0, np.random.default_rng(0))
    sizes = wide.coefficients.square().mean((0, 1)).sqrt()
    assert float(sizes.min()) < 0.06
    assert float(sizes.max()) < 1.6


def test_bad_input_is_refused():
    batch, made = transitions(), bank()
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, 1\), got 1.0"):
        bellman_losses(batch, made, 1.0)
    with pytest.raises(ValueError, match=r"actions must lie in 0\.\.2"):
        bellman_losses(TdBatch(batch.obs, batch.action + 1, *list(batch)[2:]), made, 0.9)
    broken = batch.reward.copy()
    broken[0] = np.inf
    with pytest.raises(ValueError, match="not finite"):
        bellman_losses(TdBatch(batch.obs, batch.action, broken, batch.next_obs, batch.continuation), made, 0.9)
    with pytest.raises(ValueError, match="target loss per predictor, got 2 for 6"):
        distil_transitions(batch.take(np.arange(5)), np.ones(2), made, 0.9, MatchingConfig())
    with pytest.raises(ValueError, match="at least one transition"):
        bellman_losses(batch.take(np.arange(0)), made, 0.9)
    with pytest.raises(ValueError, match="k = 0"):
        draw_bank(BankConfig(), 0, 2, 2, 1.0, np.random.default_rng(0))
    with pytest.raises(ValueError, match="always zero"):
        draw_bank(BankConfig(), 3, 2, 2, 0.0, np.random.default_rng(0))
    with pytest.raises(ValueError, match="2 coordinates, got 3"):
        bellman_losses(transitions(d=3), made, 0.9)
    with pytest.raises(ValueError, match=r"reward must have shape \(200,\)"):
        bellman_losses(TdBatch(batch.obs, batch.action, batch.reward[:1], batch.next_obs, batch.continuation), made, 0.9)
    with pytest.raises(ValueError, match=r"continuations must lie in \[0, 1\], got 2\.0"):
        bellman_losses(TdBatch(*list(batch)[:4], np.full(200, 2.0)), made, 0.9)
    for targets in (np.zeros(6), np.full(6, -1.0), np.full(6, np.nan)):
        with pytest.raises(ValueError, match="none negative and not all zero"):
            distil_transitions(batch.take(np.arange(5)), targets, made, 0.9, MatchingConfig())
    with pytest.raises(ValueError, match="a loss per target"):
        relative_loss_error(np.ones(3), np.ones(1))
    with pytest.raises(ValueError, match="a target above zero"):
        relative_loss_error(np.ones(3), np.zeros(3))
    with pytest.raises(ValueError, match=r"actions must lie in 0\.\.2, got -1"):
        td_rows(TdBatch(batch.obs, batch.action - 1, *list(batch)[2:]), 3)
    with pytest.raises(ValueError, match="leave terminals=True"):
        BankConfig(terminals=False, bootstrap=False)
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        MatchingConfig(k=0)
