"""Labels corrupted as a function of privileged information: how likely, and what happens to the label.

The probability law follows the experiments of Feldman & Romano (2024): the lower three quarters of the information are never
corrupted, the top quarter nearly always, so that clean rows are a biased sample. With a marginal rate of 20 %.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.conformal.imputation import as_columns
from tasks.conformal.quantiles import Floats, check_lengths, check_mask, check_numbers
from tasks.conformal.weights import LARGEST_PROBABILITY

Mechanism = Literal["missing", "noisy", "dispersive"]

POWERS = np.arange(1, 1000) / 100.0


def corruption_probabilities(z: ArrayLike, rate: float = 0.2) -> Floats:
    """P(M=1 | Z) of every row of a full data set.

    With v = the mean of Z's columns, shifted, cut at its 85 % quantile and divided by its 90 % quantile, p = v^power above
    the 75 % quantile and 0 below; the power (0.01, 0.02 ... 9.99) brings the mean of p closest to `rate`. Rows far out, beyond
    1.2 times the 99.9 % quantile, get at least 0.95. Nothing exceeds 0.99.

    Args:
        z: privileged information of the whole data set, (n, d) or (n,).
        rate: wanted share of corrupted rows, in (0, 1); at most a quarter can be had.

    Raises:
        ValueError: for a rate outside (0, 1), values that are not finite, or information in which nine tenths of the rows are
            at the bottom or all alike, so that it has no top to corrupt.

    >>> p = corruption_probabilities(np.arange(1000.0))
    >>> float(p[:750].max()), round(float(p.mean()), 2)
    (0.0, 0.2)
    """
    if not 0.0 < rate < 1.0:
        raise ValueError(f"rate must lie in (0, 1), got {rate}")
    value = as_columns(z).mean(axis=1)
    check_numbers(value, "z")
    value = value - min(float(np.quantile(value, 0.05)), 0.0)
    threshold, cap, unit, far = np.quantile(value, [0.75, 0.85, 0.90, 0.999])
    if unit <= 0 or value.min() == value.max():
        raise ValueError(
            f"z: the 90 % quantile of {value.size} shifted values is {unit} and the largest {value.max()}; no top part stands out"
        )
    far *= 1.2
    v = np.where((value < threshold) | (value <= 0), 0.0, np.minimum(value, cap) / unit)
    positive = v > 0
    means = np.array([(v[positive] ** power).sum() for power in POWERS]) / v.size
    p = np.zeros_like(v)
    p[positive] = v[positive] ** POWERS[np.abs(means - rate).argmin()]
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(value > far, 0.95 + 0.05 * (1.0 - far / value), p)
    return np.clip(p, 0.0, LARGEST_PROBABILITY)


def corrupt(y: ArrayLike, masked: NDArray[np.bool_], mechanism: Mechanism, rng: np.random.Generator) -> Floats:
    """Observed labels, (n,).

    Args:
        y: true labels, (n,).
        masked: True where the label is corrupted, (n,).
        mechanism: `missing` (NaN), `noisy` (halfway to the mean) or `dispersive` (normal noise of 5 standard deviations).
        rng: source of the noise.

    Raises:
        ValueError: for an unknown mechanism, NaN, different lengths, or a mask that is not boolean.

    >>> corrupt([0.0, 4.0], np.array([False, True]), "noisy", np.random.default_rng(0)).tolist()
    [0.0, 3.0]
    """
    label, m = check_numbers(y, "y"), check_mask(masked)
    check_lengths(y=label, masked=m)
    if mechanism == "missing":
        return np.where(m, np.nan, label)
    if mechanism == "noisy":
        return np.where(m, (label + label.mean()) / 2.0, label)
    if mechanism == "dispersive":
        return np.where(m, label + 5.0 * label.std() * rng.standard_normal(label.size), label)
    raise ValueError(f"mechanism must be missing, noisy or dispersive, got {mechanism!r}")
