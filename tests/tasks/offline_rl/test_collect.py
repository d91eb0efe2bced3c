"""Collected data: deterministic, within episodes, cut and not terminated."""

import doctest
import warnings
from dataclasses import replace

import numpy as np
import pytest

from tasks.common.node import Inputs, NullLog
from tasks.offline_rl import collect, environments
from tasks.offline_rl.collect import CollectParams, collect_transitions, mean_episode_return
from tasks.offline_rl.environments import TASKS, ControlTask, control_task
from tasks.offline_rl.transitions import Standardiser, td_batch


@pytest.mark.parametrize("module", [collect, environments])
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
