"""The held-out slice of a reference, noised to the level of a target: what every free setting, of DICE and of baselines, is chosen on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.single_cell.cohort_files import Cells
from tasks.single_cell.pbmc import thin
from tasks.single_cell.preprocessing import log_normalise
from tasks.single_cell.prior_training import Fitted
from tasks.single_cell.rho_selection import thinning_share, with_gaussian_noise

Floats = NDArray[np.float64]

LEAST_ROWS = 200
"""A small slice is noised several times, until it has about this many rows."""


class NoisedSlice(NamedTuple):
    """Clean and noised copies of the held-out cells, m rows.

    Attributes:
        clean: standardised, as they are (m, d).
        latents: their latents V^T clean, which denoising is to find again (m, k).
        noisy: standardised, noised (m, d).
        expression: noised, on the scale of the files (m, d_used); None for Gaussian noise, whose values make no expression.
    """

    clean: Floats
    latents: Floats
    noisy: Floats
    expression: Floats | None


def noised_slice(reference: Cells, fitted: Fitted, target: Cells, seed: int) -> NoisedSlice:
    """Held-out cells of a reference with as much noise as the target has; labels are not looked at.

    Expression gets Gaussian noise of the target's residual variance per gene, counts are thinned (`thinning_share`).
    """
    rows = np.flatnonzero(fitted.held)
    copies = max(1, round(LEAST_ROWS / len(rows)))
    rng = np.random.default_rng([seed, 71])
    clean = fitted.space.standardise(reference.values[rows][:, fitted.columns])
    repeated = np.concatenate([clean] * copies)
    latents = np.asarray(repeated @ fitted.space.loadings)
    if reference.counts is None or target.counts is None:
        variance = fitted.space.residual_variance(fitted.standardise(target))
        noisy = [with_gaussian_noise(clean, variance, rng) for _ in range(copies)]
        return NoisedSlice(repeated, latents, np.concatenate(noisy), None)
    share = thinning_share(*(float(np.median(side.counts.sum(axis=1))) for side in (reference, target)))  # type: ignore[union-attr]
    values = []
    for _ in range(copies):
        counts = thin(reference.counts[rows], share, rng)
        empty = counts.sum(axis=1) == 0
        counts[empty] = reference.counts[rows][empty]  # a cell that lost everything keeps its counts
        values.append(np.asarray(log_normalise(counts)[:, fitted.columns], dtype=float))
    expression = np.concatenate(values)
    return NoisedSlice(repeated, latents, fitted.space.standardise(expression), expression)
