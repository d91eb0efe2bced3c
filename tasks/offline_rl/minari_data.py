"""Minari data sets (D4RL among them) as transitions with a few discrete actions.

Bellman losses with a maximum over actions need a finite set of them, so continuous actions are replaced by the nearest point of a
grid over the action space; the environment is wrapped to take the grid's indices. Data sets are read from the local Minari store
(`MINARI_DATASETS_PATH`); nothing is downloaded here.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from tasks.common.assets import AssetMissing
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.statistics import summarise
from tasks.offline_rl.transitions import Transitions, write_transitions


class MinariParams(Params):
    """Which Minari data set, and how much of it.

    Attributes:
        dataset: identifier in the local Minari store.
        steps: transitions per data set, whole episodes in random order.
        levels: grid points per action coordinate.
        seeds: data sets, each from other episodes.
    """

    dataset: str = "D4RL/pointmaze/umaze-v2"
    steps: int = Field(50_000, ge=1)
    levels: int = Field(3, ge=2)
    seeds: int = Field(5, ge=1)
    seed: int = Field(0, ge=0)


def prepare(params: MinariParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `minari.<seed>.parquet`. Metrics: `behaviour.return.minari`, mean over the whole episodes that were read."""
    dataset = load_minari(params.dataset)
    returns = []
    for s in log.progress(range(params.seeds), desc="episodes"):
        data = read_minari(dataset, params.steps, params.levels, np.random.default_rng([params.seed, s]))
        write_transitions(out / f"minari.{s}.parquet", data)
        returns.append(float(np.bincount(data.episode, weights=data.reward).mean()))
    return summarise("behaviour.return.minari", returns)


def load_minari(dataset: str) -> Any:
    """A data set of the local Minari store.

    Raises:
        AssetMissing: if minari or the data set is not there, with the command that gets it.
    """
    try:
        import minari
    except ImportError:
        raise AssetMissing("minari", "pip install 'iclr2026-flows[offline-rl]'") from None
    try:
        return minari.load_dataset(dataset)
    except (FileNotFoundError, ValueError):
        raise AssetMissing(dataset, f"minari download {dataset}", "is not in the local Minari store") from None


def action_grid(space: Any, levels: int) -> np.ndarray:
    """Points (levels^d, d) of a regular grid over a box of actions.

    Raises:
        ValueError: for a space that is no bounded box.

    Example:
        >>> from gymnasium.spaces import Box
        >>> action_grid(Box(-1, 1, (1,)), 3).tolist()
        [[-1.0], [0.0], [1.0]]
    """
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or high is None or low.ndim != 1 or not np.isfinite([low, high]).all():
        raise ValueError(f"needs a bounded one-dimensional box of actions, got {space}")
    return np.array(list(itertools.product(*(np.linspace(a, b, levels) for a, b in zip(low, high, strict=True)))))


def read_minari(dataset: Any, steps: int, levels: int, rng: np.random.Generator) -> Transitions:
    """Whole episodes in random order until `steps` transitions are there.

    Args:
        dataset: from `load_minari`.
        steps: at least so many transitions, if the data set has them.
        levels: see `action_grid`; ignored for discrete actions.
        rng: order of the episodes.
    """
    discrete = hasattr(dataset.action_space, "n")
    grid = None if discrete else action_grid(dataset.action_space, levels)
    columns: list[list[np.ndarray]] = [[] for _ in range(7)]
    taken = 0
    for number, index in enumerate(rng.permutation(dataset.total_episodes)):
        (episode,) = dataset.iterate_episodes([int(index)])
        states = flatten_observations(episode.observations)
        length = len(episode.rewards)
        actions = np.asarray(episode.actions)
        chosen = actions if grid is None else nearest(actions, grid)
        parts = (states[:length], chosen, episode.rewards, states[1 : length + 1], episode.terminations, episode.truncations)
        for column, part in zip(columns, (*parts, np.full(length, number)), strict=True):
            column.append(np.asarray(part))
        taken += length
        if taken >= steps:
            break
    obs, action, reward, following, terminated, truncated, episodes = (np.concatenate(c) for c in columns)
    return Transitions(
        obs.astype(float),
        action.astype(np.int64),
        reward.astype(float),
        following.astype(float),
        terminated.astype(bool),
        truncated.astype(bool),
        episodes.astype(np.int64),
    )


def nearest(actions: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Index (n,) of the grid point (K, d) nearest to each action (n, d)."""
    return np.asarray(((actions[:, None, :] - grid[None]) ** 2).sum(-1).argmin(1))


def flatten_observations(observations: Any) -> np.ndarray:
    """States (T, d): dictionaries by sorted key, arrays as they are."""
    if isinstance(observations, dict):
        return np.hstack([flatten_observations(observations[key]) for key in sorted(observations)])
    return np.asarray(observations, float).reshape(len(observations), -1)


def make_discrete(dataset: Any, levels: int) -> Any:
    """The environment of a data set, taking indices of the action grid and returning flat states."""
    import gymnasium

    env = dataset.recover_environment()
    env = gymnasium.wrappers.TransformObservation(env, _flat, None)
    if hasattr(dataset.action_space, "n"):
        return env
    grid = action_grid(dataset.action_space, levels)
    return gymnasium.wrappers.TransformAction(
        env, lambda index: grid[int(index)].astype(env.action_space.dtype), gymnasium.spaces.Discrete(len(grid))
    )


def _flat(observation: Any) -> np.ndarray:
    if isinstance(observation, dict):
        return np.asarray(flatten_observations({key: np.asarray(value)[None] for key, value in observation.items()})[0])
    return np.asarray(observation, float).reshape(-1)
