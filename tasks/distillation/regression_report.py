"""Stage that judges distilled regression sets: test error of linear models trained on them, against every baseline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from tasks.common.formats import read_parquet, write_parquet
from tasks.common.node import Inputs, Log, Metrics
from tasks.common.statistics import paired, summarise
from tasks.distillation import regression_figures as figures
from tasks.distillation.linear_models import least_squares, ridge, squared_error
from tasks.distillation.quadratic import second_moment
from tasks.distillation.regression_data import read_table, split_table
from tasks.distillation.regression_sets import RegressionSet, read_sets
from tasks.distillation.regression_warmstart import RegressionStartParams


class RegressionReportParams(RegressionStartParams):
    """The trials of the stages before."""


def evaluate(params: RegressionReportParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `errors.parquet` (table, trial, arm, size, mse), figures and metrics.

    By arm and cell `<table>_n<size>`: `mse` (test, standardised target), `log_mse`, `median_mse`, `relative_mse` (1 + paired excess over
    the full set divided by the full set's mean, so that its mean is the ratio of means), and the paired differences
    `syn_k<k>.mse.<cell>-{rand,lev}.mse.<cell>`, of `log_mse` too.
    """
    sets = read_sets(inputs.file("warmstart-supervised", "sets.parquet")) | read_sets(inputs.file("train-supervised", "sets.parquet"))
    splits = {
        table: [split_table(rows, params.seed + trial) for trial in range(params.trials)]
        for table in params.regressors
        for rows in [read_table(inputs["prepare-tables"], table)]
    }
    errors = _errors(params, sets, splits, log)
    write_parquet(out / "errors.parquet", errors)
    log.figure("error_by_size", figures.error_by_size(errors, params))
    sweeps = inputs["train-sweep"]
    log.figure("threshold", figures.threshold(read_parquet(sweeps / "sweep.parquet"), read_parquet(sweeps / "law.parquet")))
    first = next(iter(params.regressors))
    spectra = {"D_train": splits[first][0][0]} | {
        arm: sets[first, 0, arm, params.sizes[0]].rows for arm in ("rand", "lev", *(f"syn_k{k}" for k in params.regressors[first]))
    }
    log.figure("spectrum", figures.spectrum({n: np.linalg.eigvalsh(second_moment(r))[::-1] for n, r in spectra.items()}, first))
    return _metrics(errors, params)


def _errors(
    params: RegressionReportParams,
    sets: dict[tuple[str, int, str, int], RegressionSet],
    splits: dict[str, list[tuple[np.ndarray, np.ndarray]]],
    log: Log,
) -> pd.DataFrame:
    records = []
    for number, table in enumerate(log.progress(splits, desc="linear models")):
        arms = ["rand", "lev", "lev_unscaled", "root", *(f"syn_k{k}" for k in params.regressors[table])]
        for trial, (train, test) in enumerate(splits[table]):
            records.append((table, trial, "full", len(train), squared_error(least_squares(train), test)))
            rng = np.random.default_rng([params.seed, number, trial, 5])
            for size in params.sizes:
                for arm in arms:
                    rows = sets[table, trial, arm, size].rows
                    records.append((table, trial, arm, size, squared_error(least_squares(rows), test)))
                    if arm in ("rand", "lev"):
                        records.append((table, trial, f"{arm}_ridge", size, squared_error(ridge(rows, rng), test)))
    return pd.DataFrame(records, columns=["table", "trial", "arm", "size", "mse"])


def _metrics(errors: pd.DataFrame, params: RegressionReportParams) -> Metrics:
    metrics: Metrics = {}
    by_arm = {key: group.sort_values("trial").mse.to_numpy() for key, group in errors.groupby(["table", "arm", "size"])}
    for table, ks in params.regressors.items():
        full = next(v for (t, arm, _), v in by_arm.items() if (t, arm) == (table, "full"))
        metrics |= summarise(f"full.mse.{table}", full)
        for size in params.sizes:
            cell = f"{table}_n{size}"
            values = {arm: v for (t, arm, s), v in by_arm.items() if (t, s) == (table, size) and arm != "full"}
            for arm, mse in values.items():
                metrics |= summarise(f"{arm}.mse.{cell}", mse)
                metrics |= summarise(f"{arm}.log_mse.{cell}", np.log(mse))
                metrics |= summarise(f"{arm}.relative_mse.{cell}", 1 + (mse - full) / full.mean())
                metrics[f"{arm}.median_mse.{cell}"] = float(np.median(mse))
            for k in ks:
                for other in ("rand", "lev"):
                    ours, theirs = values[f"syn_k{k}"], values[other]
                    metrics |= paired(f"syn_k{k}.mse.{cell}-{other}.mse.{cell}", ours, theirs)
                    metrics |= paired(f"syn_k{k}.log_mse.{cell}-{other}.log_mse.{cell}", np.log(ours), np.log(theirs))
    return metrics
