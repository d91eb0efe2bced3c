"""Likelihood-ratio weights of clean rows: how much rarer a row is among the clean ones than among all.

w(z) = P(M=0) / P(M=0 | Z=z), from corruption probabilities that are known or estimated by a classifier.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tasks.conformal.quantiles import Floats, check_lengths, check_mask, check_numbers

LARGEST_PROBABILITY = 0.99


def likelihood_ratio_weights(probabilities: ArrayLike, of: ArrayLike | None = None) -> Floats:
    """w_i = (1 - mean p) / (1 - p_i).

    Args:
        probabilities: corruption probabilities of the calibration rows, clean or not, (n,), in [0, 1).
        of: probabilities of other rows that want weights on the same scale, (m,); default the calibration rows themselves.

    Raises:
        ValueError: for NaN or probabilities outside [0, 1).

    >>> likelihood_ratio_weights([0.0, 0.5]).tolist()
    [0.75, 1.5]
    """
    below_one = float(np.nextafter(1.0, 0.0))
    p = _check(probabilities, "probabilities", below_one)
    q = p if of is None else _check(of, "of", below_one)
    return np.asarray((1.0 - p.mean()) / (1.0 - q))


def shift_to_rate(probabilities: ArrayLike, masked: ArrayLike, of: ArrayLike | None = None) -> Floats:
    """Shift estimated corruption probabilities by one constant, so that their mean is the observed corruption rate.

    Args:
        probabilities: estimates for the calibration rows, (n,), in [0, 1].
        masked: True where the calibration row is corrupted, (n,).
        of: estimates of other rows to shift by the same constant, (m,); default the calibration rows.

    Returns:
        shifted probabilities, clipped to [0, 0.99] so that no weight explodes.

    Raises:
        ValueError: for NaN, estimates outside [0, 1], a mask that is not boolean, or different lengths.

    >>> shift_to_rate([0.1, 0.3], np.array([True, False])).round(6).tolist()
    [0.4, 0.6]
    """
    p, m = _check(probabilities, "probabilities", most=1.0), check_mask(masked)
    check_lengths(probabilities=p, masked=m)
    q = p if of is None else _check(of, "of", most=1.0)
    return np.asarray(np.clip(q + (m.mean() - p.mean()), 0.0, LARGEST_PROBABILITY))


def _check(probabilities: ArrayLike, name: str, most: float) -> Floats:
    p = check_numbers(probabilities, name)
    if p.min() < 0 or p.max() > most:
        interval = "[0, 1]" if most == 1.0 else "[0, 1)"
        raise ValueError(f"{name} must lie in {interval}, got values from {p.min()} to {p.max()}")
    return p
