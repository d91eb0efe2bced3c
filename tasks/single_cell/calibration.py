"""Train stage: rho of every target, chosen without labels on the held-out slice of its reference.

`rho.parquet` has the error of every rho that was tried, `chosen.json` the best one for each target and seed, in data units. What the
error without its mean would choose is reported beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pandas as pd
from pydantic import Field

from tasks.common.formats import write_json, write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.single_cell.cohort_files import Case, cases, read_cohort
from tasks.single_cell.held_out_slice import noised_slice
from tasks.single_cell.prior_training import read_fitted
from tasks.single_cell.rho_selection import GRID, best_rho, latent_rmse, score_rho
from tasks.single_cell.split_gibbs import GibbsParams


class CalibrateParams(Params):
    """How rho is chosen.

    Attributes:
        grid: values that are tried, in units of the latents' scale.
        gibbs: the chains; their rho is replaced.
        n_sub: levels of the reverse chain.
        device: where chains run.
    """

    grid: tuple[float, ...] = Field(GRID, min_length=1)
    gibbs: GibbsParams = GibbsParams(iterations=30, burn_in=6)
    n_sub: int = Field(16, ge=1)
    device: str = "cpu"


class _Item(NamedTuple):
    case: Case
    fitted: Path
    params: CalibrateParams


def train(params: CalibrateParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Choose rho for every target and seed; reports the choice and the slice's error before and after."""
    items = [_Item(case, inputs["warmstart"], params) for case in cases(inputs)]
    workers = 1 if params.device != "cpu" else None
    tables = list(log.progress(map_parallel(_choose, items, workers=workers), total=len(items), desc="rho"))
    write_parquet(out / "rho.parquet", pd.concat(tables, ignore_index=True))
    chosen: dict[str, list[float]] = {}
    metrics: Metrics = {}
    for target in dict.fromkeys(item.case.target for item in items):
        mine = [table for item, table in zip(items, tables, strict=True) if item.case.target == target]
        chosen[target] = [best_rho(table) for table in mine]
        best = [table.loc[table["rmse"].idxmin()] for table in mine]
        metrics |= summarise(f"dice.chosen_rho.{target}", chosen[target])
        metrics |= summarise(f"dice.chosen_rho_relative.{target}", [row["relative"] for row in best])
        centred = [best_rho(table, "rmse_centred") / table["rho"].iloc[0] * table["relative"].iloc[0] for table in mine]
        metrics |= summarise(f"dice.centred_rho_relative.{target}", centred)
        metrics |= summarise(f"dice.slice_rmse_ratio.{target}", [row["rmse"] / row["rmse_pca"] for row in best])
    write_json(out / "chosen.json", {"rho": chosen, "gibbs": params.gibbs.model_dump(), "n_sub": params.n_sub})
    return metrics


def _choose(item: _Item) -> pd.DataFrame:
    case = item.case
    fitted = read_fitted(item.fitted, case.family, case.seed, item.params.device, item.params.n_sub)
    rows = noised_slice(read_cohort(case.reference_file), fitted, read_cohort(case.target_file), case.seed)
    table = score_rho(
        fitted.space, fitted.prior, rows.clean, [rows.noisy], fitted.space.noise("identity"), item.params.gibbs, case.seed, item.params.grid
    )
    return table.assign(rmse_pca=latent_rmse(rows.noisy @ fitted.space.loadings, rows.latents), target=case.target, seed=case.seed)
