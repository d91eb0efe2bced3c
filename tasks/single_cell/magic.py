"""MAGIC: diffusion of values along a graph of similar cells (van Dijk et al., 2018), fitted on a reference.

The graph joins reference cells by a kernel whose width adapts to the local density; a random walk on it smooths. A target cell
enters by one step from itself to the reference, and t - 1 steps follow there. With the target as its own reference this is the
usual form: the first step then may stay at the cell itself, as every step on the graph may.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tasks.single_cell.knn_smoothing import Floats, as_cells, nearest

CANDIDATES: tuple[dict[str, Any], ...] = tuple({"k": k, "t": t} for k, t in product((5, 10, 15), (1, 3)))
"""Settings to choose from on a held-out slice of the reference; t = 3 is the usual one."""

REACH = 3
"""Edges go to the REACH * k nearest cells at most."""

SAME = 1e-5
"""A pool cell this close, against the farthest one considered, is the cell itself: rounding leaves no exact zero."""


def denoise(reference: ArrayLike, target: ArrayLike, *, k: int = 5, t: int = 3, decay: float = 1.0) -> Floats:
    """Values of target cells after t steps of the random walk.

    Args:
        reference: cells of the graph, (n_r, m), usually the leading principal components (the walk is linear in the values).
        target: cells in the same coordinates, (n_t, m).
        k: the kernel's width is the distance to the k-th nearest other cell, 1 <= k < n_r.
        t: steps, >= 1.
        decay: exponent of the kernel exp(-(distance / width)^decay), > 0; 2 is Gaussian.

    Returns:
        smoothed target, (n_t, m), inside the convex hull of the reference.

    Raises:
        ValueError: for settings out of range or coordinates that differ.

    Example:
        >>> denoise([[0.0], [1.0], [10.0], [11.0]], [[0.4], [10.6]], k=1, t=1).round(1).tolist()
        [[0.4], [10.6]]
    """
    pool, cells = as_cells(reference, target)
    if not 1 <= k < len(pool):
        raise ValueError(f"k must lie in 1..{len(pool) - 1} for {len(pool)} reference cells, got {k}")
    if t < 1 or decay <= 0:
        raise ValueError(f"need t >= 1 steps and decay > 0, got {t} and {decay}")
    values = pool
    if t > 1:
        walk = transition(pool, k, decay)
        for _ in range(t - 1):
            values = walk @ values
    entry = kernel(pool, cells, k, decay)
    return np.asarray(_rows_to_one(entry) @ values)


def transition(pool: Floats, k: int, decay: float) -> Any:
    """Random walk (n, n) on the graph of the cells themselves: symmetrised kernel, rows summing to one, sparse."""
    one_way = kernel(pool, pool, k, decay)
    return _rows_to_one(one_way + one_way.T)


def kernel(pool: Floats, cells: Floats, k: int, decay: float) -> Any:
    """Affinity (n, n_pool) of cells to their nearest pool cells, sparse CSR.

    The width is the distance to the k-th nearest pool cell, one that coincides with the cell itself not counted.
    """
    from scipy.sparse import csr_matrix

    count = min(REACH * k + 1, len(pool))
    distances, indices = nearest(pool, cells, count)
    # A cell of the pool finds itself first; its k-th neighbour is then the next in the row.
    itself = distances[:, 0] <= SAME * distances[:, -1]
    distances[itself, 0] = 0.0
    width = distances[np.arange(len(cells)), np.where(itself, k, k - 1)]
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(distances > 0, distances / width[:, None], 0.0)
    affinity = np.exp(-np.power(relative, decay))
    rows = np.repeat(np.arange(len(cells)), count)
    return csr_matrix((affinity.reshape(-1), (rows, indices.reshape(-1))), shape=(len(cells), len(pool)))


def _rows_to_one(matrix: Any) -> Any:
    from scipy.sparse import diags

    return (diags(1.0 / np.asarray(matrix.sum(axis=1)).reshape(-1)) @ matrix).tocsr()
