"""Prepare stages: references and targets of every cohort, a file for each seed.

A *reference* is what scaler, basis and prior may learn from; a *target* is what is denoised. They lie in folders of two stages, so that
another target (a depth, a shift) never costs a prior. `<name>-<seed>.h5ad` has X = expression on the scale that is clustered (log1p
CP10K for counts), layer `counts` where there are counts, obs `label`, layer `signal` = X without noise where that is known.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from tasks.common.formats import write_atomically, write_json, write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.single_cell import counts_simulator, pbmc, preprocessing, readers, synthetic
from tasks.single_cell.cohort_files import PBMC, family_of

if TYPE_CHECKING:
    from anndata import AnnData


class FileCohort(Params):
    """A cohort of one's own files: paths of reference and target (h5ad, 10x, or matrix and metadata) and the label columns."""

    reference: str
    target: str
    labels: str
    target_labels: str = ""


class CohortParams(Params):
    """Which cohorts, how many seeds, which sizes. Both prepare stages take the same.

    Attributes:
        targets: `setup1` ... `setup6`, `pbmc_p100` (percent of the counts that are kept), or names of `files`.
        seeds: independent draws, splits and thinnings, numbered from 0.
        n_reference: cells of a simulated reference.
        n_target: cells of a simulated target.
        genes: of setups 1-5.
        latents: true dimensions of setups 1-5.
        radius: distance of their class means from 0.
        presence: genes must be seen in more than this share of a reference of counts.
        reference_share: share of the blood cells that is the reference.
        files: cohorts read from files; the seeds then share the cells.
    """

    targets: tuple[str, ...] = ("setup1", "pbmc_p100")
    seeds: int = Field(5, ge=1)
    n_reference: int = Field(2000, ge=20)
    n_target: int = Field(600, ge=20)
    genes: int = Field(2000, ge=20)
    latents: int = Field(15, ge=1)
    radius: float = Field(6.0, gt=0)
    presence: float = Field(0.02, ge=0, lt=1)
    reference_share: float = Field(0.6, gt=0, lt=1)
    files: dict[str, FileCohort] = Field(default_factory=dict)

    def model_post_init(self, context: object) -> None:
        """Refuse unknown targets."""
        for target in self.targets:
            family_of(target, tuple(self.files))

    def families(self) -> list[str]:
        """References that the targets need, each once."""
        return list(dict.fromkeys(family_of(target, tuple(self.files)) for target in self.targets))


def prepare_reference(params: CohortParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Write all references; reports cells and genes of each."""
    return _prepare(params, out, log, params.families(), reference=True)


def prepare_target(params: CohortParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Write all targets; reports cells of each and the share of counts that are left."""
    return _prepare(params, out, log, list(params.targets), reference=False)


def _prepare(params: CohortParams, out: Path, log: Log, names: list[str], *, reference: bool) -> Metrics:
    items = [(params, name, seed, reference, out) for name in names for seed in range(params.seeds)]
    made = list(log.progress(map_parallel(_make, items), total=len(items), desc="cohorts"))
    write_json(out / "manifest.json", {"seeds": params.seeds, "names": names, "files": made})
    side = "reference" if reference else "target"
    metrics: Metrics = {}
    for name in names:
        mine = [entry for entry in made if entry["name"] == name]
        metrics[f"{side}.cells.{name}"] = float(np.mean([entry["cells"] for entry in mine]))
        metrics[f"{side}.genes.{name}"] = float(np.mean([entry["genes"] for entry in mine]))
        if mine[0]["depth"]:
            metrics[f"{side}.counts_per_cell.{name}"] = float(np.mean([entry["depth"] for entry in mine]))
    return metrics


def _make(item: tuple[CohortParams, str, int, bool, Path]) -> dict[str, Any]:
    params, name, seed, reference, out = item
    cells = _reference(params, name, seed) if reference else _target(params, name, seed)
    path = out / f"{name}-{seed}.h5ad"
    write_atomically(path, cells.write_h5ad)
    write_parquet(out / f"{name}-{seed}-cells.parquet", cells.obs[["label"]].rename_axis("cell").reset_index())
    genes = int(cells.var["kept"].sum()) if "kept" in cells.var else cells.n_vars
    depth = float(np.median(np.asarray(cells.layers["counts"].sum(axis=1)))) if "counts" in cells.layers else 0.0
    return {"name": name, "seed": seed, "file": path.name, "cells": cells.n_obs, "genes": genes, "depth": depth}


def _reference(p: CohortParams, family: str, seed: int) -> AnnData:
    if family in p.files:
        return with_presence(_from_files(p.files[family])[0], p.presence)
    if family == "pbmc":
        blood = pbmc.load_pbmc()
        part = pbmc.split(blood.obs["label"], seed, p.reference_share).reference
        return with_presence(_of_counts(blood[part].copy()), p.presence)
    if family == "counts":
        made = counts_simulator.simulate_counts(p.n_reference, p.n_target, seed)
        return with_presence(_of_counts(_cells(made.reference, made.labels_reference)), p.presence)
    cohort = _factor(p, 5 if family == "genewise" else 1, seed)
    return _cells(cohort.reference, cohort.labels_reference)


def _target(p: CohortParams, target: str, seed: int) -> AnnData:
    if target in p.files:
        return _from_files(p.files[target])[1]
    family = family_of(target)
    if family == "pbmc":
        blood = pbmc.load_pbmc()
        part = pbmc.split(blood.obs["label"], seed, p.reference_share).target
        full = blood[part].copy()
        share = int(target[len(PBMC) :]) / 100
        thinned = full.copy()
        thinned.layers["counts"] = pbmc.thin(full.layers["counts"], share, np.random.default_rng([seed, 69, int(100 * share)]))
        out = _of_counts(thinned)
        if share < 1:
            out.layers["signal"] = preprocessing.log_normalise(full.layers["counts"])
        return out
    if family == "counts":
        made = counts_simulator.simulate_counts(p.n_reference, p.n_target, seed)
        out = _of_counts(_cells(made.target, made.labels_target))
        out.layers["signal"] = preprocessing.log_normalise(made.expected_target)
        return out
    cohort = _factor(p, int(target.removeprefix("setup")), seed)
    out = _cells(cohort.target, cohort.labels_target)
    out.obsm["U"], out.varm["V"] = cohort.latents_target, cohort.loadings
    out.obsm["U_oracle"] = cohort.oracle_target()
    return out


def _factor(p: CohortParams, setup: int, seed: int) -> synthetic.FactorCohort:
    return synthetic.simulate(setup, p.n_reference, p.n_target, seed, genes=p.genes, latents=p.latents, radius=p.radius)


def _cells(values: NDArray[np.float32], labels: NDArray[np.int64]) -> AnnData:
    from anndata import AnnData

    obs = pd.DataFrame({"label": [f"class {c}" for c in labels]}, index=[f"cell{i}" for i in range(len(values))])
    return AnnData(values, obs=obs, var=pd.DataFrame(index=[f"gene{g}" for g in range(values.shape[1])]))


def _of_counts(cells: AnnData) -> AnnData:
    """The same cells with sparse layer `counts` and X = log1p CP10K."""
    from scipy.sparse import csr_matrix

    counts = csr_matrix(cells.layers.get("counts", cells.X))
    cells.layers["counts"] = counts
    cells.X = preprocessing.log_normalise(counts, cells=list(cells.obs_names))
    return cells


def with_presence(reference: AnnData, share: float) -> AnnData:
    """Mark in var `kept` the genes that more than `share` of the cells express."""
    reference.var["kept"] = preprocessing.presence_filter(reference.X, share)
    return reference


def _from_files(files: FileCohort) -> tuple[AnnData, AnnData]:
    pair = readers.read_pair(Path(files.reference), Path(files.target), (files.labels, files.target_labels or files.labels))
    ready = []
    for cells, name in zip(pair, (files.reference, files.target), strict=True):
        expression, _ = preprocessing.prepare_expression(cells, name=name)
        expression.obs = cells.obs[["label"]].copy()
        ready.append(expression)
    return ready[0], ready[1]
