"""What wrong weights do to PCP: the exact error regions of Theorems 2 and 3 of Feldman, Bates & Romano (2026).

With wrong weights w + delta, the weighted law of the scores is F~ = F_w + D / (W + D) (F_d - F_w), where W sums the true
weights, D the errors, both over the clean rows and the test row, and F_d is the signed law with masses delta_i / D. For one
constant error this is a mixture of the right law and the unweighted one. Wrong weights can make masses negative, so the
functions here, unlike the methods, accept signed weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tasks.conformal.quantiles import SLACK, Floats, check_lengths, check_level, check_numbers, check_weights, weighted_quantile


@dataclass(frozen=True)
class SignedQuantile:
    """Threshold of a signed law, and how far its cumulated mass falls below the level again afterwards (0 for a true law)."""

    threshold: float
    violation: float


def signed_weighted_quantile(scores: ArrayLike, weights: ArrayLike, test_weight: float, level: float) -> SignedQuantile:
    """Smallest score at which the cumulated mass first reaches the level, for weights of any sign.

    Args:
        scores: (n,).
        weights: (n,), any sign.
        test_weight: weight of the test row, whose mass sits on +inf.
        level: in (0, 1).

    Raises:
        ValueError: for NaN, infinite weights, different lengths, or weights that sum to 0.

    >>> signed_weighted_quantile([1.0, 2.0, 3.0], [2.0, -1.0, 2.0], 1.0, 0.5)
    SignedQuantile(threshold=1.0, violation=0.25)
    """
    check_level(level, "level")
    points, mass = signed_law(scores, weights, test_weight)
    reached = np.flatnonzero(mass >= level - SLACK)
    if reached.size == 0:
        return SignedQuantile(np.inf, 0.0)
    first = int(reached[0])
    return SignedQuantile(float(points[first]), max(0.0, level - float(mass[first:].min())))


def signed_law(scores: ArrayLike, weights: ArrayLike, test_weight: float) -> tuple[Floats, Floats]:
    """Distinct scores (k,) and the cumulated mass up to and including each (k,); the rest of the mass sits on +inf.

    Raises:
        ValueError: for NaN, infinite weights, different lengths, or weights that sum to 0.

    >>> points, mass = signed_law([2.0, 1.0, 2.0], [1.0, 1.0, 1.0], 1.0)
    >>> points.tolist(), mass.tolist()
    ([1.0, 2.0], [0.25, 0.75])
    """
    s, w = check_numbers(scores, "scores"), _check_signed(weights, "weights")
    check_lengths(scores=s, weights=w)
    total = float(w.sum() + _check_signed(test_weight, "test_weight")[0])
    if total == 0.0:
        raise ValueError("weights and test_weight sum to 0; their law is undefined")
    order = np.argsort(s, kind="stable")
    s, mass = s[order], np.cumsum(w[order]) / total
    last = np.append(s[1:] != s[:-1], True)
    return s[last], mass[last]


def _check_signed(weights: ArrayLike, name: str) -> Floats:
    w = check_numbers(weights, name)
    if not np.isfinite(w).all():
        raise ValueError(f"{name} must be finite, got values from {w.min()} to {w.max()}")
    return w


def constant_error_effect(delta: float, mean_weight: float) -> int:
    """Theorem 2: which way a constant error moves the threshold, from the right one (true weights) seen.

    Args:
        delta: error added to every weight, test weight included.
        mean_weight: W / (n + 1), the mean true weight over the clean rows and the test row.

    Returns:
        +1: beyond the right threshold, on the side away from the unweighted one. -1: towards the unweighted one, or past it.
        0: no error. So where unweighted sets are too small, PCP is valid exactly for results >= 0; where they are too
        large, exactly for results <= 0.

    Raises:
        ValueError: at delta = -W / (n + 1), where all mass cancels; for NaN or a mean weight that is not positive.

    >>> [constant_error_effect(d, 1.0) for d in (-2.0, -0.5, 0.0, 0.5)]
    [-1, 1, 0, -1]
    """
    _check_signed(delta, "delta")
    if not mean_weight > 0.0:
        raise ValueError(f"mean_weight must be positive, got {mean_weight}")
    if delta == 0.0:
        return 0
    if delta == -mean_weight:
        raise ValueError(f"delta = {delta} cancels all weights; the weighted law is undefined there")
    return 1 if -mean_weight < delta < 0.0 else -1


@dataclass(frozen=True)
class WeightErrorReport:
    """Theorem 3 in numbers.

    Attributes:
        error_sum: D, the sum of all weight errors, test row included.
        weight_sum: W, the sum of all true weights, test row included.
        error_mass: F_d(Q), the share of the errors on scores up to the right threshold; NaN when D = 0.
        threshold: Q, the threshold with the true weights.
        large_enough: whether the threshold with the wrong weights is at least Q, so that sets still cover.
    """

    error_sum: float
    weight_sum: float
    error_mass: float
    threshold: float
    large_enough: bool


def weight_error_report(
    scores: ArrayLike, w_true: ArrayLike, w_est: ArrayLike, test_true: float, test_est: float, level: float
) -> WeightErrorReport:
    """Theorem 3: does weighted conformal prediction with wrong weights use a threshold at least as large as with the right ones?

    Yes exactly when the wrong law has not reached the level just below Q. By the mixture identity that reads
    D / (W + D) (F_d - F_w) < level - F_w just below Q; for a continuous law, where F_w(Q) = level, D / (W + D) and
    F_d(Q) - level have opposite signs. The exact form is used, so that ties and small samples are judged rightly.

    Args:
        scores: scores of the clean calibration rows, (n,).
        w_true: their true weights >= 0, (n,).
        w_est: their estimated weights, (n,); with negative ones the answer concerns the law just below Q alone.
        test_true: true weight of the test row.
        test_est: estimated one.
        level: 1 - alpha, in (0, 1).

    Raises:
        ValueError: for NaN, infinite weights, negative true ones, different lengths, or estimated weights that sum to 0.

    >>> weight_error_report([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], [2.0, 1.0, 1.0], 1.0, 1.0, 0.5).large_enough
    True
    """
    s, w, v = check_numbers(scores, "scores"), check_weights(w_true, "w_true"), _check_signed(w_est, "w_est")
    check_lengths(scores=s, w_true=w, w_est=v)
    check_weights(test_true, "test_true")
    _check_signed(test_est, "test_est")
    q = float(weighted_quantile(s, w, test_true, level)[0])
    delta = v - w
    error_sum, weight_sum = float(delta.sum() + test_est - test_true), float(w.sum() + test_true)
    if weight_sum + error_sum == 0.0:
        raise ValueError("w_est and test_est sum to 0; their law is undefined")
    below = s < q
    right = float(w[below].sum()) / weight_sum
    shift = (float(delta[below].sum()) - error_sum * right) / (weight_sum + error_sum)
    error_mass = float(delta[s <= q].sum()) / error_sum if error_sum else float("nan")
    return WeightErrorReport(error_sum, weight_sum, error_mass, q, bool(right + shift < level - SLACK))
