"""Smoothing by nearest neighbours: a cell becomes the mean of itself and the reference cells closest to it.

Fitted on the reference (which is the pool of neighbours) and applied to target cells one by one. Averaging is linear, so that it
may be done in the latent space as well as on the genes. With the target as its own pool it is the usual form on one data set.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

CANDIDATES: tuple[dict[str, Any], ...] = tuple({"k": k} for k in (3, 5, 7, 10, 15, 30))
"""Settings to choose from on a held-out slice of the reference; those of the published sweep."""


def denoise(reference: ArrayLike, target: ArrayLike, *, k: int) -> Floats:
    """Mean of each target cell and its k - 1 nearest reference cells.

    Args:
        reference: pool of neighbours, (n_r, m), usually the leading principal components.
        target: cells in the same coordinates, (n_t, m).
        k: cells that are averaged, the cell itself included, 1 <= k <= n_r; 1 changes nothing.

    Returns:
        smoothed target, (n_t, m).

    Raises:
        ValueError: for k out of range or coordinates that differ.

    Example:
        >>> denoise([[0.0], [1.0], [9.0]], [[0.5]], k=3).tolist()
        [[0.5]]
        >>> denoise([[0.0], [1.0], [9.0]], [[8.0]], k=2).tolist()
        [[8.5]]
    """
    pool, cells = as_cells(reference, target)
    if not 1 <= k <= len(pool):
        raise ValueError(f"k must lie in 1..{len(pool)} for {len(pool)} reference cells, got {k}")
    if k == 1:
        return cells.copy()
    return np.asarray((cells + pool[nearest(pool, cells, k - 1)[1]].sum(axis=1)) / k)


def nearest(pool: Floats, cells: Floats, k: int) -> tuple[Floats, NDArray[np.int64]]:
    """Distances and row numbers (n, k) of the k nearest of `pool`, nearest first."""
    from sklearn.neighbors import NearestNeighbors

    distances, indices = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(pool).kneighbors(cells)
    return np.asarray(distances, dtype=float), np.asarray(indices, dtype=np.int64)


def as_cells(reference: ArrayLike, target: ArrayLike) -> tuple[Floats, Floats]:
    """Both as finite float matrices with equal columns.

    Raises:
        ValueError: if they are not.
    """
    r, t = np.asarray(reference, dtype=float), np.asarray(target, dtype=float)
    if r.ndim != 2 or t.ndim != 2 or r.shape[1] != t.shape[1]:
        raise ValueError(f"reference and target need the same columns, got shapes {r.shape} and {t.shape}")
    for name, x in (("reference", r), ("target", t)):
        if not np.isfinite(x).all():
            raise ValueError(f"{name}: {int((~np.isfinite(x)).sum())} of {x.size} values are not finite")
    return r, t
