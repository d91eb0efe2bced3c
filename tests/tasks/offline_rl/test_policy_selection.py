"""Choosing an iterate on validation starts and judging it on others."""

import numpy as np
import pytest

from tasks.offline_rl.batch_rollout import run_policies
from tasks.offline_rl.point_maze import MAZES, PointMaze
from tasks.offline_rl.policies import Policies, write_policies
from tasks.offline_rl.policy_selection import arms_in, iterates_of, select_and_test


def constant(*actions):
    """Policies that always take these actions."""
    bias = np.arctanh(np.clip(np.array(actions, float)[:, None, :], -0.999, 0.999)).astype(np.float32)
    count = len(actions)
    box = np.ones((count, 2))
    return Policies((np.zeros((count, 6, 2), np.float32), bias), np.zeros((count, 6)), np.ones((count, 6)), -box, box)


@pytest.fixture(scope="module")
def setting():
    """A goal to the right of every start: the iterate that pushes right succeeds."""
    maze = PointMaze(MAZES["umaze"])
    states = np.tile(np.r_[maze.centres[0], 0, 0], (2, 3, 1))
    goals = states[..., :2] + [0.8, 0.0]
    return maze, (states, goals), {10: constant((-1, 0), (1, 0)), 20: constant((1, 0), (-1, 0)), 30: constant((1, 0), (-1, 0))}


def test_the_best_iterate_is_chosen_seed_by_seed_and_the_earliest_of_equals(setting):
    maze, starts, iterates = setting
    found = select_and_test(maze, iterates, starts, starts)
    assert found.updates.tolist() == [10, 20, 30]
    assert found.validation.tolist() == [[0, 1], [1, 0], [1, 0]]
    assert found.chosen.tolist() == [1, 0]
    assert found.success.tolist() == [1, 1]
    assert (found.steps_to_goal < 150).all()


def test_judging_uses_the_test_starts_alone(setting):
    maze, (states, goals), iterates = setting
    away = goals - [1.6, 0.0]
    found = select_and_test(maze, iterates, (states, goals), (states, away))
    assert found.success.tolist() == [0, 0]
    assert found.steps_to_goal.tolist() == [150, 150]


def test_stacked_rollouts_of_iterates_are_those_of_each(setting):
    maze, (states, goals), iterates = setting
    found = select_and_test(maze, iterates, (states, goals), (states, goals))
    for row, policies in zip(found.validation, iterates.values(), strict=True):
        np.testing.assert_array_equal(row, run_policies(maze, policies.act, states, goals).success.mean(1))


def test_iterates_are_found_in_whichever_file_and_old_ones_are_left_out(setting, tmp_path):
    _, _, iterates = setting
    files = (tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    write_policies(files[0], {"x/10": iterates[10]})
    write_policies(files[1], {"y/20": iterates[20], "y/30": iterates[30]})
    assert arms_in(files) == ["x", "y"]
    assert sorted(iterates_of(files, "y")) == [20, 30]
    assert sorted(iterates_of(files, "y", 25)) == [20]
    with pytest.raises(KeyError, match="no iterate of 'y' with at most 5"):
        iterates_of(files, "y", 5)
    with pytest.raises(ValueError, match="no iterates"):
        select_and_test(None, {}, None, None)
