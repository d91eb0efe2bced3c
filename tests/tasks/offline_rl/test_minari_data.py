"""Minari data sets, written small in the official format and read back; the stages of the gpu profile on them."""

import doctest

import gymnasium
import numpy as np
import pytest

from tasks.common.assets import AssetMissing
from tasks.common.node import Inputs, NullLog
from tasks.distillation.bellman import MatchingConfig
from tasks.distillation.minari_report import MinariReportParams, evaluate
from tasks.offline_rl import minari_data
from tasks.offline_rl.fqi import FqiConfig
from tasks.offline_rl.minari_data import (
    MinariParams,
    action_grid,
    flatten_observations,
    load_minari,
    make_discrete,
    nearest,
    prepare,
    read_minari,
)


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(minari_data).failed == 0


def test_episodes_become_transitions(store):
    dataset = load_minari("test/pendulum-v0")
    data = read_minari(dataset, 40, 3, np.random.default_rng(0))
    assert len(data) == 60
    assert set(data.action) <= {0, 1, 2}
    assert data.truncated.sum() == 2
    assert not data.terminated.any()
    inside = np.diff(data.episode) == 0
    np.testing.assert_array_equal(data.next_obs[:-1][inside], data.obs[1:][inside])
    assert len(read_minari(dataset, 10**6, 3, np.random.default_rng(0))) == 90


def test_the_environment_takes_grid_indices(store):
    env = make_discrete(load_minari("test/pendulum-v0"), 3)
    state, _ = env.reset(seed=0)
    assert env.action_space.n == 3
    assert state.shape == (3,)
    raw = gymnasium.make("Pendulum-v1")
    raw.reset(seed=0)
    np.testing.assert_allclose(env.step(2)[0], raw.step(np.array([2.0], np.float32))[0], rtol=1e-6)


def test_missing_data_names_the_command(store):
    with pytest.raises(AssetMissing, match="minari download D4RL/pointmaze/umaze-v2"):
        load_minari("D4RL/pointmaze/umaze-v2")


def test_grids_nearest_points_and_dictionaries():
    grid = action_grid(gymnasium.spaces.Box(-1, 1, (2,)), 3)
    assert grid.shape == (9, 2)
    assert nearest(np.array([[0.9, -0.2]]), grid).tolist() == [7]
    states = flatten_observations({"b": np.ones((2, 1)), "a": np.zeros((2, 2))})
    assert states.tolist() == [[0, 0, 1], [0, 0, 1]]
    with pytest.raises(ValueError, match="bounded one-dimensional box"):
        action_grid(gymnasium.spaces.Discrete(3), 3)
    with pytest.raises(ValueError, match="bounded one-dimensional box"):
        action_grid(gymnasium.spaces.Box(-np.inf, np.inf, (1,)), 3)


