"""Variance-preserving noise schedules: how much of the signal is left at each level.

At level t (0-based) a clean vector u becomes sqrt(abar_t) u + sqrt(1 - abar_t) eps. Everything downstream needs the array `abar` alone;
its noise-to-signal ratio sqrt(1/abar - 1) is the standard deviation of the noise that a level adds to a vector in its own units.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Schedule = Literal["linear", "cosine", "quadratic", "sigmoid", "exponential"]

SCHEDULES: tuple[str, ...] = get_args(Schedule)
FIRST, LAST = 0.1, 20.0
"""Integrated noise rates of Ho et al. (2020), betas of 1e-4 to 0.02 at 1,000 levels: any number of levels then ends at pure noise."""


def signal_levels(schedule: Schedule, levels: int) -> Floats:
    """Share of the signal's variance that is left, `abar` (levels,), strictly decreasing in (0, 1).

    Args:
        schedule: law of the step variances beta between 0.1/levels and 20/levels: `linear` (Ho et al., 2020), `quadratic` (linear in
            sqrt(beta)), `exponential` (linear in log(beta)), `sigmoid` (a logistic ramp); or `cosine` for abar itself (Nichol &
            Dhariwal, 2021).
        levels: number of levels, at least 21 (with fewer, 20/levels is no variance).

    Raises:
        ValueError: for an unknown schedule or too few levels.

    >>> abar = signal_levels("linear", 256)
    >>> abar.shape, bool(abar[0] > 0.999), bool(abar[-1] < 1e-4)
    ((256,), True, True)
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {schedule!r}; known: {', '.join(SCHEDULES)}")
    if levels <= LAST:
        raise ValueError(f"levels must be more than {LAST:.0f}, got {levels}")
    if schedule == "cosine":
        betas = _cosine_betas(levels)
    else:
        first, last, ramp = FIRST / levels, LAST / levels, np.linspace(0.0, 1.0, levels)
        if schedule == "linear":
            betas = first + (last - first) * ramp
        elif schedule == "quadratic":
            betas = (np.sqrt(first) + (np.sqrt(last) - np.sqrt(first)) * ramp) ** 2
        elif schedule == "exponential":
            betas = first * (last / first) ** ramp
        else:
            betas = first + (last - first) / (1 + np.exp(-12 * (ramp - 0.5)))
    return np.asarray(np.cumprod(1 - betas))


def noise_to_signal(abar: ArrayLike) -> Floats:
    """Standard deviation of the noise per unit of signal, sqrt(1/abar - 1)."""
    return np.asarray(np.sqrt(1 / np.asarray(abar, dtype=float) - 1))


def signal_share(rho: ArrayLike) -> Floats:
    """The `abar` whose noise-to-signal ratio is rho: 1 / (1 + rho^2), the inverse of `noise_to_signal`."""
    return np.asarray(1 / (1 + np.square(np.asarray(rho, dtype=float))))


def last_level_below(abar: Floats, rho: float) -> int:
    """Index of the last level whose noise-to-signal ratio is at most rho, i.e. abar_t >= 1 / (1 + rho^2).

    Raises:
        ValueError: if rho is not positive, more noise than the schedule's last level, or less than its first.

    >>> last_level_below(np.array([0.9, 0.5, 0.1]), rho=1.0)
    1
    """
    check_rho(abar, rho)
    if not abar[0] >= signal_share(rho):
        raise ValueError(f"rho must be at least {noise_to_signal(abar[0]):.4g}, the schedule's first level, got {rho:.4g}; use more levels")
    return int(np.searchsorted(-abar, -signal_share(rho) * (1 - 1e-12), side="right")) - 1


def check_rho(abar: Floats, rho: float) -> None:
    """Refuse a noise level that the schedule never reaches.

    Raises:
        ValueError: if rho is not positive or above sqrt(1 / abar_T - 1).
    """
    if not rho > 0:
        raise ValueError(f"rho must be positive, got {rho}")
    largest = float(noise_to_signal(abar[-1]))
    if rho > largest:
        raise ValueError(f"rho must be at most {largest:.4g}, the noise-to-signal ratio of the schedule's last level, got {rho:.4g}")


def _cosine_betas(levels: int) -> Floats:
    offset = 0.008
    share = np.cos((np.arange(levels + 1) / levels + offset) / (1 + offset) * np.pi / 2) ** 2
    return np.asarray(np.clip(1 - share[1:] / share[:-1], 0, 0.999))
