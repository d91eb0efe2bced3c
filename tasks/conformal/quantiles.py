"""Conformal thresholds: the smallest score that leaves enough probability mass below it, exactly and without interpolation.

A threshold is a number Q such that the set {y: S(x, y) <= Q} has the wanted coverage. The point at which the test row itself
would sit is put on +infinity, so a threshold is infinite when the calibration rows are too few; nobody hides that.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

SLACK = 1e-12
"""Share of the mass that rounding may cost before an exactly reached level counts as missed."""


def check_level(alpha: float, name: str = "alpha") -> float:
    """Return a miscoverage level, or refuse it.

    Raises:
        ValueError: unless 0 < alpha < 1, naming the argument.
    """
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"{name} must lie in (0, 1), got {alpha}")
    return float(alpha)


def check_numbers(values: ArrayLike, name: str) -> Floats:
    """A flat array of at least one number without NaN; +infinity is allowed.

    Raises:
        ValueError: naming the argument.
    """
    x = as_numbers(values, name).reshape(-1)
    if x.size == 0:
        raise ValueError(f"{name} is empty; give at least one row")
    if np.isnan(x).any():
        raise ValueError(f"{name}: {int(np.isnan(x).sum())} of {x.size} are NaN")
    return x


def as_numbers(values: ArrayLike, name: str) -> Floats:
    """An array of floats, of any shape.

    Raises:
        ValueError: for words and the like, naming the argument.
    """
    try:
        return np.asarray(values, dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers: {error}") from error


def check_mask(masked: ArrayLike, name: str = "masked") -> NDArray[np.bool_]:
    """A flat boolean array, True where a label is corrupted.

    Raises:
        ValueError: if it holds anything but booleans, naming the argument.
    """
    m = np.asarray(masked)
    if m.dtype != np.bool_:
        raise ValueError(f"{name} must be boolean (True = corrupted), got {m.dtype}")
    return m.reshape(-1)


def check_lengths(**arrays: NDArray[Any]) -> None:
    """Refuse arrays of different lengths.

    Raises:
        ValueError: naming every argument with its length.
    """
    lengths = {name: len(a) for name, a in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError("arguments need one row each, got lengths " + ", ".join(f"{k} {v}" for k, v in lengths.items()))


def conformal_rank(n: int, alpha: float) -> int:
    """Rank (from 1) of the threshold among n scores; above n the threshold is infinite.

    >>> conformal_rank(9, 0.1), conformal_rank(8, 0.1)
    (9, 9)
    """
    return max(1, math.ceil((n + 1) * (1.0 - alpha - SLACK)))


def conformal_quantile(scores: ArrayLike, alpha: float) -> float:
    """Split-conformal threshold: the ceil((n + 1)(1 - alpha))-th smallest of n scores, +inf if there is none.

    Vovk, Gammerman & Shafer (2005); P(S_new <= Q) >= 1 - alpha for exchangeable scores.

    Args:
        scores: calibration scores, (n,), n >= 1.
        alpha: miscoverage level in (0, 1).

    Raises:
        ValueError: for no scores, NaN, or alpha outside (0, 1).

    >>> conformal_quantile(range(1, 10), 0.1), conformal_quantile(range(1, 9), 0.1)
    (9.0, inf)
    """
    check_level(alpha)
    s = check_numbers(scores, "scores")
    rank = conformal_rank(s.size, alpha)
    return float(np.partition(s, rank - 1)[rank - 1]) if rank <= s.size else math.inf


def weighted_quantile(scores: ArrayLike, weights: ArrayLike, test_weights: ArrayLike, level: float) -> Floats:
    """Weighted conformal thresholds, one per test weight.

    Tibshirani, Barber, Candes & Ramdas (2019): mass w_i / (sum w + w_test) on score S_i and the rest on +inf; the threshold
    is the smallest score at which the cumulated mass reaches `level`.

    Args:
        scores: calibration scores, (n,).
        weights: their weights >= 0, (n,).
        test_weights: weight of each test row >= 0, (m,) or a number.
        level: mass to reach, in (0, 1); 1 - alpha.

    Returns:
        thresholds, (m,), +inf where the scores do not carry enough mass.

    Raises:
        ValueError: for NaN, negative weights, different lengths, a level outside (0, 1), or weights that are all 0.

    >>> weighted_quantile([1, 2, 3], [1, 1, 2], [0, 4], 0.5).tolist()
    [2.0, 3.0]
    """
    check_level(level, "level")
    s, w = check_numbers(scores, "scores"), check_weights(weights, "weights")
    check_lengths(scores=s, weights=w)
    t = check_weights(test_weights, "test_weights")
    order = np.argsort(s, kind="stable")
    # Tied scores need no merging here: the first index that reaches the level carries the same score as its ties.
    mass = np.cumsum(w[order])
    total = mass[-1] + t
    if (total <= 0).any():
        raise ValueError("weights and test_weights are all 0; nothing carries mass")
    index = np.searchsorted(mass, (level - SLACK) * total, side="left")
    return np.asarray(np.append(s[order], np.inf)[index])


def check_weights(weights: ArrayLike, name: str) -> Floats:
    """A flat array of finite weights >= 0.

    Raises:
        ValueError: naming the argument and the smallest or infinite value.
    """
    w = check_numbers(weights, name)
    if w.min() < 0 or not np.isfinite(w).all():
        raise ValueError(f"{name} must be finite and >= 0, got values from {w.min()} to {w.max()}")
    return w
