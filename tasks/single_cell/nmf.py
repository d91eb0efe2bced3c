"""Non-negative matrix factorisation (Lee & Seung, 1999): X ~ W H with parts H learned on a reference, W >= 0 fitted to the target."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tasks.single_cell.knn_smoothing import Floats, as_cells

CANDIDATES: tuple[dict[str, Any], ...] = tuple({"shrinkage": shrinkage} for shrinkage in (0.0, 1e-3, 1e-2))
"""Settings to choose from on a held-out slice of the reference, beside the number of components."""


@dataclass(frozen=True)
class Factors:
    """W of the target, (n_t, components), the embedding; and H, (components, d)."""

    scores: Floats
    parts: Floats

    @property
    def expression(self) -> Floats:
        """W H, the denoised target, (n_t, d)."""
        return np.asarray(self.scores @ self.parts)


def factorise(
    reference: ArrayLike, target: ArrayLike, *, components: int, shrinkage: float = 0.0, seed: int = 0, steps: int = 200
) -> Factors:
    """Learn H (and W of the reference) on the reference, then W of the target with H fixed.

    Args:
        reference: expression >= 0, (n_r, d).
        target: expression >= 0 of the same genes, (n_t, d).
        components: 1 <= components <= min(n_r, d).
        shrinkage: weight >= 0 of the squared norms of W and H against the reconstruction error, per entry.
        seed: of the start.
        steps: coordinate-descent sweeps at most.

    Raises:
        ValueError: for negative values or settings out of range.

    Example:
        >>> x = np.outer([1.0, 2.0, 3.0], [1.0, 0.0, 2.0])
        >>> factorise(x, x[:1], components=1).expression.round(3).tolist()
        [[1.0, 0.0, 2.0]]
    """
    from sklearn.decomposition import NMF
    from sklearn.exceptions import ConvergenceWarning

    fitted, x = as_cells(reference, target)
    for name, values in (("reference", fitted), ("target", x)):
        if (values < 0).any():
            raise ValueError(f"{name} has {int((values < 0).sum())} negative values; NMF needs expression >= 0")
    if not 1 <= components <= min(fitted.shape):
        raise ValueError(f"components must lie in 1..{min(fitted.shape)}, got {components}")
    if shrinkage < 0:
        raise ValueError(f"shrinkage must be >= 0, got {shrinkage}")
    model = NMF(components, init="nndsvda", random_state=seed, max_iter=steps, alpha_W=shrinkage, l1_ratio=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a few sweeps are enough for an embedding
        model.fit(fitted)
        scores = model.transform(x)
    return Factors(np.asarray(scores, dtype=float), np.asarray(model.components_, dtype=float))


def denoise(reference: ArrayLike, target: ArrayLike, *, components: int, shrinkage: float = 0.0, seed: int = 0) -> Floats:
    """W H of the target, (n_t, d); see `factorise`."""
    return factorise(reference, target, components=components, shrinkage=shrinkage, seed=seed).expression
