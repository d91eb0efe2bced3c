"""ALRA: adaptively thresholded low-rank approximation (Linderman, Zhao & Kluger, 2022), its basis fitted on a reference.

Expression is projected on the leading right singular vectors of the reference. True zeros come out symmetric around zero, so
that the size of a gene's most negative values tells which positive ones are noise too: those become zero. What is left is scaled
back to the mean and spread of the gene's observed non-zeros. Thresholds and scales are those of the data that is denoised.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tasks.single_cell.knn_smoothing import Floats, as_cells

CANDIDATES: tuple[dict[str, Any], ...] = tuple({"rank": rank} for rank in (5, 10, 15, 20, 30))
"""Settings to choose from on a held-out slice of the reference."""

LOW_QUANTILE = 0.001

ROUNDING = 1e-6
"""Values this small against the largest are what a randomised decomposition leaves of exact zeros."""


def denoise(reference: ArrayLike, target: ArrayLike, *, rank: int, seed: int = 0) -> Floats:
    """Denoised target.

    A zero of the target may become positive; an observed positive value never becomes zero (it keeps its own value where the
    approximation has none).

    Args:
        reference: log-normalised expression >= 0, (n_r, d); with the target itself it is the usual form.
        target: log-normalised expression >= 0 of the same genes, (n_t, d).
        rank: singular vectors, 1 <= rank <= min(n_r, d).
        seed: of the randomised decomposition.

    Returns:
        (n_t, d), finite and >= 0.

    Raises:
        ValueError: for negative values or a rank out of range.

    Example:
        >>> x = np.array([[2.0, 1.0, 0.0], [4.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
        >>> denoise(x, x, rank=2).round(6).tolist()
        [[2.0, 1.0, 0.0], [4.0, 2.0, 0.0], [0.0, 0.0, 3.0]]
    """
    from sklearn.utils.extmath import randomized_svd

    fitted, x = as_cells(reference, target)
    for name, values in (("reference", fitted), ("target", x)):
        if (values < 0).any():
            raise ValueError(f"{name} has {int((values < 0).sum())} negative values; ALRA needs log-normalised expression >= 0")
    if not 1 <= rank <= min(fitted.shape):
        raise ValueError(f"rank must lie in 1..{min(fitted.shape)}, got {rank}")
    basis = randomized_svd(fitted, rank, n_iter=10, random_state=seed)[2]  # (rank, d)
    return threshold_and_scale(x @ basis.T @ basis, x)


def threshold_and_scale(low_rank: Floats, observed: Floats) -> Floats:
    """The second and third step of ALRA, gene by gene: zero what noise explains, scale to the observed non-zeros, both (n, d)."""
    cut = np.abs(np.quantile(low_rank, LOW_QUANTILE, axis=0))
    kept = low_rank > np.maximum(cut, ROUNDING * np.abs(low_rank).max(initial=0.0))
    mean_kept, sd_kept = _moments(low_rank, kept)
    mean_seen, sd_seen = _moments(observed, observed > 0)
    scalable = (sd_kept > 1e-12) & (sd_seen > 0)
    factor = np.where(scalable, sd_seen / np.where(scalable, sd_kept, 1.0), 1.0)
    shift = np.where(scalable, mean_seen - factor * mean_kept, 0.0)
    found = np.where(kept, np.maximum(factor * low_rank + shift, 0.0), 0.0)
    return np.asarray(np.where((observed > 0) & (found == 0), observed, found))


def _moments(values: Floats, mask: Any) -> tuple[Floats, Floats]:
    """Mean and standard deviation (ddof 1; 0 where fewer than two) of the masked values of every column."""
    count = mask.sum(axis=0)
    mean = np.where(mask, values, 0.0).sum(axis=0) / np.maximum(count, 1)
    squares = np.where(mask, (values - mean) ** 2, 0.0).sum(axis=0)
    return mean, np.sqrt(squares / np.maximum(count - 1, 1)) * (count > 1)
