"""Fitted Q iteration against value iteration."""

import doctest

import numpy as np
import pytest

from tasks.offline_rl import fqi
from tasks.offline_rl.fqi import FqiConfig, fit_networks, ridge_fqi
from tasks.offline_rl.transitions import TdBatch


@pytest.mark.parametrize("module", [fqi])
def test_examples_in_the_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0


def chain(gamma=0.9):
    """Five states in a row, left and right, reward 1 for stepping right out of the last; with value iteration's Q."""
    states, moves = np.repeat(np.arange(5), 2), np.tile([0, 1], 5)
    following = np.clip(states + 2 * moves - 1, 0, 4)
    ends = (states == 4) & (moves == 1)
    q = np.zeros((5, 2))
    for _ in range(2000):
        q = (ends + gamma * ~ends * q.max(1)[following]).reshape(5, 2)
    eye = np.eye(5)
    return TdBatch(eye[states], moves, ends.astype(float), eye[following], 1.0 - ends), q


def test_ridge_fqi_is_value_iteration_on_a_chain():
    batch, q = chain()
    weights = ridge_fqi(batch.obs, batch.next_obs, batch, 0.9, 2, ridge=0.0, sweeps=300)
    np.testing.assert_allclose(weights.T, q, atol=1e-6)


def test_soft_continuations_discount_more():
    """One state that returns to itself with reward 1 and c = 0.5: Q = 1 / (1 - 0.9 * 0.5)."""
    batch = TdBatch(np.ones((1, 1)), np.array([0]), np.ones(1), np.ones((1, 1)), np.array([0.5]))
    assert ridge_fqi(batch.obs, batch.next_obs, batch, 0.9, 1, ridge=0.0)[0, 0] == pytest.approx(1 / 0.55)


def test_an_action_without_rows_keeps_zero_weights_and_warns():
    batch, _ = chain()
    left = batch.take(np.flatnonzero(batch.action == 0))
    with pytest.warns(UserWarning, match="action 1 has no rows"):
        weights = ridge_fqi(left.obs, left.next_obs, left, 0.9, 2)
    np.testing.assert_array_equal(weights[1], 0)


def test_networks_learn_the_chain_and_do_not_depend_on_their_neighbours():
    batch, q = chain()
    config = FqiConfig(iterations=80, steps=10, learning_rate=1e-2)
    both = fit_networks([batch, batch], 0.9, 2, [3, 4], config, keep=2)
    alone = fit_networks([batch], 0.9, 2, [4], config)
    assert len(both) == 2
    np.testing.assert_allclose(both[-1].w2[1], alone[-1].w2[0], rtol=2e-3, atol=1e-4)
    states = np.tile(np.eye(5), (2, 1, 1))
    np.testing.assert_array_equal(both[-1].greedy(states), [[1] * 5] * 2)
    assert np.abs(both[-1].values(states)[0] - q).max() < 0.25


def test_residual_descent_lowers_the_bellman_residual():
    batch, _ = chain()

    def residual(nets):
        q = nets.values(batch.obs[None])[0, np.arange(10), batch.action]
        return np.mean((q - batch.reward - 0.9 * batch.continuation * nets.values(batch.next_obs[None])[0].max(1)) ** 2)

    config = FqiConfig(iterations=40, objective="residual", learning_rate=1e-2)
    first, last = (fit_networks([batch], 0.9, 2, [0], replace_iterations(config, n))[-1] for n in (1, 40))
    assert residual(last) < 0.2 * residual(first)


def replace_iterations(config, n):
    return config.model_copy(update={"iterations": n})


def test_bad_learning_problems_are_refused():
    batch, _ = chain()
    with pytest.raises(ValueError, match="gamma must lie"):
        fit_networks([batch], 1.0, 2, [0])
    with pytest.raises(ValueError, match=r"one size, at least 1 row, got \[9, 10\]"):
        fit_networks([batch, batch.take(np.arange(9))], 0.9, 2, [0, 1])
    with pytest.raises(ValueError, match="a seed per data set, got 1 for 2"):
        fit_networks([batch, batch], 0.9, 2, [0])
    with pytest.raises(ValueError, match=r"actions must lie in 0\.\.0, got 0\.\.1"):
        ridge_fqi(batch.obs, batch.next_obs, batch, 0.9, 1)
    broken = TdBatch(batch.obs, batch.action, batch.reward * np.nan, batch.next_obs, batch.continuation)
    with pytest.raises(ValueError, match="not finite"):
        fit_networks([broken], 0.9, 2, [0])
    with pytest.raises(ValueError, match=r"keep must lie in 1\.\.50"):
        fit_networks([batch], 0.9, 2, [0], keep=0)
    for options in ({"ridge": -1.0}, {"sweeps": 0}):
        with pytest.raises(ValueError, match="needs ridge >= 0 and at least one sweep"):
            ridge_fqi(batch.obs, batch.next_obs, batch, 0.9, 2, **options)
    with pytest.raises(ValueError, match="features hold"):
        ridge_fqi(np.full_like(batch.obs, np.inf), batch.next_obs, batch, 0.9, 2)
    with pytest.raises(ValueError, match=r"features must be \(10, F\)"):
        ridge_fqi(batch.obs[:5], batch.next_obs, batch, 0.9, 2)
