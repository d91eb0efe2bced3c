"""Transitions as a table, the one schema that offline-RL stages exchange.

A `Transitions` holds what an environment said, with its own reward; `TdBatch` is what a temporal-difference learner sees of it:
standardised states, the learning reward, and the continuation flag. Neither knows where the data came from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from tasks.common.formats import read_parquet, write_parquet


@dataclass(frozen=True)
class Transitions:
    """N steps of an environment with discrete actions, in the order in which they happened.

    Attributes:
        obs: states, (N, d) float.
        action: indices of actions, (N,) int.
        reward: the environment's own reward, (N,) float.
        next_obs: states that followed, (N, d) float; of the same episode, always.
        terminated: the episode ended there by the task's rule, (N,) bool.
        truncated: it was cut there by a limit of time, which is no termination, (N,) bool.
        episode: number of the episode, (N,) int, non-decreasing.

    Raises:
        ValueError: for other shapes, numbers that are not finite, negative actions or shuffled episodes.

    Example:
        >>> flags = np.zeros(2, bool)
        >>> data = Transitions(np.zeros((2, 3)), np.array([0, 1]), np.ones(2), np.ones((2, 3)), flags, flags, np.zeros(2, int))
        >>> len(data), data.dimension
        (2, 3)
    """

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    episode: np.ndarray

    def __post_init__(self) -> None:
        n = len(self.obs)
        if n < 1 or self.obs.ndim != 2 or self.next_obs.shape != self.obs.shape:
            raise ValueError(f"obs and next_obs must both be (N, d) with N >= 1, got {self.obs.shape} and {self.next_obs.shape}")
        for name in ("action", "reward", "terminated", "truncated", "episode"):
            if getattr(self, name).shape != (n,):
                raise ValueError(f"{name} must have shape ({n},) like the states, got {getattr(self, name).shape}")
        for name in ("obs", "next_obs", "reward"):
            if not np.isfinite(getattr(self, name)).all():
                raise ValueError(f"{name} holds numbers that are not finite; drop or repair those transitions first")
        if self.action.dtype.kind not in "iu" or self.action.min() < 0:
            raise ValueError(f"action must hold indices >= 0, got {self.action.dtype} with minimum {self.action.min()}")
        if (np.diff(self.episode) < 0).any():
            raise ValueError("episode numbers must not decrease; keep transitions in the order in which they happened")

    def __len__(self) -> int:
        return len(self.obs)

    @property
    def dimension(self) -> int:
        """Number d of state coordinates."""
        return int(self.obs.shape[1])


def write_transitions(path: Path, data: Transitions) -> None:
    """Write as Parquet: `obs` and `next_obs` as lists of float64, the other columns as they are."""
    import pandas as pd

    columns = {f.name: list(v) if (v := getattr(data, f.name)).ndim == 2 else v for f in fields(data)}
    write_parquet(path, pd.DataFrame(columns))


def read_transitions(path: Path) -> Transitions:
    """Read what `write_transitions` wrote.

    Raises:
        ValueError: if columns of the schema are missing, naming them.
    """
    frame = read_parquet(path)
    names = [f.name for f in fields(Transitions)]
    missing = [n for n in names if n not in frame]
    if missing:
        raise ValueError(f"{path} lacks the columns {missing}; transitions have {names}")
    return Transitions(**{n: np.stack(frame[n].to_list()) if n.endswith("obs") else frame[n].to_numpy() for n in names})


@dataclass(frozen=True)
class Standardiser:
    """Shift and scale per coordinate, learned from one data set and applied to all that must share its units.

    Attributes:
        mean: (d,).
        scale: (d,), 1 where a coordinate is constant.
    """

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray) -> Standardiser:
        """Mean and standard deviation of rows (n, d)."""
        scale = rows.std(axis=0)
        return cls(rows.mean(axis=0), np.where(scale > 1e-12, scale, 1.0))

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Rows (..., d) in standard units."""
        return np.asarray((rows - self.mean) / self.scale)


@dataclass(frozen=True)
class TdBatch:
    """What temporal-difference learning sees: n rows (s, a, r, s', c).

    Attributes:
        obs: standardised states, (n, d).
        action: indices, (n,).
        reward: the learning reward, (n,).
        next_obs: standardised next states, (n, d).
        continuation: 0 where the episode terminated, 1 elsewhere, (n,); distilled rows have values between.
    """

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray
    continuation: np.ndarray

    def __len__(self) -> int:
        return len(self.obs)

    def take(self, rows: np.ndarray) -> TdBatch:
        """The rows with these indices, in that order."""
        return TdBatch(*(column[rows] for column in self))

    def __iter__(self) -> Iterator[np.ndarray]:
        return (getattr(self, f.name) for f in fields(self))


def check_batch(batch: TdBatch, n_actions: int, gamma: float) -> None:
    """Refuse what no temporal-difference error is defined for.

    Raises:
        ValueError: for gamma outside [0, 1), no rows, columns of different lengths, actions outside 0..A-1, continuations outside
            [0, 1], or numbers that are not finite.
    """
    if not 0.0 <= gamma < 1.0:
        raise ValueError(f"gamma must lie in [0, 1), got {gamma}")
    n = len(batch)
    if n < 1:
        raise ValueError("needs at least one transition, got none")
    if batch.obs.ndim != 2 or batch.next_obs.shape != batch.obs.shape:
        raise ValueError(f"states and next states must both be (n, d), got {batch.obs.shape} and {batch.next_obs.shape}")
    for name in ("action", "reward", "continuation"):
        if getattr(batch, name).shape != (n,):
            raise ValueError(f"{name} must have shape ({n},) like the states, got {getattr(batch, name).shape}")
    if batch.action.dtype.kind not in "iu" or batch.action.min() < 0 or batch.action.max() >= n_actions:
        raise ValueError(f"actions must lie in 0..{n_actions - 1}, got {batch.action.min()}..{batch.action.max()}")
    if not all(np.isfinite(column).all() for column in batch):
        raise ValueError("transitions hold numbers that are not finite; drop those rows first")
    if batch.continuation.min() < 0 or batch.continuation.max() > 1:
        raise ValueError(f"continuations must lie in [0, 1], got {batch.continuation.min()}..{batch.continuation.max()}")


def td_batch(data: Transitions, standardise: Standardiser, reward: np.ndarray) -> TdBatch:
    """Transitions as a learner sees them, with a learning reward (N,). Truncation does not stop the continuation."""
    return TdBatch(
        standardise(data.obs), data.action.astype(np.int64), reward, standardise(data.next_obs), 1.0 - data.terminated.astype(float)
    )
