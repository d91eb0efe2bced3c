"""Uncertain imputation (UI): a corrupted label is replaced by a prediction plus a random residual of rows with a like Z.

Feldman, Bates & Romano (2026), Algorithm 1 and Theorem 4. A point prediction in place of a missing label is too sure of
itself: scores come out too small and sets too narrow. Adding a residual drawn from clean reference rows with the same
privileged information restores the spread, and needs no weight at all. This module knows residuals and draws, not models.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.conformal.quantiles import Floats, as_numbers, check_lengths, check_mask, check_numbers

CLUSTERS = 20
MOST_DISTINCT = 20
"""A reference Z with at most this many distinct values is matched exactly; one with more is clustered."""
SMALLEST_POOL = 5
NEIGHBOURS = 20
FALLBACK_WARNING = 0.2
"""Share of imputed rows without a pool of their own above which the reference set does not know the corrupted part of Z."""
LARGEST_TABLE = 10_000_000
"""Distances that are held at once."""


class ResidualPools:
    """Residuals of clean reference rows, grouped by privileged information.

    Args:
        z: privileged information of all reference rows, (n, d) or (n,). At most 20 distinct values are matched exactly, and a
            value that never occurred has an empty pool; with more values, Z is clustered.
        residuals: Y - g(X, Z) of the reference rows, (n,); those of corrupted rows are not read and may be NaN.
        masked: True where the reference label is corrupted, (n,).
        clusters: pools of a Z with many values (k-means on standardised Z); 1 makes one global pool of any Z.
        seed: seed of k-means.
        neighbours: nearest clean reference rows that stand in for a pool of fewer than 5.

    Raises:
        ValueError: when no reference row is clean, for NaN, different lengths, fewer than one cluster or neighbour.

    >>> pools = ResidualPools([0, 0, 1, 1], [-1.0, 1.0, 5.0, 7.0], np.zeros(4, bool), clusters=1)
    >>> pools.draw([0, 1], np.array([0.9, 0.1])).tolist()
    [7.0, -1.0]
    """

    def __init__(
        self,
        z: ArrayLike,
        residuals: ArrayLike,
        masked: ArrayLike,
        clusters: int = CLUSTERS,
        seed: int = 0,
        neighbours: int = NEIGHBOURS,
    ) -> None:
        points, m = as_columns(z), check_mask(masked)
        e = np.asarray(residuals, dtype=float).reshape(-1)
        check_lengths(z=points, residuals=e, masked=m)
        if min(clusters, neighbours) < 1:
            raise ValueError(f"clusters and neighbours must be at least 1, got {clusters} and {neighbours}")
        if m.all():
            raise ValueError(f"masked: the reference set has no clean row among {m.size}; no residual can be drawn")
        check_numbers(e[~m], "residuals")
        self._neighbours = neighbours
        # A constant column may have a standard deviation of 1e-17 rather than 0.
        self._shift, self._scale = points.mean(axis=0), np.where(np.ptp(points, axis=0) > 0, points.std(axis=0), 1.0)
        scaled = self._scaled(points)
        distinct = np.unique(scaled, axis=0)
        self._exact = len(distinct) <= MOST_DISTINCT and clusters > 1
        self._centres = distinct if self._exact else _cluster_centres(scaled, min(clusters, len(distinct)), seed)
        self._clean_z, self._residuals = scaled[~m], e[~m]
        label = self._pool_of(self._clean_z)
        self.pools = [np.sort(self._residuals[label == k]) for k in range(len(self._centres))]

    def draw(self, z: ArrayLike, uniforms: Floats) -> Floats:
        """One residual for every row.

        Args:
            z: privileged information, (m, d) or (m,).
            uniforms: one number in [0, 1) per row, which picks the residual from the row's pool, (m,). Numbers belong to
                rows, not to positions, so that the order of rows changes nothing.

        Returns:
            residuals, (m,). A row whose pool has fewer than 5 takes one of the 20 nearest clean reference rows (ties by row
            order; all of them if there are fewer).

        Raises:
            ValueError: for different lengths, uniforms outside [0, 1), or a z of other columns than the reference rows'.
        """
        scaled, u = self._scaled(as_columns(z)), np.asarray(uniforms, dtype=float).reshape(-1)
        check_lengths(z=scaled, uniforms=u)
        if not ((u >= 0) & (u < 1)).all():
            raise ValueError("uniforms must lie in [0, 1)")
        pool, small = self._pool_of(scaled), self._small(scaled)
        drawn = np.empty(len(u))
        for k in np.unique(pool[~small]):
            rows = (pool == k) & ~small
            drawn[rows] = self.pools[k][(u[rows] * self.pools[k].size).astype(int)]
        if small.any():
            for rows in np.array_split(np.flatnonzero(small), 1 + small.sum() * len(self._clean_z) // LARGEST_TABLE):
                near = np.sort(self._residuals[self._nearest(scaled[rows])], axis=1)  # (m, neighbours)
                drawn[rows] = near[np.arange(len(near)), (u[rows] * near.shape[1]).astype(int)]
        return drawn

    def fallback(self, z: ArrayLike) -> NDArray[np.bool_]:
        """Rows whose pool is too small, so that their residual comes from the nearest clean reference rows, (m,)."""
        return self._small(self._scaled(as_columns(z)))

    def _scaled(self, points: Floats) -> Floats:
        if points.shape[1] != self._shift.size:
            raise ValueError(f"z has {points.shape[1]} columns, the reference rows have {self._shift.size}")
        return np.asarray((points - self._shift) / self._scale)

    def _pool_of(self, scaled: Floats) -> NDArray[np.intp]:
        return np.asarray(_squared_distances(scaled, self._centres).argmin(axis=1))

    def _small(self, scaled: Floats) -> NDArray[np.bool_]:
        size = np.array([pool.size for pool in self.pools])
        small = size[self._pool_of(scaled)] < SMALLEST_POOL
        if self._exact:
            small |= _squared_distances(scaled, self._centres).min(axis=1) > 0
        return np.asarray(small)

    def _nearest(self, scaled: Floats) -> NDArray[np.intp]:
        count = min(self._neighbours, len(self._clean_z))
        return np.argsort(_squared_distances(scaled, self._clean_z), axis=1, kind="stable")[:, :count]


def impute(prediction: ArrayLike, y: ArrayLike, masked: ArrayLike, residuals: ArrayLike | float = 0.0) -> Floats:
    """Labels with the corrupted ones replaced: Y where clean, prediction + residual where not, (n,).

    With residuals of 0 this is naive imputation; with residuals from `ResidualPools.draw` it is uncertain imputation.

    Args:
        prediction: g(X, Z), (n,).
        y: observed labels, (n,); those of corrupted rows are not read and may be NaN.
        masked: True where the label is corrupted, (n,).
        residuals: one number or (n,).

    Raises:
        ValueError: for different lengths or a mask that is not boolean.

    >>> impute([1.0, 1.0], [5.0, np.nan], np.array([False, True]), 0.5).tolist()
    [5.0, 1.5]
    """
    g, label, m = as_numbers(prediction, "prediction").reshape(-1), as_numbers(y, "y").reshape(-1), check_mask(masked)
    residual = as_numbers(residuals, "residuals")
    residual = np.full(g.size, residual) if residual.ndim == 0 else residual.reshape(-1)
    check_lengths(prediction=g, y=label, masked=m, residuals=residual)
    return np.where(m, g + residual, label)


def as_columns(z: ArrayLike) -> Floats:
    """Privileged information as (n, d), from (n,) or (n, d).

    Raises:
        ValueError: for words (give categories as numbers), other shapes, NaN or infinite values.
    """
    points = as_numbers(z, "z")
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or points.shape[1] == 0:
        raise ValueError(f"z must have shape (n,) or (n, d), got {np.shape(z)}")
    if not np.isfinite(points).all():
        raise ValueError(f"z: {int((~np.isfinite(points)).sum())} of {points.size} values are not finite")
    return points


def _cluster_centres(scaled: Floats, clusters: int, seed: int) -> Floats:
    from sklearn.cluster import KMeans

    ordered = scaled[np.lexsort(scaled.T)]  # k-means starts from rows it picks by position; sorting makes it forget their order
    return np.asarray(KMeans(clusters, n_init=1, random_state=seed).fit(ordered).cluster_centers_)


def _squared_distances(a: Floats, b: Floats) -> Floats:
    return np.asarray(((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2))
