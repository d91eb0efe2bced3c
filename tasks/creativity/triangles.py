"""Triangle discovery (after Nagarajan et al., 2025, arXiv 2504.15266): find three vertices of a graph that are all joined.

A model sees edges and some triangles of a graph as strings. It is creative when it names triangles that it was never shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np


@dataclass(frozen=True)
class TriangleTask:
    """A graph on V vertices and its triangles, split into shown and held out.

    Attributes:
        adjacency: (V, V), symmetric, without loops.
        shown: triangles (A, 3) of the pretraining set, vertices ascending.
        held_out: the other triangles (B, 3).
    """

    adjacency: np.ndarray
    shown: np.ndarray
    held_out: np.ndarray

    @property
    def vertices(self) -> int:
        """Number V of vertices."""
        return len(self.adjacency)

    def valid(self, triples: np.ndarray) -> np.ndarray:
        """Whether triples (..., 3) are triangles."""
        a, b, c = np.moveaxis(triples, -1, 0)
        return np.asarray(self.adjacency[a, b] & self.adjacency[b, c] & self.adjacency[a, c])

    def was_shown(self, triples: np.ndarray) -> np.ndarray:
        """Whether triples (..., 3) are triangles of the pretraining set, in any order."""
        return np.isin(vertex_sets(triples, self.vertices), vertex_sets(self.shown, self.vertices))


@dataclass(frozen=True)
class Creativity:
    """What T samples are worth, as shares of T; `coverage` is the share of the held-out triangles that were found."""

    validity: float
    unique_valid: float
    creativity: float
    coverage: float


def make_task(vertices: int, planted: int, edges: int, held_out: float, rng: np.random.Generator) -> TriangleTask:
    """A random graph with planted triangles and random edges; all triangles that result count.

    Args:
        vertices: V.
        planted: triangles on random vertices.
        edges: random pairs that are joined besides.
        held_out: share of the triangles kept out of the pretraining set, in (0, 1).
        rng: of everything.

    Raises:
        ValueError: for fewer than 3 vertices, a share outside (0, 1), or a split that leaves no triangle on one side.

    Example:
        >>> task = make_task(10, 4, 5, 0.25, np.random.default_rng(0))
        >>> bool(task.valid(task.shown).all()), bool(task.was_shown(task.held_out).any())
        (True, False)
    """
    if vertices < 3 or not 0 < held_out < 1:
        raise ValueError(f"needs at least 3 vertices and a share in (0, 1), got {vertices} and {held_out}")
    adjacency = np.zeros((vertices, vertices), bool)
    corners = np.array([rng.choice(vertices, 3, replace=False) for _ in range(planted)], np.int64).reshape(-1, 3)
    pairs = np.array([rng.choice(vertices, 2, replace=False) for _ in range(edges)], np.int64).reshape(-1, 2)
    for i, j in combinations(range(3), 2):
        adjacency[corners[:, i], corners[:, j]] = True
    adjacency[pairs[:, 0], pairs[:, 1]] = True
    adjacency |= adjacency.T
    found = triangles_of(adjacency)
    count = round(held_out * len(found))
    if not 0 < count < len(found):
        raise ValueError(f"{len(found)} triangles cannot be split with a share of {held_out}; plant more")
    order = rng.permutation(len(found))
    return TriangleTask(adjacency, found[np.sort(order[count:])], found[np.sort(order[:count])])


def triangles_of(adjacency: np.ndarray) -> np.ndarray:
    """All triangles (T, 3) of a graph, vertices ascending."""
    upper = np.triu(adjacency, 1)
    first, second = np.nonzero(upper)
    edge, third = np.nonzero(upper[first] & upper[second])
    return np.stack([first[edge], second[edge], third], 1)


def vertex_sets(triples: np.ndarray, vertices: int) -> np.ndarray:
    """A number for the set of vertices of triples (..., 3): equal for equal sets, whatever order or repetition."""
    a, b, c = np.moveaxis(np.sort(triples, -1), -1, 0)
    middle = np.where(b == c, a, b)  # {a, b}: a, a, b and a, b, b are one set
    return np.asarray((a.astype(np.int64) * vertices + middle) * vertices + c)


def training_strings(task: TriangleTask, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Half edges (m, 2), half shown triangles (count - m, 3), with replacement, vertices of each in random order."""
    pairs = np.argwhere(np.triu(task.adjacency))
    half = count // 2
    edges = rng.permuted(pairs[rng.integers(len(pairs), size=half)], axis=1)
    return edges, rng.permuted(task.shown[rng.integers(len(task.shown), size=count - half)], axis=1)


def judge(task: TriangleTask, samples: np.ndarray) -> Creativity:
    """Validity, uniqueness, creativity and coverage of samples (T, 3).

    Raises:
        ValueError: without samples.
    """
    if not len(samples):
        raise ValueError("there are no samples to judge")
    right = samples[task.valid(samples)]
    distinct = np.unique(vertex_sets(right, task.vertices))
    novel = np.isin(distinct, vertex_sets(task.held_out, task.vertices)).sum()
    total = len(samples)
    return Creativity(len(right) / total, len(distinct) / total, float(novel) / total, float(novel) / len(task.held_out))
