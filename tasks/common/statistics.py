"""Statistics of repeated runs: means with intervals, paired differences, and the names under which they become metrics.

A repeated quantity `name` becomes five metrics: `name` (mean), `name.lo` and `name.hi` (95 % interval), `name.se` and `name.n`.
The claim checks read exactly these, so every node that repeats something over seeds reports through `summarise` or `paired`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from tasks.common.node import Metrics


def mean_interval(values: ArrayLike, level: float = 0.95) -> tuple[float, float, float]:
    """Mean and Student-t interval of repeated runs.

    Args:
        values: one number per repetition, shape (n,), n >= 1.
        level: coverage of the interval, in (0, 1).

    Returns:
        (mean, lo, hi); with n = 1 nothing is known about the spread and lo = -inf, hi = inf.

    Raises:
        ValueError: if there are no values, one is not finite, or `level` is outside (0, 1).
    """
    from scipy import stats

    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie in (0, 1), got {level}")
    x = _finite(values)
    mean = float(x.mean())
    if x.size == 1:
        return mean, -np.inf, np.inf
    half = float(stats.t.ppf(0.5 + level / 2, x.size - 1)) * standard_error(x)
    return mean, mean - half, mean + half


def standard_error(values: ArrayLike) -> float:
    """Standard error of the mean, ddof = 1; NaN for a single value."""
    x = _finite(values)
    return float(x.std(ddof=1) / np.sqrt(x.size)) if x.size > 1 else float("nan")


def bootstrap_interval(values: ArrayLike, rng: np.random.Generator, level: float = 0.95, resamples: int = 2000) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of `values`, shape (n,)."""
    x = _finite(values)
    means = x[rng.integers(0, x.size, size=(resamples, x.size))].mean(axis=1)
    tail = (1 - level) / 2
    lo, hi = np.quantile(means, [tail, 1 - tail])
    return float(lo), float(hi)


def summarise(name: str, values: ArrayLike) -> Metrics:
    """Metrics of a quantity repeated over seeds: `name`, `name.lo`, `name.hi`, `name.se`, `name.n` (without spread when n = 1)."""
    x = _finite(values, name)
    mean, lo, hi = mean_interval(x)
    if x.size == 1:
        return {name: mean, f"{name}.n": 1.0}
    return {name: mean, f"{name}.lo": lo, f"{name}.hi": hi, f"{name}.se": standard_error(x), f"{name}.n": float(x.size)}


def paired(name: str, a: ArrayLike, b: ArrayLike) -> Metrics:
    """Metrics of the differences a - b over the same seeds, as `summarise`.

    Raises:
        ValueError: if `a` and `b` have different lengths.
    """
    x, y = _finite(a, name), _finite(b, name)
    if x.shape != y.shape:
        raise ValueError(f"{name}: paired values need the same seeds, got {x.size} and {y.size} of them")
    return summarise(name, x - y)


def pooled(groups: Sequence[ArrayLike]) -> np.ndarray:
    """Mean over groups for each seed, shape (n_seeds,): what "pooled over data sets" means when all share the seeds.

    Raises:
        ValueError: if the groups differ in length.
    """
    stacked = [_finite(g) for g in groups]
    if len({g.size for g in stacked}) != 1:
        raise ValueError(f"pooled groups need the same seeds, got lengths {[g.size for g in stacked]}")
    return np.asarray(np.mean(stacked, axis=0))


def _finite(values: ArrayLike, name: str = "values") -> np.ndarray:
    x = np.asarray(values, dtype=float).reshape(-1)
    if x.size == 0:
        raise ValueError(f"{name}: no values to summarise; run at least one repetition")
    if not np.isfinite(x).all():
        raise ValueError(f"{name}: {int((~np.isfinite(x)).sum())} of {x.size} values are not finite; count them in a metric of their own")
    return x
