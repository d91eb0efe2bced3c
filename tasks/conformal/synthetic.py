"""Synthetic problems whose truth is known: weights that are hard to learn, three ways to be right, a shifted score law.

All corruption depends on privileged information Z alone, so (X, Y) is independent of the corruption given Z.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.conformal.quantiles import Floats


@dataclass(frozen=True)
class Sample:
    """Rows of a synthetic problem: x (n, d), z (n,), true labels y (n,), corruption probability p (n,), masked (n,)."""

    x: Floats
    z: Floats
    y: Floats
    probability: Floats
    masked: NDArray[np.bool_]


def hard_weights(n: int, rng: np.random.Generator) -> Sample:
    """Problem S1: corruption is symmetric in Z, so that no classifier linear in Z can see it; the label is linear in (X, Z).

    X ~ U(-1, 1)^5, Z ~ N(0, 1), Y = X1 - X2 + X3 / 2 + 2 Z + N(0, 1), P(M=1 | Z) = 0.8 where |Z| > 1, else 0.05.

    >>> sample = hard_weights(20_000, np.random.default_rng(0))
    >>> round(float(sample.masked.mean()), 1)
    0.3
    """
    x, z = rng.uniform(-1.0, 1.0, (n, 5)), rng.standard_normal(n)
    y = x[:, 0] - x[:, 1] + 0.5 * x[:, 2] + 2.0 * z + rng.standard_normal(n)
    p = np.where(np.abs(z) > 1.0, 0.8, 0.05)
    return Sample(x, z, y, p, rng.random(n) < p)


def three_ways(n: int, rng: np.random.Generator) -> Sample:
    """Problem S2: Y is independent of M given X as well, so that each of three models alone can make the sets valid.

    X ~ N(0, I_5), Z = X1 + N(0, 0.2^2), Y ~ N(X2 + X1 / 2, sd(X)^2), sd = 3 where X1 > 0.5, else 0.5; P(M=1 | Z) = 0.8 where
    Z > 0.5, else 0.05.

    >>> sample = three_ways(20_000, np.random.default_rng(0))
    >>> mean, sd = three_ways_law(sample.x)
    >>> round(float(((sample.y - mean) / sd).std()), 1)
    1.0
    """
    x = rng.standard_normal((n, 5))
    z = x[:, 0] + 0.2 * rng.standard_normal(n)
    mean, sd = three_ways_law(x)
    p = np.where(z > 0.5, 0.8, 0.05)
    return Sample(x, z, mean + sd * rng.standard_normal(n), p, rng.random(n) < p)


def three_ways_law(x: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of Y given X in `three_ways`, each (n,).

    >>> mean, sd = three_ways_law(np.array([[1.0, 2.0, 0.0, 0.0, 0.0]]))
    >>> mean.tolist(), sd.tolist()
    ([2.5], [3.0])
    """
    return x[:, 1] + 0.5 * x[:, 0], np.where(x[:, 0] > 0.5, 3.0, 0.5)


WIDE_SHARE, WIDE_SD, NARROW_SD = 0.4, 3.0, 1.0
SHIFTS: dict[str, tuple[float, float]] = {"under": (0.6, 0.1), "over": (0.1, 0.6), "none": (0.3, 0.3)}
"""P(M=1) of wide and narrow rows in `shifted_scores`: naive sets under-cover, over-cover, or are exact."""


@dataclass(frozen=True)
class ScoreSample:
    """Calibration scores |Y| (n,), true weights (n,) of mean about 1 over clean rows, masked (n,)."""

    scores: Floats
    weights: Floats
    masked: NDArray[np.bool_]


def shifted_scores(n: int, case: str, rng: np.random.Generator) -> ScoreSample:
    """Problem S3: Z ~ U(0, 1), Y = sd N(0, 1) with sd = 3 where Z > 0.6, else 1; score |Y|.

    Args:
        n: rows.
        case: one of `SHIFTS`.
        rng: source of randomness.

    Raises:
        KeyError: for an unknown case, listing the known ones.

    >>> sample = shifted_scores(50_000, "under", np.random.default_rng(0))
    >>> round(float(sample.weights[~sample.masked].mean()), 1)
    1.0
    """
    if case not in SHIFTS:
        raise KeyError(f"unknown case {case!r}; known: {', '.join(SHIFTS)}")
    wide_p, narrow_p = SHIFTS[case]
    wide = rng.random(n) > 1.0 - WIDE_SHARE
    scores = np.abs(np.where(wide, WIDE_SD, NARROW_SD) * rng.standard_normal(n))
    p = np.where(wide, wide_p, narrow_p)
    clean_rate = 1.0 - (WIDE_SHARE * wide_p + (1.0 - WIDE_SHARE) * narrow_p)
    return ScoreSample(scores, clean_rate / (1.0 - p), rng.random(n) < p)


def shifted_coverage(threshold: ArrayLike) -> Floats:
    """Exact coverage P(|Y| <= Q) of a threshold in `shifted_scores`: a mixture of two half-normal laws.

    >>> float(shifted_coverage(np.inf)), float(shifted_coverage(0.0))
    (1.0, 0.0)
    """
    from scipy.stats import halfnorm

    q = np.asarray(threshold, dtype=float)
    return np.asarray(WIDE_SHARE * halfnorm.cdf(q, scale=WIDE_SD) + (1.0 - WIDE_SHARE) * halfnorm.cdf(q, scale=NARROW_SD))
