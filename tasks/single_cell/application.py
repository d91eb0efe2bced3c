"""DICE for a person's own files: a reference and a query in, the query with denoised embeddings out.

Both files are checked and brought to one scale and one set of genes; then `Dice` does the work. Everything that can go wrong with
the files is an error that says what to change, before anything is trained.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tasks.common.node import Log, Params
from tasks.single_cell.clustering_metrics import silhouette
from tasks.single_cell.dice import Dice, DiceParams, DiceResult
from tasks.single_cell.preprocessing import (
    CELL_TOTAL,
    AlignedGenes,
    align_genes,
    check_reference_size,
    log_normalise,
    normalised_dispersion,
    prepare_expression,
    presence_filter,
)
from tasks.single_cell.readers import read_cells
from tasks.training.devices import PresentDevice

if TYPE_CHECKING:
    from anndata import AnnData

SCALE_SLACK = 1.05


class DenoiseParams(Params):
    """Options of the tool."""

    reference: Path = Field(description="well-measured cells: .h5ad, 10x .h5, or a folder with a 10x or UCSC Cell Browser export")
    query: Path = Field(description="cells to denoise, in one of the same formats")
    labels: str | None = Field(None, description="column of the reference's obs with cell types; adds labels with their uncertainty")
    counts: Literal["auto", "raw", "log"] = Field("auto", description="what the files hold: raw counts, or log1p of normalised counts")
    rho: float | None = Field(
        None, gt=0, description="pull towards the reference, in units of the embedding; chosen on held-out reference cells"
    )
    latents: int = Field(20, ge=1, description="dimensions of the embedding")
    sigma: Literal["identity", "gene", "scalar"] = Field(
        "identity", description="noise of the likelihood: 1 for every gene, each gene's own residual variance, or its mean"
    )
    genes: int = Field(3000, ge=0, description="most variable genes of the reference that are used, 0 for all")
    presence: float = Field(0.02, ge=0, lt=1, description="a gene must be seen in more than this share of the reference's cells")
    steps: int = Field(1200, ge=1, description="training steps of the prior")
    draws: int = Field(40, ge=2, description="draws per cell that are averaged")
    seed: int = Field(0, ge=0, description="seed of everything; the same seed gives the same numbers")
    device: PresentDevice = Field("cpu", description="where to train and sample: cpu, cuda, cuda:1")


def denoise(params: DenoiseParams, out: Path, log: Log) -> dict[str, float | str]:
    """Denoise the embedding of single cells with a diffusion prior learned on a reference.

    Writes the query as .h5ad with obsm `X_dice` (denoised) and `X_pca` (the same basis without denoising), obs `dice_spread`
    (posterior variance), and with labels obs `dice_label`, `dice_label_probability`, `dice_set_size` (types in the smallest set
    that holds 90 % of a cell's draws), `dice_label_entropy` (nats), obsm `dice_probabilities`; the settings are in uns `dice`.

    Args:
        params: files and settings.
        out: file to write, not there yet.
        log: progress and messages.

    Returns:
        cells, genes used, genes filled, rho, seconds; where the query has the label column too, how its labels fit.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: for files that cannot be used, saying what to change.
    """
    begun = time.perf_counter()
    if out.suffix != ".h5ad":
        raise ValueError(f"the result is an AnnData file: let its name end in .h5ad, got {out.name!r}")
    reference = read_cells(params.reference, params.labels, add_layer=False)
    query = read_cells(params.query, add_layer=False)
    check_reference_size(reference.n_obs, params.latents)
    cohort = match(reference, query, params)
    if cohort.query.missing:
        log.message(f"{len(cohort.query.missing)} of {len(cohort.genes)} genes are missing in the query and stand at the reference's mean")

    settings = DiceParams(latents=params.latents, sigma=params.sigma)
    chains = settings.gibbs
    settings = settings.model_copy(
        update={
            "denoiser": settings.denoiser.model_copy(update={"steps": params.steps}),
            "gibbs": chains.model_copy(update={"iterations": chains.burn_in + params.draws, "repeats": 1}),
        }
    )
    dice = Dice(settings, rho=params.rho, seed=params.seed, device=params.device)
    training = _Bar(log, params.steps, "prior")
    dice.fit(cohort.fitted(), "label" if params.labels else None, after=lambda step, loss: training.step())
    cells = cohort.denoised()
    rho = dice.rho = params.rho if params.rho is not None else dice.choose_rho(cells)
    if params.rho is None:
        log.message(f"rho {rho:.3g} denoises the held-out reference cells best")
    batches = -(-query.n_obs // settings.chunk)
    sampling = _Bar(log, batches * settings.gibbs.iterations, "sweeps")
    found = dice.transform(cells, after=lambda sweep: sampling.step())

    annotate(query, found, params, cohort)
    query.write_h5ad(out, compression="gzip")
    summary: dict[str, float | str] = {
        "cells": query.n_obs,
        "reference_cells": reference.n_obs,
        "genes_used": len(cohort.genes),
        "genes_filled": len(cohort.query.missing),
        "rho": rho,
        "scale": cohort.scale,
    }
    return summary | agreement_with(query, found, params.labels) | {"seconds": time.perf_counter() - begun}


@dataclass(frozen=True)
class MatchedCells:
    """Reference and query on one scale in the same genes.

    Attributes:
        genes: names, (d,).
        reference: log values, (n_r, d).
        query: the same for the query, with the genes that it lacked.
        labels: types of the reference, or None.
        scale: `raw`, `log` or `mixed`.
    """

    genes: tuple[str, ...]
    reference: NDArray[np.float32]
    query: AlignedGenes
    labels: list[str] | None
    scale: str

    def fitted(self) -> AnnData:
        """The reference as `Dice.fit` takes it.

        Counts are left out, so that rho is chosen with Gaussian noise at the query's residual level. Thinned cells would all move
        along the first components, as a shallow query does, and a rho that pulls everything together would seem to denoise them.
        """
        cells = _object(self.reference, self.genes)
        if self.labels is not None:
            cells.obs["label"] = self.labels
        return cells

    def denoised(self) -> AnnData:
        """The query as `Dice.transform` takes it."""
        return _object(self.query.values, self.genes)


def match(reference: AnnData, query: AnnData, params: DenoiseParams) -> MatchedCells:
    """Check both, choose genes on the reference, and bring both to log1p CP10K in them.

    With counts in both files, library sizes are those over the genes that are used; a query that lacks some of them is scaled to
    the share of counts that the reference has in the others. Log values are taken as they are.

    Raises:
        ValueError: whatever the checks of `preprocessing` refuse, files on different scales, and cells without counts in the
            genes that are used.
    """
    ready_reference, kind_reference = prepare_expression(reference, params.counts, "reference")
    ready_query, kind_query = prepare_expression(query, params.counts, "query")
    for name, cells, kind, other in (
        ("reference", ready_reference, kind_reference, kind_query),
        ("query", ready_query, kind_query, kind_reference),
    ):
        if kind == "log" and other == "raw":
            _check_total(cells, name)
    chosen = choose_genes(ready_reference, params.presence, params.genes)
    genes = tuple(str(name) for name in ready_reference.var_names[chosen])
    labels = reference.obs["label"].tolist() if params.labels else None
    if kind_reference != "raw" or kind_query != "raw":
        values = _dense(ready_reference.X[:, chosen])
        aligned = align_genes(ready_query, genes, values.mean(axis=0))
        return MatchedCells(genes, values, aligned, labels, "mixed" if kind_reference != kind_query else "log")

    counts = _dense(ready_reference.layers["counts"][:, chosen])
    ready_query.X = ready_query.layers["counts"]
    found = align_genes(ready_query, genes, np.zeros(len(genes)))
    present = ~np.isin(genes, found.missing)
    for name, cells, total in (("reference", ready_reference, counts.sum(axis=1)), ("query", ready_query, found.values.sum(axis=1))):
        if (total <= 0).any():
            raise ValueError(
                f"{name}: {int((total <= 0).sum())} cells have no counts in the {len(genes)} genes that are used, for example "
                f"{str(cells.obs_names[total <= 0][0])!r}; remove them or use more genes"
            )
    values = log_normalise(counts)
    share = float(counts[:, present].sum() / counts.sum())
    query_values = log_normalise(found.values, total=CELL_TOTAL * share)
    query_values[:, ~present] = values.mean(axis=0)[~present]
    return MatchedCells(genes, values, AlignedGenes(query_values, found.missing), labels, "raw")


def choose_genes(reference: AnnData, presence: float, most: int) -> NDArray[np.bool_]:
    """Mask of the genes seen in enough cells and, of these, the `most` with the largest normalised dispersion (all with 0).

    Raises:
        ValueError: if none is seen often enough.

    Example:
        >>> from anndata import AnnData
        >>> choose_genes(AnnData(np.array([[1.0, 0.0], [2.0, 0.0]])), presence=0.1, most=0).tolist()
        [True, False]
    """
    kept = presence_filter(reference.X, presence)
    if not 0 < most < kept.sum():
        return kept
    dispersion = normalised_dispersion(reference.X[:, kept])
    kept[np.flatnonzero(kept)[np.argsort(-dispersion, kind="stable")[most:]]] = False
    return kept


def annotate(query: AnnData, found: DiceResult, params: DenoiseParams, cohort: MatchedCells) -> None:
    """Put results and settings into the query object."""
    import pandas as pd

    query.obsm["X_dice"], query.obsm["X_pca"] = found.embedding.astype(np.float32), found.pca.astype(np.float32)
    query.obs["dice_spread"] = found.spread
    if found.classes:
        query.obs["dice_label"] = pd.Categorical(found.labels, categories=list(found.classes))
        query.obs["dice_label_probability"] = found.probabilities.max(axis=1)
        query.obs["dice_set_size"] = found.sets.sum(axis=1).astype(int)
        query.obs["dice_label_entropy"] = found.entropy
        query.obsm["dice_probabilities"] = found.probabilities.astype(np.float32)
    settings = {name: value for name, value in params.model_dump(mode="json").items() if value is not None}
    settings |= {"rho": found.rho, "classes": np.array(found.classes, dtype=str), "genes_used": np.array(cohort.genes, dtype=str)}
    query.uns["dice"] = settings | {"genes_missing": np.array(cohort.query.missing, dtype=str), "scale": cohort.scale}


def agreement_with(query: AnnData, found: DiceResult, column: str | None) -> dict[str, float | str]:
    """Where the query has the label column as well: accuracy of the labels, silhouettes of both embeddings."""
    if column is None or column not in query.obs or query.obs[column].isna().any() or query.obs[column].nunique() < 2:
        return {}
    truth = query.obs[column].astype(str).to_numpy()
    scores: dict[str, float | str] = {"label_accuracy": float((np.array(found.labels) == truth).mean())}
    if len(np.unique(truth)) < len(truth):
        scores |= {"silhouette_pca": silhouette(found.pca, truth), "silhouette_dice": silhouette(found.embedding, truth)}
    return scores


class _Bar:
    """A progress bar that callbacks move."""

    def __init__(self, log: Log, total: int, what: str) -> None:
        self._items: Iterator[int] = log.progress(range(total), total=total, desc=what)

    def step(self) -> None:
        next(self._items, None)


def _check_total(cells: AnnData, name: str) -> None:
    values = cells.X.astype(float)
    total = np.asarray((values.expm1() if hasattr(values, "expm1") else np.expm1(values)).sum(axis=1)).reshape(-1)
    if np.median(total) > SCALE_SLACK * CELL_TOTAL:
        raise ValueError(
            f"the {name} holds log values of {np.median(total):.4g} counts per cell, the other file raw counts, which are scaled to "
            f"{CELL_TOTAL:g}; give raw counts in both files, or log values in both"
        )


def _object(values: NDArray[Any], genes: tuple[str, ...]) -> AnnData:
    import pandas as pd
    from anndata import AnnData

    return AnnData(values, obs=pd.DataFrame(index=[str(i) for i in range(len(values))]), var=pd.DataFrame(index=list(genes)))


def _dense(matrix: Any) -> NDArray[np.float32]:
    return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix, dtype=np.float32)
