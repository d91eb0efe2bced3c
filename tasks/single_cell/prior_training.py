"""Warm-start stage: for every reference and seed the latent space and the diffusion prior, fitted on nine tenths of its cells.

A folder per reference and seed: `scaler.npz`, `basis.npz`, `prior.safetensors`, `config.json`, `cells.npz` (who was held out), and for
some references `gaussian/`, a prior trained on Gaussian vectors with the latents' mean and covariance: the same training, nothing to
learn beyond two moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tasks.common.formats import read_json
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.diffusion.noise_training import DenoiserParams, noise_prediction_error
from tasks.diffusion.schedules import signal_levels
from tasks.single_cell.cohort_files import Cells, read_cohort
from tasks.single_cell.latent import LatentSpace, fit_latent_space, write_arrays
from tasks.single_cell.priors import DiffusionPrior, fit_diffusion_prior, gaussian_prior
from tasks.single_cell.rho_selection import hold_out

Floats = NDArray[np.float64]

CONTROL = "gaussian"


class PriorParams(Params):
    """How priors are fitted.

    Attributes:
        latents: components k.
        clip: of z-scores.
        denoiser: network and training.
        held_out: share of a reference that nothing is fitted on.
        controls: references that also get a prior of Gaussian vectors.
        device: where networks are trained.
    """

    latents: int = Field(15, ge=1)
    clip: float = Field(10.0, gt=0)
    denoiser: DenoiserParams = DenoiserParams(hidden=96, steps=1000)
    held_out: float = Field(0.1, gt=0, lt=1)
    controls: tuple[str, ...] = ("factor",)
    device: str = "cpu"


@dataclass(frozen=True)
class Fitted:
    """What was fitted on one reference.

    Attributes:
        space: scaler and basis.
        prior: diffusion prior.
        control: prior of Gaussian vectors, or None.
        columns: genes of the reference's file that the space uses, mask (d_all,).
        held: cells of the reference that were held out, mask (n,).
        latents: of the others (n_fit, k).
        labels: of the others (n_fit,).
    """

    space: LatentSpace
    prior: DiffusionPrior
    control: DiffusionPrior | None
    columns: NDArray[np.bool_]
    held: NDArray[np.bool_]
    latents: Floats
    labels: NDArray[np.str_]

    def standardise(self, cells: Cells, values: NDArray[np.float32] | None = None) -> Floats:
        """Z-scores (n, d) of cells of this reference or of its targets, which have the same genes; `values` replaces their expression."""
        return self.space.standardise((cells.values if values is None else values)[:, self.columns])


class _Item(NamedTuple):
    folder: Path
    out: Path
    family: str
    seed: int
    params: PriorParams


def warmstart(params: PriorParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Fit everything; reports how much of the noise each prior predicts, beside what a Gaussian of the same moments could."""
    manifest = read_json(inputs.file("prepare-reference", "manifest.json"))
    seeds, families = range(manifest["seeds"]), manifest["names"]
    items = [_Item(inputs["prepare-reference"], out, family, seed, params) for family in families for seed in seeds]
    workers = 1 if params.device != "cpu" else None
    found = list(log.progress(map_parallel(_fit, items, workers=workers), total=len(items), desc="priors"))
    metrics: Metrics = {}
    for family in families:
        mine = [(item.seed, result) for item, result in zip(items, found, strict=True) if item.family == family]
        for name in mine[0][1][0]:
            metrics |= summarise(f"{name}.{family}", [result[0][name] for _, result in mine])
        losses = mine[0][1][1]
        for start in range(0, len(losses), max(1, len(losses) // 100)):
            log.history(start, **{f"loss_{family}": float(losses[start : start + max(1, len(losses) // 100)].mean())})
    return metrics


def read_fitted(folder: Path, family: str, seed: int, device: str = "cpu", n_sub: int = 16) -> Fitted:
    """What `warmstart` wrote for a reference and seed."""
    path = folder / f"{family}-{seed}"
    control = DiffusionPrior.load(path / CONTROL, n_sub=n_sub).to(device) if (path / CONTROL).is_dir() else None
    with np.load(path / "cells.npz") as arrays:
        columns, held, latents, labels = (arrays[name] for name in ("columns", "held", "latents", "labels"))
    return Fitted(LatentSpace.load(path), DiffusionPrior.load(path, n_sub=n_sub).to(device), control, columns, held, latents, labels)


def fit_reference(
    cells: Cells, params: PriorParams, seed: int, latents: int | None = None, basis_of: Cells | None = None
) -> tuple[Fitted, NDArray[np.float64]]:
    """Space and prior of a reference, and the training losses (steps,).

    Args:
        cells: the reference.
        params: settings.
        seed: chooses the slice, and trains.
        latents: components, instead of `params.latents`.
        basis_of: other cells of the same genes, whose principal components are to be the basis.
    """
    held = hold_out(len(cells.values), seed, params.held_out)
    values = cells.values[:, cells.kept]
    names = [gene for gene, keep in zip(cells.genes, cells.kept, strict=True) if keep]
    space, varying = fit_latent_space(values[~held], names, latents or params.latents, clip=params.clip, seed=seed)
    columns = cells.kept.copy()
    columns[np.flatnonzero(cells.kept)[~varying]] = False
    if basis_of is not None:
        space = space.with_basis_of(basis_of.values[:, columns], seed=seed)
    u = space.project(cells.values[~held][:, columns])
    prior, losses = fit_diffusion_prior(u, params.denoiser, seed, device=params.device)
    return Fitted(space, prior, None, columns, held, u, cells.labels[~held]), losses


def _fit(item: _Item) -> tuple[dict[str, float], Floats]:
    cells = read_cohort(item.folder / f"{item.family}-{item.seed}.h5ad")
    fitted, losses = fit_reference(cells, item.params, item.seed)
    path = item.out / f"{item.family}-{item.seed}"
    path.mkdir(parents=True)
    fitted.space.save(path)
    fitted.prior.save(path)
    labels = fitted.labels.astype(np.str_)
    write_arrays(path / "cells.npz", {"columns": fitted.columns, "held": fitted.held, "latents": fitted.latents, "labels": labels})
    if item.family in item.params.controls:
        moments = gaussian_prior(fitted.latents)
        rng = np.random.default_rng([item.seed, 70])
        vectors = rng.multivariate_normal(moments.means[0], moments.covariances[0], len(fitted.latents))
        control, _ = fit_diffusion_prior(vectors, item.params.denoiser, item.seed, device=item.params.device)
        (path / CONTROL).mkdir()
        control.save(path / CONTROL)
    held = fitted.standardise(cells)[fitted.held] @ fitted.space.loadings / fitted.prior.scale
    levels = signal_levels(item.params.denoiser.schedule, item.params.denoiser.levels)[:: max(1, item.params.denoiser.levels // 16)]
    return {
        "dice.noise_error": noise_prediction_error(fitted.prior.model, held, levels, item.seed),
        "wiener.noise_error": _gaussian_error(fitted, held, levels, item.seed),
        "latents.scale": fitted.space.scale,
        "latents.held_out_variance_ratio": float(held.var(axis=0).mean() / (fitted.latents / fitted.prior.scale).var(axis=0).mean()),
    }, losses


def _gaussian_error(fitted: Fitted, rows: Floats, levels: Floats, seed: int) -> float:
    """Error of the best linear predictor of the noise, the one that a Gaussian of the latents' moments has."""
    prior, s = gaussian_prior(fitted.latents), fitted.prior.scale
    rng = np.random.default_rng(seed)
    errors = []
    for abar in levels.tolist():
        noise = rng.standard_normal(rows.shape)
        ratio = np.sqrt(1 / abar - 1)
        measured = rows + ratio * noise  # u_t / sqrt(abar), in units of s
        clean = prior.posterior_mean(measured * s, (ratio * s) ** 2) / s
        errors.append(np.square((measured - clean) / ratio - noise).mean())
    return float(np.mean(errors))
