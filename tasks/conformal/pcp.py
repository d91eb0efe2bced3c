"""Privileged conformal prediction (PCP): valid sets when labels went missing for reasons that are known in training only.

Feldman & Romano (2024); Theorem 1 of Feldman, Bates & Romano (2026). The weights depend on privileged information Z, which
no test row carries. PCP therefore asks what threshold weighted conformal prediction would use for a test row with the Z of
calibration row i, Q(Z_i), and takes a high quantile of these: with probability 1 - beta the unknown Q(Z_test) is not larger.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from tasks.conformal.quantiles import (
    check_lengths,
    check_level,
    check_mask,
    check_numbers,
    check_weights,
    conformal_quantile,
    weighted_quantile,
)

BETA = 0.005


def pcp_threshold(scores: ArrayLike, weights: ArrayLike, masked: ArrayLike, alpha: float, beta: float = BETA) -> float:
    """PCP threshold; sets {y: S(x, y) <= Q} cover with probability >= 1 - alpha when the weights are right.

    Q(Z_i) = weighted quantile of the clean scores at level 1 - alpha + beta with test weight w(Z_i), for every calibration
    row i, corrupted or not; Q = (1 - beta) conformal quantile of {Q(Z_i)}. As Q(Z_i) never decreases in w(Z_i), one weighted
    quantile suffices, with the same order statistic of the weights: O(n log n) instead of O(n^2).

    Args:
        scores: calibration scores, (n,); those of corrupted rows are not read and may be NaN.
        weights: w(Z_i) = P(M=0) / P(M=0 | Z=Z_i) of all calibration rows, (n,).
        masked: True where the label is corrupted, (n,).
        alpha: miscoverage level in (0, 1).
        beta: part of alpha spent on not knowing Z_test, in (0, alpha). A small one costs little width but needs the extreme
            weights: with fewer than 1/beta - 1 rows the threshold is infinite.

    Raises:
        ValueError: for levels out of range, NaN, negative weights, a mask that is not boolean, or when all rows are corrupted.

    >>> rng = np.random.default_rng(0)
    >>> masked = rng.random(1000) < 0.2
    >>> round(pcp_threshold(rng.random(1000), np.ones(1000), masked, alpha=0.1), 2)
    0.91
    """
    check_level(alpha)
    check_beta(beta, alpha)
    s, w, m = np.asarray(scores, dtype=float).reshape(-1), check_weights(weights, "weights"), check_mask(masked)
    check_lengths(scores=s, weights=w, masked=m)
    if m.all():
        raise ValueError(f"masked: all {m.size} calibration rows are corrupted; PCP needs clean ones")
    clean = check_numbers(s[~m], "scores")
    test_weight = conformal_quantile(w, beta)
    if math.isinf(test_weight):
        return math.inf
    level = min(1.0 - alpha + beta, math.nextafter(1.0, 0.0))  # a beta next to alpha rounds to 1
    return float(weighted_quantile(clean, w[~m], test_weight, level)[0])


def check_beta(beta: float, alpha: float) -> float:
    """Return beta, or refuse it.

    Raises:
        ValueError: unless 0 < beta < alpha.
    """
    if not 0.0 < beta < alpha:
        raise ValueError(f"beta must lie in (0, alpha) = (0, {alpha}), got {beta}")
    return float(beta)
