"""Subsets of a training set as baselines: uniformly random rows, leverage scores, strata."""

from __future__ import annotations

import numpy as np


def random_rows(n: int, m: int, rng: np.random.Generator) -> np.ndarray:
    """Indices (m,) of a uniformly random subset without replacement.

    Raises:
        ValueError: unless 1 <= m <= n.
    """
    if not 1 <= m <= n:
        raise ValueError(f"subset size m must lie in 1..{n}, got {m}")
    return rng.choice(n, size=m, replace=False)


def leverage_scores(rows: np.ndarray) -> np.ndarray:
    """Leverage zeta_i^T (Z^T Z)^+ zeta_i of rows Z (n, q), shape (n,); they sum to the rank of Z.

    Raises:
        ValueError: for numbers that are not finite.

    Example:
        >>> leverage_scores(np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])).round(12).tolist()
        [1.0, 1.0, 0.0]
    """
    if not np.isfinite(rows).all():
        raise ValueError("rows hold numbers that are not finite; drop or impute those first")
    return np.asarray(np.einsum("ip,pq,iq->i", rows, np.linalg.pinv(rows.T @ rows, hermitian=True), rows))


def leverage_rows(rows: np.ndarray, m: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """M indices drawn with replacement by leverage, and the factors 1 / sqrt(n p_i) that keep the second moment unbiased.

    Args:
        rows: Z, (n, q).
        m: number of draws, >= 1.
        rng: generator.

    Returns:
        (indices (m,), factors (m,)).

    Raises:
        ValueError: for m < 1, numbers that are not finite, or rows that are all zero.
    """
    if m < 1:
        raise ValueError(f"subset size m must be at least 1, got {m}")
    scores = leverage_scores(rows)
    if not scores.sum() > 0:
        raise ValueError("all rows are zero; there is nothing to draw by leverage")
    p = scores / scores.sum()
    picked = rng.choice(len(rows), size=m, replace=True, p=p)
    return picked, 1.0 / np.sqrt(len(rows) * p[picked])


def stratified_rows(strata: np.ndarray, m: int, rng: np.random.Generator) -> np.ndarray:
    """Indices (m,) of a random subset with each stratum's share, and at least one row of every stratum if m allows.

    Shares are rounded by largest remainder.

    Args:
        strata: label of each row, (n,).
        m: size, 1 <= m <= n.
        rng: generator.

    Example:
        >>> labels = np.array([0] * 98 + [1] * 2)
        >>> int(labels[stratified_rows(labels, 10, np.random.default_rng(0))].sum())
        1
    """
    n = len(strata)
    if not 1 <= m <= n:
        raise ValueError(f"subset size m must lie in 1..{n}, got {m}")
    labels, counts = np.unique(strata, return_counts=True)
    exact = m * counts / n
    sizes = np.floor(exact).astype(int)
    if m >= len(labels):
        sizes = np.maximum(sizes, 1)
    while sizes.sum() < m:
        sizes[np.argmax(np.where(sizes < counts, exact - sizes, -np.inf))] += 1
    while sizes.sum() > m:
        sizes[np.argmin(np.where(sizes > 1, exact - sizes, np.inf))] -= 1
    picked = [rng.choice(np.flatnonzero(strata == label), size=size, replace=False) for label, size in zip(labels, sizes, strict=True)]
    return np.concatenate(picked)
