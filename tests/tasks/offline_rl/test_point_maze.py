"""Mazes in step against the gymnasium environment, and their graph."""

import doctest
from collections import deque

import numpy as np
import pytest

from tasks.offline_rl import batch_rollout, point_maze
from tasks.offline_rl.batch_rollout import BatchRuns, count_successes, run_policies
from tasks.offline_rl.point_maze import MAZES, PointMaze, make_maze


@pytest.fixture(scope="module")
def maze():
    return PointMaze(MAZES["medium"])


@pytest.mark.parametrize("module", [point_maze, batch_rollout], ids=["maze", "rollout"])
def test_examples_in_the_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0


def test_steps_are_those_of_the_environment_walls_and_limits_included(maze):
    env = make_maze(MAZES["medium"]).unwrapped
    rng = np.random.default_rng(0)
    for seed in range(3):
        observation, _ = env.reset(seed=seed, options={"goal_cell": np.array([6, 6])})
        state = observation["observation"][None]
        for _ in range(80):
            action = rng.uniform(-1.5, 1.5, 2) + np.array([0.6, 0.3])
            observation, reward, terminated, _, _ = env.step(action)
            state = maze.step(state, action[None])
            # The environment warms its contact solver with the step before, which this does not: equal up to its tolerance.
            np.testing.assert_allclose(state[0], observation["observation"], atol=1e-4)
            goal = observation["desired_goal"]
            assert bool(maze.reached(observation["observation"][None], goal[None])[0]) == terminated == bool(reward)
            state = observation["observation"][None]


def test_distances_are_those_of_a_search_from_every_cell(maze):
    grid = {tuple(c) for c in maze.cells.tolist()}
    for source in (0, 7, len(maze.cells) - 1):
        seen, queue = {tuple(maze.cells[source].tolist()): 0}, deque([tuple(maze.cells[source].tolist())])
        while queue:
            i, j = queue.popleft()
            for near in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
                if near in grid and near not in seen:
                    seen[near] = seen[i, j] + 1
                    queue.append(near)
        assert [seen[tuple(c)] for c in maze.cells.tolist()] == maze.distances[source].tolist()


def test_following_the_next_cell_is_a_shortest_path(maze):
    target = maze.cell_of(maze.centre((6, 6))[None])[0]
    for here in range(len(maze.cells)):
        steps, at = 0, here
        while at != target:
            at, steps = maze.next_cell[target, at], steps + 1
        assert steps == maze.distances[target, here]


def test_starts_are_far_from_the_goal_and_inside_their_cells(maze):
    states, goals = maze.starts(300, np.random.default_rng(0))
    start, goal = maze.cell_of(states[:, :2]), maze.cell_of(goals)
    assert (maze.cells[goal] == [6, 6]).all()
    assert (maze.distances[goal, start] >= 3).all()
    assert np.abs(states[:, :2] - maze.centres[start]).max() <= 0.25
    assert len(np.unique(start)) == (maze.distances[goal[0]] >= 3).sum()
    assert (states[:, 2:] == 0).all()


def test_random_goals_cover_the_maze():
    task = PointMaze(MAZES["goals"])
    states, goals = task.starts(400, np.random.default_rng(0))
    assert len(np.unique(task.cell_of(goals))) == len(task.cells)
    assert (task.distances[task.cell_of(goals), task.cell_of(states[:, :2])] >= 3).all()


def test_rollouts_are_those_of_one_policy_and_one_episode_at_a_time(maze):
    rng = np.random.default_rng(1)
    states, goals = (np.stack([x, x]) for x in maze.starts(4, rng))
    goals[:, 0] = states[:, 0, :2] + 0.5  # one that is reached
    gains = np.array([1.0, 3.0])

    def act(obs):
        return np.clip(gains[: len(obs), None, None] * (obs[..., 4:] - obs[..., :2]), -1, 1)

    together = run_policies(maze, act, states, goals, horizon=60, keep_paths=True)
    for p in range(2):
        for e in range(4):
            alone = run_policies(maze, lambda obs, p=p: np.clip(gains[p] * (obs[..., 4:] - obs[..., :2]), -1, 1), states[p, e][None, None],
                                 goals[p, e][None, None], horizon=60)  # fmt: skip
            assert alone.success[0, 0] == together.success[p, e]
            assert alone.steps[0, 0] == together.steps[p, e]
    assert together.success[:, 0].all()
    n = together.steps[0, 0]
    assert np.isfinite(together.paths[0, 0, : n + 1]).all()
    assert np.isnan(together.paths[0, 0, n + 1 :]).all()
    np.testing.assert_array_equal(together.paths[0, 0, 0], states[0, 0])


def test_discounted_returns_of_a_sparse_reward():
    runs = BatchRuns(np.array([[True, False]]), np.array([[3, 9]]), np.zeros((1, 2, 0, 4)))
    np.testing.assert_allclose(runs.discounted(0.5), [[0.25, 0.0]])


def test_reached_goals_are_replaced_and_counted():
    task = PointMaze(MAZES["goals"])
    states, goals = (x[None] for x in task.starts(3, np.random.default_rng(0)))

    def act(obs):
        here, target = task.cell_of(obs[0, :, :2]), task.cell_of(obs[0, :, 4:])
        waypoint = np.where((here == target)[:, None], obs[0, :, 4:], task.centres[task.next_cell[target, here]])
        return np.clip(10 * (waypoint - obs[0, :, :2]) - obs[0, :, 2:4], -1, 1)[None]

    counts = count_successes(task, act, states, goals, 600, [[np.random.default_rng(i) for i in range(3)]])
    assert (counts >= 3).all()
    again = count_successes(task, act, states, goals, 600, [[np.random.default_rng(i) for i in range(3)]])
    np.testing.assert_array_equal(counts, again)
    still = count_successes(
        task, lambda obs: np.zeros((*obs.shape[:2], 2)), states, goals, 50, [[np.random.default_rng(i) for i in range(3)]]
    )
    assert (still == 0).all()
