"""Transitions, collectors, fitted Q iteration and rollouts."""

import doctest
import warnings
from dataclasses import replace

import numpy as np
import pytest

from tasks.common.node import Inputs, NullLog
from tasks.offline_rl import collect, environments, fqi, rollout, transitions
from tasks.offline_rl.collect import CollectParams, collect_transitions, mean_episode_return
from tasks.offline_rl.environments import TASKS, ControlTask, control_task
from tasks.offline_rl.fqi import FqiConfig, fit_networks, ridge_fqi
from tasks.offline_rl.rollout import normalised_return, random_policy, rollout_returns
from tasks.offline_rl.transitions import Standardiser, TdBatch, read_transitions, td_batch, write_transitions


@pytest.mark.parametrize("module", [collect, environments, fqi, rollout, transitions])
def test_examples_in_the_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("name", sorted(TASKS))
def test_collected_data_is_deterministic_and_stays_within_episodes(name):
    task = control_task(name)
    data, again, other = (collect_transitions(task, 700, np.random.default_rng(s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(data.obs, again.obs)
    assert not np.array_equal(data.obs, other.obs)
    same = np.diff(data.episode) == 0
    np.testing.assert_array_equal(data.next_obs[:-1][same], data.obs[1:][same])
    over = data.terminated | data.truncated
    np.testing.assert_array_equal(over[:-1], ~same)
    assert over[-1]
    assert not (data.terminated & data.truncated).any()


def test_long_episodes_are_cut_and_not_terminated():
    task = replace(control_task("cartpole"), random_share=(0.0,), cut=30)
    data = collect_transitions(task, 95, np.random.default_rng(0))
    lengths = np.bincount(data.episode)
    assert lengths.max() <= 30
    assert data.truncated.sum() >= 3
    reward = task.learning_reward(data)
    np.testing.assert_array_equal(reward, -data.terminated.astype(float))
    batch = td_batch(data, Standardiser.of(data.obs), reward)
    np.testing.assert_array_equal(batch.continuation, 1.0 - data.terminated)
    assert mean_episode_return(data) == pytest.approx(lengths.mean())


def test_the_acrobot_heuristic_solves_the_task_and_its_opposite_does_not():
    task = control_task("acrobot")

    def play(heuristic):
        return collect_transitions(replace(task, random_share=(0.0,), heuristic=heuristic), 400, np.random.default_rng(0))

    assert play(task.heuristic).terminated.sum() >= 2
    assert play(lambda obs: 2 - task.heuristic(obs)).terminated.sum() == 0


def test_transitions_survive_a_round_trip(tmp_path):
    data = collect_transitions(control_task("acrobot"), 60, np.random.default_rng(0))
    write_transitions(tmp_path / "a.parquet", data)
    again = read_transitions(tmp_path / "a.parquet")
    for column in vars(data):
        np.testing.assert_array_equal(getattr(again, column), getattr(data, column))


def test_a_table_without_the_schema_is_refused(tmp_path):
    import pandas as pd

    pd.DataFrame({"obs": [[1.0]]}).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(ValueError, match="lacks the columns"):
        read_transitions(tmp_path / "b.parquet")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": np.zeros((3, 2))}, "must both be"),
        ({"reward": np.zeros(3)}, r"reward must have shape \(4,\)"),
        ({"reward": np.array([0, np.nan, 0, 0])}, "not finite"),
        ({"action": np.array([0, -1, 0, 0])}, "indices >= 0"),
        ({"action": np.array([0, 0.5, 0, 0])}, "indices >= 0"),
        ({"episode": np.array([1, 0, 0, 0])}, "must not decrease"),
    ],
)
def test_bad_transitions_are_refused(change, message):
    flags = np.zeros(4, bool)
    good = transitions.Transitions(np.zeros((4, 2)), np.zeros(4, int), np.zeros(4), np.zeros((4, 2)), flags, flags, np.zeros(4, int))
    with pytest.raises(ValueError, match=message):
        replace(good, **change)


def test_bad_tasks_and_sizes_are_refused():
    with pytest.raises(KeyError, match="known: acrobot, cartpole, mountaincar"):
        control_task("pendulum")
    with pytest.raises(ValueError, match="gamma must lie"):
        ControlTask("CartPole-v1", 1.0, (0.5,), lambda obs: 0, 0.0, 0.0)
    with pytest.raises(ValueError, match="probabilities"):
        ControlTask("CartPole-v1", 0.9, (1.5,), lambda obs: 0, 0.0, 0.0)
    with pytest.raises(ValueError, match="at least 1"):
        collect_transitions(control_task("cartpole"), 0, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"action 7, outside 0\.\.1"):
        collect_transitions(replace(TASKS["cartpole"], random_share=(0.0,), heuristic=lambda obs: 7), 5, np.random.default_rng(0))


def test_standardiser_leaves_constant_columns_alone():
    rows = np.array([[1.0, 5.0], [3.0, 5.0]])
    np.testing.assert_allclose(Standardiser.of(rows)(rows), [[-1, 0], [1, 0]])


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
    with pytest.raises(ValueError, match=r"features must be \(10, F\)"):
        ridge_fqi(batch.obs[:5], batch.next_obs, batch, 0.9, 2)


def test_rollouts_in_step_equal_one_episode_at_a_time():
    task = control_task("cartpole")
    weights = np.random.default_rng(0).standard_normal((3, 4))

    def policy(states):
        return (np.einsum("ped,pd->pe", states, weights) > 0).astype(int)

    together = rollout_returns(task.make, policy, 3, [5, 6])
    for p in range(3):
        for e, seed in enumerate((5, 6)):
            env = task.make()
            state, _ = env.reset(seed=seed)
            total, over = 0.0, False
            while not over:
                state, reward, terminated, truncated, _ = env.step(int(state @ weights[p] > 0))
                total, over = total + reward, terminated or truncated
            assert together[p, e] == total


def test_rollouts_refuse_what_makes_no_sense():
    make = control_task("cartpole").make
    with pytest.raises(ValueError, match="at least one policy"):
        rollout_returns(make, random_policy(2, np.random.default_rng(0)), 0, [1])
    with pytest.raises(ValueError, match="chose action 5"):
        rollout_returns(make, lambda s: np.full(s.shape[:2], 5), 1, [1])


def test_normalised_returns_do_not_blow_up_without_a_gap():
    assert normalised_return(np.array([-200.0]), -200.0, -200.0) == 0
    assert np.isfinite(normalised_return(np.array([-190.0]), -200.0, -199.9)).all()


def test_the_collecting_node_is_deterministic(tmp_path, monkeypatch):
    params = CollectParams(environments=("mountaincar", "cartpole"), steps=120, seeds=2)
    found = []
    for name, threads in (("a", "1"), ("b", "2")):
        monkeypatch.setenv("PAPERS_THREADS", threads)
        (tmp_path / name).mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            found.append(collect.prepare(params, Inputs(), tmp_path / name, NullLog()))
    assert found[0] == found[1]
    assert len(list((tmp_path / "a").glob("*.parquet"))) == 4
    assert found[0]["behaviour.return.mountaincar"] <= -100
