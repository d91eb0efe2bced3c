"""Whole episodes with continuous actions and a sparse reward: the schema that preference and value learners share.

A data set is one Parquet table, a row per step, beside a small JSON manifest with the action box and where the data came from.
This module knows nothing about environments, controllers or Minari; `tasks.offline_rl.transitions` is the same for discrete actions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tasks.common.formats import read_json, read_parquet, write_json, write_parquet

FLAGS = ("terminated", "truncated", "success")


class NoPositiveTrajectories(ValueError):
    """No trajectory has a return above eta, so there is nothing to prefer."""

    def __init__(self, eta: float, best: float) -> None:
        super().__init__(
            f"no trajectory has a return above eta = {eta}, the highest is {best}; lower eta, or label successes by another rule"
        )
        self.eta = eta


class NoNegativeTrajectories(ValueError):
    """No trajectory fails, so a method that contrasts with recorded failures is undefined."""

    def __init__(self, eta: float, what: str) -> None:
        super().__init__(
            f"{what} is undefined: no failures, every trajectory has a return above eta = {eta}; use degraded actions as negatives"
        )
        self.eta = eta


@dataclass(frozen=True)
class Episodes:
    """N steps of E episodes, in the order in which they happened.

    Attributes:
        obs: states, (N, d) float.
        action: (N, a) float, inside the box.
        reward: the learning reward, (N,) float.
        next_obs: states that followed, of the same episode, (N, d).
        terminated: the task ended there, (N,) bool, at the last step of an episode only.
        truncated: a limit of time cut it there, (N,) bool, at the last step only.
        success: the task was achieved in that step, (N,) bool.
        episode: number of the episode, (N,) int, non-decreasing.
        low: lower ends of the action box, (a,).
        high: upper ends, (a,).
        about: where the data came from (environment, seed, parameters), plain values.

    Raises:
        ValueError: for other shapes, numbers that are not finite, episodes out of order, flags inside an episode, actions outside the
            box, or next states that are not the states of the following row.

    Example:
        >>> flags = np.array([False, True])
        >>> two = Episodes(np.zeros((2, 3)), np.zeros((2, 1)), np.array([0.0, 1.0]), np.zeros((2, 3)), flags, ~flags & flags, flags,
        ...                np.zeros(2, int), np.array([-1.0]), np.array([1.0]))
        >>> two.n_episodes, two.returns.tolist()
        (1, [1.0])
    """

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    success: np.ndarray
    episode: np.ndarray
    low: np.ndarray
    high: np.ndarray
    about: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        n = len(self.obs)
        if n < 1 or self.obs.ndim != 2 or self.next_obs.shape != self.obs.shape:
            raise ValueError(f"obs and next_obs must both be (N, d) with N >= 1, got {self.obs.shape} and {self.next_obs.shape}")
        if self.action.ndim != 2 or len(self.action) != n:
            raise ValueError(f"action must be ({n}, a) like the states, got {self.action.shape}")
        a = self.action.shape[1]
        if self.low.shape != (a,) or self.high.shape != (a,):
            raise ValueError(f"the action box has {self.low.shape} and {self.high.shape} ends, but the actions have {a} coordinates")
        for name in ("reward", "episode", *FLAGS):
            if getattr(self, name).shape != (n,):
                raise ValueError(f"{name} must have shape ({n},) like the states, got {getattr(self, name).shape}")
        for name in ("obs", "next_obs", "action", "reward", "low", "high"):
            if bad := int((~np.isfinite(getattr(self, name))).sum()):
                raise ValueError(f"{name} holds {bad} numbers that are not finite; drop or repair those episodes first")
        if (np.diff(self.episode) < 0).any():
            raise ValueError("episode numbers must not decrease; keep the steps in the order in which they happened")
        inside = np.diff(self.episode) == 0
        if ((self.terminated | self.truncated)[:-1] & inside).any():
            raise ValueError("an episode goes on after terminated or truncated; the ends of episodes are not sorted with their steps")
        if not np.array_equal(self.next_obs[:-1][inside], self.obs[1:][inside]):
            raise ValueError("next_obs must equal obs of the following row inside an episode")
        slack = 1e-6 * np.maximum(self.high - self.low, 0)
        if (self.low >= self.high).any() or (self.action < self.low - slack).any() or (self.action > self.high + slack).any():
            raise ValueError(
                f"actions must lie in the box, got {self.action.min()}..{self.action.max()} in {self.low.min()}..{self.high.max()}"
            )

    def __len__(self) -> int:
        return len(self.obs)

    @cached_property
    def starts(self) -> np.ndarray:
        """Row of the first step of every episode, (E,)."""
        return np.flatnonzero(np.r_[True, np.diff(self.episode) > 0])

    @cached_property
    def lengths(self) -> np.ndarray:
        """Steps of every episode, (E,)."""
        return np.diff(np.r_[self.starts, len(self)])

    @property
    def n_episodes(self) -> int:
        """Number E of episodes."""
        return len(self.starts)

    @cached_property
    def returns(self) -> np.ndarray:
        """Undiscounted return of every episode, (E,)."""
        return np.asarray(np.add.reduceat(self.reward, self.starts))

    def rows(self, episodes: np.ndarray) -> np.ndarray:
        """Rows of these episodes (indices 0..E-1), in the order given."""
        return np.concatenate([np.arange(self.starts[e], self.starts[e] + self.lengths[e]) for e in episodes]).astype(int)

    def take(self, episodes: np.ndarray) -> Episodes:
        """These episodes (indices 0..E-1), renumbered in the order given."""
        rows = self.rows(episodes)
        columns = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name not in ("episode", "low", "high", "about")}
        return replace(self, **columns, episode=np.repeat(np.arange(len(episodes)), self.lengths[np.asarray(episodes, int)]))

    def discounted(self, gamma: float) -> np.ndarray:
        """Discounted return-to-go of every row, (N,)."""
        out = self.reward.astype(float).copy()
        last = np.zeros(len(self), bool)
        last[self.starts + self.lengths - 1] = True
        for row in range(len(self) - 2, -1, -1):
            if not last[row]:
                out[row] += gamma * out[row + 1]
        return out

    def digest(self) -> str:
        """SHA-256 of the content: equal data, equal digest."""
        seen = hashlib.sha256()
        for f in fields(self):
            if f.name != "about":
                seen.update(np.ascontiguousarray(getattr(self, f.name)).tobytes())
        return seen.hexdigest()


def split_by_return(episodes: Episodes, eta: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """D+ and D- (section 2 of the paper): episodes with return above eta, and the rest, as indices.

    Raises:
        NoPositiveTrajectories: if no return is above eta.
    """
    above = episodes.returns > eta
    if not above.any():
        raise NoPositiveTrajectories(eta, float(episodes.returns.max()))
    return np.flatnonzero(above), np.flatnonzero(~above)


def check_sparse(episodes: Episodes) -> None:
    """Refuse rewards other than 0, and a single 1 at the last step of an episode.

    Raises:
        ValueError: naming how many rows break the rule.
    """
    last = episodes.starts + episodes.lengths - 1
    inner = np.delete(episodes.reward, last)
    if bad := int((inner != 0).sum() + (~np.isin(episodes.reward[last], (0.0, 1.0))).sum()):
        raise ValueError(f"a sparse data set has reward 1 at most once, at the last step of an episode; {bad} rows differ")


def write_episodes(path: Path, episodes: Episodes) -> None:
    """Write `path` (Parquet: episode, t, obs_*, act_*, next_*, reward, flags) and the manifest beside it (`.json`)."""
    import pandas as pd

    columns: dict[str, np.ndarray] = {
        "episode": episodes.episode,
        "t": np.arange(len(episodes)) - np.repeat(episodes.starts, episodes.lengths),
    }
    for prefix, values in (("obs", episodes.obs), ("act", episodes.action), ("next", episodes.next_obs)):
        columns |= {f"{prefix}_{i}": values[:, i] for i in range(values.shape[1])}
    columns |= {"reward": episodes.reward} | {name: getattr(episodes, name) for name in FLAGS}
    write_parquet(path, pd.DataFrame(columns))
    manifest = {
        **episodes.about,
        "action_low": episodes.low.tolist(),
        "action_high": episodes.high.tolist(),
        "episodes": episodes.n_episodes,
        "steps": len(episodes),
        "sha256": episodes.digest(),
        "success_share": float((episodes.returns > 0).mean()),
    }
    write_json(path.with_suffix(".json"), manifest)


def read_episodes(path: Path) -> Episodes:
    """Read what `write_episodes` wrote.

    Raises:
        ValueError: if columns are missing, or the steps of an episode are not 0, 1, 2, ...
    """
    frame, manifest = read_parquet(path), read_json(path.with_suffix(".json"))
    if missing := [n for n in ("episode", "t", "obs_0", "act_0", "next_0", "reward", *FLAGS) if n not in frame]:
        raise ValueError(f"{path} lacks the columns {missing}; write it with write_episodes")

    def block(prefix: str) -> np.ndarray:
        names = [f"{prefix}_{i}" for i in range(sum(str(c).startswith(f"{prefix}_") for c in frame))]
        return frame[names].to_numpy()

    low, high = (np.asarray(manifest[f"action_{end}"], float) for end in ("low", "high"))
    flags = {name: frame[name].to_numpy() for name in ("reward", *FLAGS, "episode")}
    read = Episodes(block("obs"), block("act"), next_obs=block("next"), low=low, high=high, about=manifest, **flags)
    if not np.array_equal(frame["t"].to_numpy(), np.arange(len(read)) - np.repeat(read.starts, read.lengths)):
        raise ValueError(f"{path}: the steps of every episode must be t = 0, 1, 2, ... in order; sort by episode and t")
    return read
