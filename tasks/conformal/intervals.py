"""Prediction intervals around two quantile models, and unions of intervals.

Sets are arrays `lo`, `hi` of shape (n,), or (n, k) for up to k disjoint pieces a row; an empty piece has lo = +inf and
hi = -inf, an unbounded one lo = -inf and hi = +inf.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.conformal.quantiles import Floats, check_lengths


def cqr_scores(y: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> Floats:
    """Scores of conformalised quantile regression, max(l(x) - y, y - u(x)), (n,). Romano, Patterson & Candes (2019).

    >>> cqr_scores([0.0, 5.0], [1.0, 1.0], [3.0, 3.0]).tolist()
    [1.0, 2.0]
    """
    y_, l_, u_ = (np.asarray(a, dtype=float).reshape(-1) for a in (y, lower, upper))
    check_lengths(y=y_, lower=l_, upper=u_)
    return np.asarray(np.maximum(l_ - y_, y_ - u_))


def cqr_interval(lower: ArrayLike, upper: ArrayLike, threshold: ArrayLike) -> tuple[Floats, Floats]:
    """The set {y: S(x, y) <= Q} = [l - Q, u + Q] of every row; empty where a negative Q makes the ends cross.

    Args:
        lower: lower quantile model's output, (n,).
        upper: upper one's, (n,).
        threshold: Q, one number or one per row (n,).

    >>> cqr_interval([0.0, 0.0], [1.0, 4.0], -1.0)
    (array([inf,  1.]), array([-inf,   3.]))
    """
    l_, u_, q = (np.asarray(a, dtype=float) for a in (lower, upper, threshold))
    lo, hi = np.broadcast_arrays(l_ - q, u_ + q)
    empty = lo > hi
    return np.where(empty, np.inf, lo), np.where(empty, -np.inf, hi)


def covers(y: ArrayLike, lo: Floats, hi: Floats) -> NDArray[np.bool_]:
    """Whether each set holds its label, (n,).

    >>> covers([1.0, 9.0], np.array([0.0, 0.0]), np.array([2.0, 2.0])).tolist()
    [True, False]
    """
    y_ = np.asarray(y, dtype=float)
    check_lengths(y=y_, lo=lo, hi=hi)
    if lo.ndim == 1:
        return np.asarray((lo <= y_) & (y_ <= hi))
    return np.asarray(((lo <= y_[:, None]) & (y_[:, None] <= hi)).any(axis=1))


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
        ValueError: for no sets or different lengths.

    >>> lo, hi = union((np.array([0.0]), np.array([2.0])), (np.array([5.0]), np.array([6.0])), (np.array([1.0]), np.array([3.0])))
    >>> lo.tolist(), hi.tolist()
    ([[0.0, 5.0, inf]], [[3.0, 6.0, -inf]])
    """
    if not sets:
        raise ValueError("sets is empty; a union needs at least one")
    check_lengths(**{f"set {i}": s[0] for i, s in enumerate(sets)})
    lo, hi = (np.stack([s[side] for s in sets], axis=1) for side in (0, 1))  # (n, k)
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
