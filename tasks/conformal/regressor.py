"""Prediction intervals for a person's own corrupted labels, in one call: models, weights, residuals and thresholds.

`fit_intervals` splits the rows, fits boosted trees and calibrates four methods; whoever has models already uses
`tasks.conformal.pcp`, `tasks.conformal.imputation` and `tasks.conformal.intervals` directly.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.conformal import models
from tasks.conformal.imputation import CLUSTERS, FALLBACK_WARNING, ResidualPools, as_columns, impute
from tasks.conformal.intervals import cqr_interval, cqr_scores
from tasks.conformal.pcp import BETA, check_beta, pcp_threshold
from tasks.conformal.quantiles import (
    Floats,
    as_numbers,
    check_lengths,
    check_level,
    check_mask,
    check_numbers,
    conformal_quantile,
)
from tasks.conformal.weights import likelihood_ratio_weights, shift_to_rate
from tasks.tabular.splits import random_parts

SHARES = {"train": 0.625, "reference": 0.125, "calibration": 0.25}
METHODS = ("naive", "pcp", "ui", "triply")


@dataclass(frozen=True)
class Intervals:
    """Fitted quantile models with one threshold per method, of `METHODS`; `triply` is the union of the other three."""

    quantiles: models.PredictPair
    thresholds: dict[str, float]

    def interval(self, x: ArrayLike, method: str = "ui") -> tuple[Floats, Floats]:
        """Lower and upper ends for features x (m, d), each (m,); no privileged information is needed.

        Raises:
            KeyError: for an unknown method, listing the known ones.
        """
        if method not in self.thresholds:
            raise KeyError(f"unknown method {method!r}; known: {', '.join(self.thresholds)}")
        return cqr_interval(*self.quantiles(np.asarray(x, dtype=float)), self.thresholds[method])


def fit_intervals(
    x: ArrayLike, z: ArrayLike, y: ArrayLike, masked: NDArray[np.bool_], alpha: float = 0.1, beta: float = BETA, seed: int = 0
) -> Intervals:
    """Fit quantile models, an imputer and a mask model, and calibrate all methods.

    Args:
        x: features that test rows have too, (n, d).
        z: privileged information of these rows, (n, k) or (n,).
        y: labels, (n,); those of corrupted rows are never read and may be NaN.
        masked: True where the label is corrupted, (n,).
        alpha: miscoverage level in (0, 1).
        beta: what PCP spends on not knowing the test row's Z, in (0, alpha).
        seed: of the split, the models and the draws of residuals.

    Raises:
        ValueError: for levels out of range, clean labels or z that are NaN, different lengths, or a part of the rows without
            clean labels. Features may be NaN, as boosted trees take them.

    Warns:
        UserWarning: when the reference rows do not know the part of Z where labels are corrupted.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.random(1200)
    >>> y = z + rng.random(1200)
    >>> intervals = fit_intervals(rng.random((1200, 2)), z, y, rng.random(1200) < 0.5 * z)
    >>> lower, upper = intervals.interval(rng.random((3, 2)), method="ui")
    >>> bool((lower < upper).all())
    True
    """
    check_level(alpha)
    check_beta(beta, alpha)
    x_, z_, y_, m = as_numbers(x, "x"), as_columns(z), as_numbers(y, "y").reshape(-1), check_mask(masked)
    if x_.ndim != 2:
        raise ValueError(f"x must have shape (n, d), got {x_.shape}")
    check_lengths(x=x_, z=z_, y=y_, masked=m)
    rng = np.random.default_rng(seed)
    train, reference, calibration = random_parts(len(y_), SHARES, rng).values()
    clean, both = train[~m[train]], np.hstack([x_, z_])
    for part, rows, least in (("training", train, 2), ("calibration", calibration, 1)):
        if (~m[rows]).sum() < least:
            raise ValueError(f"masked: {m[rows].sum()} of {rows.size} {part} rows are corrupted; at least {least} must be clean")
    check_numbers(y_[~m], "y")
    quantiles = models.tree_quantiles(x_[clean], y_[clean], alpha, seed)
    imputer = models.tree_mean(both[clean], y_[clean], seed)
    mask = models.tree_mask(both[train], m[train], seed)
    guess = imputer(both)
    lower, upper = quantiles(x_[calibration])
    hidden = m[calibration]
    scores = cqr_scores(y_[calibration], lower, upper)
    pools = ResidualPools(z_[reference], y_[reference] - guess[reference], m[reference], CLUSTERS, seed)
    lost = pools.fallback(z_[calibration][hidden])
    if hidden.any() and lost.mean() > FALLBACK_WARNING and any(pool.size == 0 for pool in pools.pools):
        warnings.warn(f"{lost.mean():.0%} of the imputed rows have no pool of residuals of their own; `ui` may under-cover", stacklevel=2)
    residuals = pools.draw(z_[calibration], rng.random(len(y_))[calibration])
    labels = impute(guess[calibration], y_[calibration], hidden, residuals)
    weights = likelihood_ratio_weights(shift_to_rate(mask(both[calibration]), hidden))
    thresholds = {
        "naive": conformal_quantile(scores[~hidden], alpha),
        "pcp": pcp_threshold(scores, weights, hidden, alpha, beta),
        "ui": conformal_quantile(cqr_scores(labels, lower, upper), alpha),
    }
    # Around common quantile models the three sets are nested, so their union is the one with the largest threshold.
    return Intervals(quantiles, thresholds | {"triply": max(thresholds.values())})
