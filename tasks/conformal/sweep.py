"""Train stage for problem S3: a constant error is added to all weights, and Theorem 2 says which way the threshold goes.

Coverage of a threshold is exact here (a mixture of half-normal laws), so only the calibration rows are random.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.conformal.diagnostics import constant_error_effect, signed_weighted_quantile
from tasks.conformal.quantiles import conformal_quantile
from tasks.conformal.synthetic import SHIFTS, shifted_coverage, shifted_scores

DELTAS: dict[str, float] = {
    "m3": -3.0,
    "m1p5": -1.5,
    "m1p05": -1.05,
    "m0p9": -0.9,
    "m0p5": -0.5,
    "m0p1": -0.1,
    "0": 0.0,
    "p0p1": 0.1,
    "p0p5": 0.5,
    "p2": 2.0,
    "p10": 10.0,
    "p1000": 1000.0,
}
"""Errors by the name that metrics give them: m and p for the sign, p between digits for the point."""


class SweepParams(Params):
    """Size of the experiment: seeds, calibration rows of each, miscoverage level."""

    seeds: int = Field(20, ge=1)
    rows: int = Field(40_000, ge=100)
    alpha: float = Field(0.1, gt=0.0, lt=1.0)


class _Item(NamedTuple):
    case: str
    seed: int
    params: SweepParams


def train(params: SweepParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Coverage for every error and case; reports it, its difference from the error-free one, and whether Theorem 2 has the sign."""
    items = [_Item(case, seed, params) for case in SHIFTS for seed in range(params.seeds)]
    table = pd.concat(list(log.progress(map_parallel(_one_seed, items), total=len(items), desc="seeds")), ignore_index=True)
    write_parquet(out / "sweep.parquet", table)
    metrics: Metrics = {}
    for case in SHIFTS:
        rows = table[table["case"] == case]
        metrics |= summarise(f"naive.coverage.{case}", rows.groupby("seed")["naive"].first())
        for name in DELTAS:
            here = rows[rows["delta_name"] == name]
            metrics |= summarise(f"delta_{name}.coverage.{case}", here["coverage"])
            if name != "0":
                metrics |= summarise(f"delta_{name}.change.{case}", here["change"])
        metrics[f"largest_violation.{case}"] = float(rows["violation"].max())
        metrics |= summarise(f"mean_weight.{case}", rows.groupby("seed")["mean_weight"].first())
    return metrics


def _one_seed(item: _Item) -> pd.DataFrame:
    sample = shifted_scores(item.params.rows, item.case, np.random.default_rng([item.seed, 8, list(SHIFTS).index(item.case)]))
    level = 1 - item.params.alpha
    clean, weights = sample.scores[~sample.masked], sample.weights[~sample.masked]
    mean_weight = float((weights.sum() + 1.0) / (weights.size + 1))
    naive = float(shifted_coverage(conformal_quantile(clean, item.params.alpha)))
    records = []
    for name, delta in DELTAS.items():
        found = signed_weighted_quantile(clean, weights + delta, 1.0 + delta, level)
        records.append(
            {
                "case": item.case,
                "seed": item.seed,
                "delta_name": name,
                "delta": delta,
                "coverage": float(shifted_coverage(found.threshold)),
                "violation": found.violation,
                "theory": constant_error_effect(delta, mean_weight),
                "naive": naive,
                "mean_weight": mean_weight,
            }
        )
    frame = pd.DataFrame(records)
    frame["change"] = frame["coverage"] - float(frame.loc[frame["delta"] == 0.0, "coverage"].iloc[0])
    return frame
