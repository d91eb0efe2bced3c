"""Stage before supervised distillation: random regressors, the random subsets that distillation starts from, and the baselines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field

from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.distillation.quadratic import gaussian_regressors, is_identifiable, spectral_error, square_root_rows, threshold
from tasks.distillation.regression_data import read_table, split_table
from tasks.distillation.regression_sets import RegressionSet, write_sets
from tasks.distillation.subsets import leverage_rows, random_rows


class RegressionStartParams(Params):
    """Trials, sizes and numbers of regressors.

    Attributes:
        regressors: k by table, several to compare; the first k of one draw are used for each.
        sizes: numbers m of synthetic rows.
        trials: independent splits.
        seed: of everything random.
    """

    regressors: dict[str, tuple[int, ...]] = Field({"boston": (5, 100, 115), "concrete": (5, 100), "diabetes": (5, 100)}, min_length=1)
    sizes: tuple[int, ...] = Field((20, 50, 100), min_length=1)
    trials: int = Field(10, ge=1)
    seed: int = Field(0, ge=0)


def warmstart(params: RegressionStartParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `regressors.safetensors` with the draws by `<table>.<trial>`, `sets.parquet` with D_rand, D_lev and the closed form.

    Arms: `rand`, `lev`, `lev_unscaled` (the same rows without their factors), `root` (closed form). Metrics tell, by table,
    the threshold and whether each k identifies the second moment.
    """
    from safetensors.numpy import save_file

    draws: dict[str, np.ndarray] = {}
    sets: list[RegressionSet] = []
    metrics: Metrics = {}
    for number, (table, ks) in enumerate(log.progress(params.regressors.items(), desc="tables")):
        rows = read_table(inputs["prepare-tables"], table)
        q = rows.shape[1]
        metrics[f"threshold.{table}"] = float(threshold(q))
        for trial in range(params.trials):
            rng = np.random.default_rng([params.seed, number, trial])
            train, _ = split_table(rows, params.seed + trial)
            draws[f"{table}.{trial}"] = gaussian_regressors(max(ks), q, rng)
            for size in params.sizes:
                picked = train[random_rows(len(train), size, rng)]
                lev, factors = leverage_rows(train, size, rng)
                sets += [
                    RegressionSet(table, trial, "rand", size, picked),
                    RegressionSet(table, trial, "lev", size, train[lev] * factors[:, None]),
                    RegressionSet(table, trial, "lev_unscaled", size, train[lev]),
                    RegressionSet(table, trial, "root", size, square_root_rows(train, size)),
                ]
        metrics |= {f"identifiable.{table}_k{k}": float(is_identifiable(draws[f"{table}.0"][:k])) for k in ks}
        metrics[f"root.spectral_error.{table}"] = spectral_error(sets[-1].rows, train)
    save_file(draws, out / "regressors.safetensors")
    write_sets(out / "sets.parquet", sets)
    return metrics
