"""Scripted behaviour: who succeeds, and what a data set looks like."""

import doctest

import numpy as np
import pytest

from tasks.offline_rl import maze_controllers as module
from tasks.offline_rl.episodes import check_sparse
from tasks.offline_rl.maze_controllers import BEHAVIOURS, Behaviour, as_episodes, collect_maze, kinds_of, waypoint_action
from tasks.offline_rl.point_maze import MAZES, PointMaze


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(module).failed == 0


@pytest.fixture(scope="module")
def collected():
    return collect_maze(MAZES["medium"], BEHAVIOURS["medium"], 100, np.random.default_rng(0))


def test_the_same_seed_gives_the_same_data(collected):
    again, _ = collect_maze(MAZES["medium"], BEHAVIOURS["medium"], 100, np.random.default_rng(0))
    other, _ = collect_maze(MAZES["medium"], BEHAVIOURS["medium"], 100, np.random.default_rng(1))
    assert again.digest() == collected[0].digest() != other.digest()


def test_seekers_succeed_sometimes_and_wanderers_hardly_ever(collected):
    data, kinds = collected
    won = data.returns > 0
    assert {k: int((kinds == k).sum()) for k in set(kinds)} == {"wanderer": 60, "seeker": 40}
    assert 0.2 < won[kinds == "seeker"].mean() < 0.8
    assert won[kinds == "wanderer"].mean() < 0.1


def test_episodes_are_sparse_cut_at_the_horizon_and_every_step_is_one_of_the_maze(collected):
    data, _ = collected
    check_sparse(data)
    last = data.starts + data.lengths - 1
    assert (data.terminated[last] == (data.returns > 0)).all()
    assert (data.lengths[data.returns == 0] == 200).all()
    assert np.abs(data.action).max() <= 1
    maze = PointMaze(MAZES["medium"])
    rows = np.arange(0, len(data), 97)
    np.testing.assert_allclose(maze.step(data.obs[rows, :4], data.action[rows]), data.next_obs[rows, :4], atol=1e-4)
    won = maze.reached(data.next_obs[:, :4], data.next_obs[:, 4:])
    np.testing.assert_array_equal(won, data.success)


def test_experts_without_noise_reach_every_goal():
    data, _ = collect_maze(MAZES["goals"], {"expert": Behaviour(1.0, None, 1.0)}, 40, np.random.default_rng(0))
    assert (data.returns > 0).mean() > 0.9


def test_a_waypoint_is_the_next_cell_until_the_last():
    maze = PointMaze(MAZES["umaze"])
    here, target = 0, int(maze.distances[0].argmax())
    state = np.hstack([maze.centres[here], [0.3, -0.2]])[None]
    following = maze.centres[maze.next_cell[target, here]]
    found = waypoint_action(maze, state, np.array([target]), maze.centres[[target]], np.full((1, 2), 0.01))
    np.testing.assert_allclose(found[0], np.clip(10 * (following - state[0, :2]) - state[0, 2:] + 0.01, -1, 1))


def test_drifting_actions_are_correlated_in_time():
    behaviours = {"drifter": Behaviour(1.0, None, 0.0, 0.15)}
    data, _ = collect_maze(MAZES["goals"], behaviours, 10, np.random.default_rng(0))
    inside = np.diff(data.episode) == 0
    assert np.corrcoef(data.action[:-1][inside, 0], data.action[1:][inside, 0])[0, 1] > 0.6


def test_blocks_of_kinds_and_bad_shares():
    assert kinds_of({"a": Behaviour(0.25, None, 1.0), "b": Behaviour(0.75, None, 0.0)}, 4).tolist() == ["a", "b", "b", "b"]
    with pytest.raises(ValueError, match=r"sum to 1 .* got 0\.5"):
        kinds_of({"a": Behaviour(0.5, None, 1.0)}, 4)


def test_parallel_episodes_are_cut_where_each_ended():
    obs = np.arange(12.0).reshape(2, 3, 2)
    data = as_episodes(obs, np.zeros((2, 3, 1)), obs + 2, np.array([2, 3]), np.array([True, False]), {})
    assert data.lengths.tolist() == [2, 3]
    assert data.obs[:, 0].tolist() == [0, 2, 6, 8, 10]
    assert data.reward.tolist() == [0, 1, 0, 0, 0]
    assert data.truncated.tolist() == [False, False, False, False, True]
