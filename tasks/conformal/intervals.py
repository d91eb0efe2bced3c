"""Prediction intervals around two quantile models, and unions of intervals.

Sets are arrays `lo`, `hi` of shape (n,), or (n, k) for up to k disjoint pieces a row; an empty piece has lo = +inf and
hi = -inf, an unbounded one lo = -inf and hi = +inf.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.conformal.quantiles import Floats, as_numbers, check_lengths


def cqr_scores(y: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> Floats:
    """Scores of conformalised quantile regression, max(l(x) - y, y - u(x)), (n,). Romano, Patterson & Candes (2019).

    Raises:
        ValueError: for different lengths.

    >>> cqr_scores([0.0, 5.0], [1.0, 1.0], [3.0, 3.0]).tolist()
    [1.0, 2.0]
    """
    y_, l_, u_ = (as_numbers(a, name).reshape(-1) for name, a in (("y", y), ("lower", lower), ("upper", upper)))
    check_lengths(y=y_, lower=l_, upper=u_)
    return np.asarray(np.maximum(l_ - y_, y_ - u_))


def cqr_interval(lower: ArrayLike, upper: ArrayLike, threshold: ArrayLike) -> tuple[Floats, Floats]:
    """The set {y: S(x, y) <= Q} = [l - Q, u + Q] of every row; empty where a negative Q makes the ends cross.

    Args:
        lower: lower quantile model's output, (n,).
        upper: upper one's, (n,).
        threshold: Q, one number or one per row (n,).

    Raises:
        ValueError: for different lengths or a threshold that is NaN.

    >>> cqr_interval([0.0, 0.0], [1.0, 4.0], -1.0)
    (array([inf,  1.]), array([-inf,   3.]))
    """
    l_, u_, q = (as_numbers(a, name).reshape(-1) for name, a in (("lower", lower), ("upper", upper), ("threshold", threshold)))
    if np.isnan(q).any():
        raise ValueError(f"threshold: {int(np.isnan(q).sum())} of {q.size} are NaN")
    q = np.full(l_.size, q[0]) if np.ndim(threshold) == 0 else q
    check_lengths(lower=l_, upper=u_, threshold=q)
    lo, hi = l_ - q, u_ + q
    empty = lo > hi
    return np.where(empty, np.inf, lo), np.where(empty, -np.inf, hi)


def covers(y: ArrayLike, lo: ArrayLike, hi: ArrayLike) -> NDArray[np.bool_]:
    """Whether each set holds its label, (n,); sets are (n,) or (n, k).

    Raises:
        ValueError: for different lengths.

    >>> covers([1.0, 9.0], np.array([0.0, 0.0]), np.array([2.0, 2.0])).tolist()
    [True, False]
    """
    y_, low, high = as_numbers(y, "y").reshape(-1, 1), as_numbers(lo, "lo"), as_numbers(hi, "hi")
    low, high = (a[:, None] if a.ndim == 1 else a for a in (low, high))
    check_lengths(y=y_, lo=low, hi=high)
    return np.asarray(((low <= y_) & (y_ <= high)).any(axis=1))


def lengths(lo: Floats, hi: Floats) -> Floats:
    """Length of each set, (n,): 0 for an empty one, never negative; pieces are taken as disjoint.

    >>> lengths(np.array([0.0, np.inf]), np.array([2.0, -np.inf])).tolist()
    [2.0, 0.0]
    """
    piece = np.where(lo <= hi, hi - lo, 0.0)
    return piece if piece.ndim == 1 else np.asarray(piece.sum(axis=1))


def union(*sets: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Union of interval sets over the same rows, as disjoint pieces sorted from left to right.

    Args:
        sets: `(lo, hi)`, each (n,).

    Returns:
        `(lo, hi)`, each (n, k) for k sets; pieces that were merged away are empty.

    Raises:
        ValueError: for no sets, sets of several pieces, or different lengths.

    >>> lo, hi = union((np.array([0.0]), np.array([2.0])), (np.array([5.0]), np.array([6.0])), (np.array([1.0]), np.array([3.0])))
    >>> lo.tolist(), hi.tolist()
    ([[0.0, 5.0, inf]], [[3.0, 6.0, -inf]])
    """
    if not sets:
        raise ValueError("sets is empty; a union needs at least one")
    if any(np.ndim(end) != 1 for s in sets for end in s):
        raise ValueError(f"sets must be single intervals (n,), got {[tuple(map(np.shape, s)) for s in sets]}")
    check_lengths(**{f"{end} of set {i}": s[side] for i, s in enumerate(sets) for side, end in enumerate(("lo", "hi"))})
    lo, hi = (np.stack([s[side] for s in sets], axis=1) for side in (0, 1))  # (n, k)
    lo, hi = np.where(lo > hi, np.inf, lo), np.where(lo > hi, -np.inf, hi)
    order = np.argsort(lo, axis=1, kind="stable")
    lo, hi = np.take_along_axis(lo, order, axis=1), np.take_along_axis(hi, order, axis=1)
    for j in range(1, lo.shape[1]):
        # Piece j swallows piece j - 1, which started to its left, when they touch; empty pieces (lo = +inf) touch nothing.
        touch = (lo[:, j] <= hi[:, j - 1]) & (lo[:, j] <= hi[:, j])
        lo[:, j] = np.where(touch, lo[:, j - 1], lo[:, j])
        hi[:, j] = np.where(touch, np.maximum(hi[:, j - 1], hi[:, j]), hi[:, j])
        lo[:, j - 1] = np.where(touch, np.inf, lo[:, j - 1])
        hi[:, j - 1] = np.where(touch, -np.inf, hi[:, j - 1])
    order = np.argsort(lo, axis=1, kind="stable")
    return np.take_along_axis(lo, order, axis=1), np.take_along_axis(hi, order, axis=1)
