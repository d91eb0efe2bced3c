"""Visit counts of (observation, action), and the exploration bonus min(1, N(s, a)^-1/2) that they give."""

from __future__ import annotations

import numpy as np

_MIX = np.uint64(0x9E3779B97F4A7C15)


class VisitCounts:
    """How often every action was tried at every observation, over a whole run.

    Example:
        >>> counts = VisitCounts(actions=3)
        >>> counts.visit(np.array([5, 5, 7]), np.array([0, 0, 1])).round(3).tolist()
        [0.707, 0.707, 1.0]
    """

    def __init__(self, actions: int) -> None:
        self._actions = actions
        self._keys = np.empty(0, np.uint64)
        self._counts = np.empty(0, np.int64)

    def visit(self, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Count B steps, then return their bonuses (B,): all steps of one batch see the same counts.

        Args:
            observation: numbers (B,), or arrays of whole numbers (B, ...), which are told apart by a 64-bit hash.
            action: (B,).
        """
        pairs, place, seen = np.unique(self._key(observation, action), return_inverse=True, return_counts=True)
        keys = np.concatenate([self._keys, pairs])
        order, at = np.unique(keys, return_inverse=True)
        counts = np.zeros(len(order), np.int64)
        np.add.at(counts, at, np.concatenate([self._counts, seen]))
        self._keys, self._counts = order, counts
        return np.minimum(1.0, 1.0 / np.sqrt(counts[at[len(keys) - len(pairs) :]][place]))

    def _key(self, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        flat = observation.reshape(len(observation), -1).astype(np.uint64)
        key = np.zeros(len(flat), np.uint64)
        for column in flat.T:  # multiply and rotate: wraps around, on purpose
            key = (key ^ column) * _MIX
            key ^= key >> np.uint64(29)
        return key * np.uint64(self._actions) + action.astype(np.uint64)
