"""Rollouts in any environment: paired starts, success, ends."""

import gymnasium
import numpy as np
import pytest

from tasks.common.assets import AssetMissing
from tasks.offline_rl.minari_episodes import flatten_one
from tasks.offline_rl.point_maze import MAZES, PointMaze, make_maze
from tasks.offline_rl.rollout_continuous import make_environment, register, rollout


def pendulum():
    return gymnasium.make("Pendulum-v1", max_episode_steps=20)


def test_returns_are_those_of_running_each_policy_by_itself():
    found = rollout(pendulum, lambda s: np.array([[1.0], [-1.0]])[: len(s)], flatten_one, 2, [3, 4])
    for p, push in enumerate((1.0, -1.0)):
        for e, seed in enumerate((3, 4)):
            env = pendulum()
            env.reset(seed=seed)
            slow = sum(env.step(np.array([push], np.float32))[1] for _ in range(20))
            assert found.returns[p, e] == pytest.approx(slow)
    assert (found.steps == 20).all()
    assert not found.success.any()


def test_a_maze_says_success_and_the_episode_ends_there():
    maze = PointMaze(MAZES["goals"])

    def act(states):
        # Flattened dictionaries come in the order of their keys: achieved goal, desired goal, observation.
        obs = np.hstack([states[:, 4:8], states[:, 2:4]])
        here, target = maze.cell_of(obs[:, :2]), maze.cell_of(obs[:, 4:])
        waypoint = np.where((here == target)[:, None], obs[:, 4:], maze.centres[maze.next_cell[target, here]])
        return np.clip(10 * (waypoint - obs[:, :2]) - obs[:, 2:4], -1, 1)

    found = rollout(lambda: make_maze(MAZES["goals"]), act, flatten_one, 1, [0, 1, 2])
    assert found.success.all()
    assert (found.returns == 1).all()
    assert (found.steps < 200).all()


def test_success_can_end_an_episode_that_would_go_on():
    class Told(gymnasium.Wrapper):
        def step(self, action):
            *rest, info = self.env.step(action)
            return (*rest, {**info, "success": True})

    stopped = rollout(lambda: Told(pendulum()), lambda s: np.zeros((len(s), 1)), flatten_one, 1, [0], stop_at_success=True)
    assert stopped.steps.tolist() == [[1]]
    assert stopped.success.all()


def test_bad_requests_and_missing_packages_are_named(monkeypatch):
    with pytest.raises(ValueError, match="at least one policy"):
        rollout(pendulum, lambda s: s, flatten_one, 0, [0])
    monkeypatch.setitem(__import__("sys").modules, "gymnasium_robotics", None)
    with pytest.raises(AssetMissing, match="offline-rl"):
        make_environment("PointMaze_UMaze-v3")
    register("Pendulum-v1")
