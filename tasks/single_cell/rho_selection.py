"""Choosing rho without labels: held-out reference cells get as much noise as the target has; the best rho denoises them best.

The slice must have been held out of scaler, basis and prior. A target of expression values gets Gaussian noise of its estimated
variance per gene; a target of counts thins the slice, so that the molecules lost make as much noise as the target's own depth does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from tasks.single_cell.latent import LatentSpace
from tasks.single_cell.priors import Prior
from tasks.single_cell.split_gibbs import GaussianLikelihood, GibbsParams, run_chains

Floats = NDArray[np.float64]

GRID = (0.3, 0.7, 1.2, 2.0, 3.0, 5.0)
"""Values of rho that are tried, in units of the latents' scale s."""


def hold_out(cells: int, seed: int, share: float = 0.1) -> NDArray[np.bool_]:
    """Random mask (cells,) of the slice that nothing is fitted on; at least one cell on both sides.

    >>> int(hold_out(200, seed=0).sum())
    20
    """
    if not 0 < share < 1 or cells < 2:
        raise ValueError(f"need a share in (0, 1) of at least two cells, got {share} of {cells}")
    size = min(max(1, round(share * cells)), cells - 1)
    mask = np.zeros(cells, dtype=bool)
    mask[np.random.default_rng([seed, 90]).permutation(cells)[:size]] = True
    return mask


def with_gaussian_noise(standardised: Floats, variance: ArrayLike, rng: np.random.Generator) -> Floats:
    """Standardised cells (n, d) plus noise of these variances (d,)."""
    return np.asarray(standardised + rng.standard_normal(standardised.shape) * np.sqrt(np.asarray(variance, dtype=float)))


def thinning_share(reference_depth: float, target_depth: float) -> float:
    """Share of molecules to keep so that a reference cell gets the sampling noise of a target cell on top of its own: p / (1 + p).

    With p = target depth / reference depth, a target's counts have relative noise 1/p (in units of the reference's), and thinning to a
    share q adds (1 - q) / q; the two agree at q = p / (1 + p).

    >>> thinning_share(1000, 1000), round(thinning_share(1000, 300), 3)
    (0.5, 0.231)
    """
    if not (reference_depth > 0 and target_depth > 0):
        raise ValueError(f"depths must be positive, got {reference_depth} and {target_depth}")
    p = target_depth / reference_depth
    return p / (1 + p)


def latent_rmse(estimate: ArrayLike, truth: ArrayLike) -> float:
    """Root mean square over cells and latents of estimate - truth, both (n, k)."""
    return float(np.sqrt(np.square(np.asarray(estimate, dtype=float) - np.asarray(truth, dtype=float)).mean()))


def score_rho(
    space: LatentSpace,
    prior: Prior,
    clean: Floats,
    noisy: Sequence[Floats],
    noise: ArrayLike,
    params: GibbsParams,
    seed: int,
    grid: Sequence[float] = GRID,
    after: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """Denoising error of every rho on the held-out slice.

    Args:
        space: fitted without the slice.
        prior: likewise.
        clean: the slice, standardised (n, d).
        noisy: noised copies of it, each (n, d); the error is over all.
        noise: variances of the likelihood, as `GaussianLikelihood` takes them.
        params: of the chains; their rho is replaced.
        seed: of the chains; every rho sees the same random numbers.
        grid: values of rho in units of s.
        after: called with the number of each rho.

    Returns:
        A row per rho: `relative` (units of s), `rho` (data units), `rmse` to the latents of the slice without the added noise, and
        `rmse_centred`, the same without the mean error: a shift that all cells share, as thinned counts have, does not matter to
        clustering.
    """
    import torch

    truth = np.concatenate([clean @ space.loadings] * len(noisy))
    likelihood = GaussianLikelihood(np.concatenate(noisy), space.loadings, noise)
    records = []
    for number, relative in enumerate(grid):
        rho = relative * space.scale
        draws = run_chains(likelihood, prior, params.at(rho), torch.Generator().manual_seed(seed))
        error = draws.mean - truth
        records.append(
            {
                "relative": relative,
                "rho": rho,
                "rmse": latent_rmse(error, 0.0),
                "rmse_centred": latent_rmse(error, error.mean(axis=0)),
            }
        )
        if after is not None:
            after(number)
    return pd.DataFrame(records)


def best_rho(table: pd.DataFrame, error: str = "rmse") -> float:
    """The rho with the smallest error (a column of the table), the smaller one of equals.

    >>> best_rho(pd.DataFrame({"rho": [1.0, 2.0, 3.0], "rmse": [0.5, 0.4, 0.4]}))
    2.0
    """
    return float(table["rho"].to_numpy()[table[error].to_numpy().argmin()])
