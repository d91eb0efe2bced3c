"""Stage that distils regression tables by matching losses on random regressors."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from tasks.common.node import Inputs, Log, Metrics
from tasks.common.parallel import map_parallel
from tasks.distillation.quadratic import distil, spectral_error
from tasks.distillation.regression_data import read_table, split_table
from tasks.distillation.regression_sets import RegressionSet, read_sets, write_sets
from tasks.distillation.regression_warmstart import RegressionStartParams


class RegressionMatchingParams(RegressionStartParams):
    """As the stage before, and how to minimise."""

    optimiser: Literal["gauss_newton", "lbfgs", "adam"] = "gauss_newton"
    max_iterations: int = Field(2000, ge=1)


Job = tuple[str, int, np.ndarray, np.ndarray, list[np.ndarray], RegressionMatchingParams]


def train(params: RegressionMatchingParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `sets.parquet` with an arm `syn_k<k>` for every table, trial and size, each started from that cell's D_rand."""
    from safetensors.numpy import load_file

    draws = load_file(inputs.file("warmstart-supervised", "regressors.safetensors"))
    baselines = read_sets(inputs.file("warmstart-supervised", "sets.parquet"))
    jobs: list[Job] = []
    for table in params.regressors:
        rows = read_table(inputs["prepare-tables"], table)
        for trial in range(params.trials):
            train_rows, _ = split_table(rows, params.seed + trial)
            starts = [baselines[table, trial, "rand", size].rows for size in params.sizes]
            jobs.append((table, trial, train_rows, draws[f"{table}.{trial}"], starts, params))
    done = list(log.progress(map_parallel(_distil_trial, jobs), total=len(jobs), desc="distil"))
    write_sets(out / "sets.parquet", [s for sets, _ in done for s in sets])
    metrics: Metrics = {}
    for table, ks in params.regressors.items():
        for k in ks:
            cell = [(s, e) for sets, errors in done for s, e in zip(sets, errors, strict=True) if (s.table, s.arm) == (table, f"syn_k{k}")]
            metrics[f"syn_k{k}.objective_start.{table}"] = float(np.mean([s.start for s, _ in cell]))
            metrics[f"syn_k{k}.objective_end.{table}"] = float(np.mean([s.end for s, _ in cell]))
            metrics[f"syn_k{k}.spectral_error.{table}"] = float(np.mean([e for _, e in cell]))
    return metrics


def _distil_trial(job: Job) -> tuple[list[RegressionSet], list[float]]:
    table, trial, train_rows, regressors, starts, params = job
    sets, errors = [], []
    for k in params.regressors[table]:
        for start in starts:
            found = distil(train_rows, start, regressors[:k], params.optimiser, params.max_iterations)
            sets.append(RegressionSet(table, trial, f"syn_k{k}", len(start), found.rows, found.start, found.end))
            errors.append(spectral_error(found.rows, train_rows))
    return sets, errors
