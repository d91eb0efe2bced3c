"""Train stage for problem S2: the union of three sets, with every combination of right and useless components.

A cell is named by the components that are right: `quantiles` (Y given X), `weights` (M given Z), `imputer` (Y given X, Z), or
`none`. A useless quantile model is a constant band, useless weights are constant, a useless imputer is a constant without
residual. `cells.parquet` holds coverage and mean length of each arm in each cell, per seed.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import paired, summarise
from tasks.conformal.datasets import PARTS, SHARES
from tasks.conformal.imputation import impute
from tasks.conformal.intervals import covers, cqr_interval, cqr_scores, lengths, union
from tasks.conformal.pcp import BETA, check_beta, pcp_threshold
from tasks.conformal.quantiles import Floats, conformal_quantile
from tasks.conformal.synthetic import Sample, three_ways, three_ways_law
from tasks.conformal.weights import likelihood_ratio_weights
from tasks.tabular.splits import random_parts

COMPONENTS = ("quantiles", "weights", "imputer")
CELLS: dict[str, tuple[bool, ...]] = {
    "_".join(name for name, right in zip(COMPONENTS, cell, strict=True) if right) or "none": cell
    for cell in product((False, True), repeat=3)
}
ARMS = ("union", "naive", "pcp", "ui", "clean_oracle")


class RobustnessParams(Params):
    """Size of the experiment; alpha and beta as in `CalibrateParams`."""

    seeds: int = Field(30, ge=1)
    rows: int = Field(20_000, ge=200)
    alpha: float = Field(0.1, gt=0.0, lt=1.0)
    beta: float = BETA

    @model_validator(mode="after")
    def _beta_below_alpha(self) -> RobustnessParams:
        check_beta(self.beta, self.alpha)
        return self


class _Item(NamedTuple):
    seed: int
    params: RobustnessParams


def train(params: RobustnessParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Coverage and length of the union and of its parts in every cell; reports them with the union's price in length."""
    items = [_Item(seed, params) for seed in range(params.seeds)]
    frames = list(log.progress(map_parallel(_one_seed, items), total=len(items), desc="seeds"))
    table = pd.concat(frames, ignore_index=True)
    write_parquet(out / "cells.parquet", table)
    metrics: Metrics = {}
    for (cell, arm), rows in table.groupby(["cell", "arm"], sort=False):
        metrics |= summarise(f"{arm}_{cell}.coverage.s2", rows["coverage"])
        metrics |= summarise(f"{arm}_{cell}.length.s2", rows["length"])
    for cell in CELLS:
        oracle, whole = (table[(table["cell"] == cell) & (table["arm"] == arm)]["length"] for arm in ("clean_oracle", "union"))
        metrics |= summarise(f"union_{cell}.length_ratio.s2", whole.to_numpy() / oracle.to_numpy())
    for cell in list(CELLS)[1:]:
        metrics |= paired(
            f"union_{cell}.coverage.s2-union_none.coverage.s2",
            table[(table["cell"] == cell) & (table["arm"] == "union")]["coverage"],
            table[(table["cell"] == "none") & (table["arm"] == "union")]["coverage"],
        )
    return metrics


def _one_seed(item: _Item) -> pd.DataFrame:
    p = item.params
    rng = np.random.default_rng([item.seed, 7])
    sample = three_ways(p.rows, rng)
    parts = random_parts(p.rows, SHARES, rng)
    draws = rng.standard_normal(p.rows)
    records = []
    for cell, (quantiles, weights, imputer) in CELLS.items():
        lower, upper = _band(sample, parts["train"], quantiles, p.alpha)
        sets = _cell_sets(sample, parts, lower, upper, weights, imputer, draws, p)
        y = sample.y[parts[PARTS[3]]]
        for arm, (lo, hi) in sets.items():
            records.append(
                {
                    "seed": item.seed,
                    "cell": cell,
                    "arm": arm,
                    "coverage": float(covers(y, lo, hi).mean()),
                    "length": float(lengths(lo, hi).mean()),
                }
            )
    return pd.DataFrame(records)


def _band(sample: Sample, train_rows: np.ndarray, right: bool, alpha: float) -> tuple[Floats, Floats]:
    from scipy.stats import norm

    if right:
        mean, sd = three_ways_law(sample.x)
        reach = float(norm.ppf(1 - alpha / 2)) * sd
        return mean - reach, mean + reach
    clean = sample.y[train_rows][~sample.masked[train_rows]]
    low, high = np.quantile(clean, [alpha / 2, 1 - alpha / 2])
    return np.full(sample.y.size, low), np.full(sample.y.size, high)


def _cell_sets(
    sample: Sample,
    parts: dict[str, np.ndarray],
    lower: Floats,
    upper: Floats,
    weights: bool,
    imputer: bool,
    draws: Floats,
    p: RobustnessParams,
) -> dict[str, tuple[Floats, Floats]]:
    cal, test = parts["calibration"], parts["test"]
    masked = sample.masked[cal]
    scores = cqr_scores(sample.y[cal], lower[cal], upper[cal])
    w = likelihood_ratio_weights(sample.probability[cal]) if weights else np.ones(cal.size)
    if imputer:
        # The law of Y given (X, Z) is that of Y given X here; its draws are the residuals of the true mean.
        mean, sd = three_ways_law(sample.x[cal])
        guess, residual = mean, sd * draws[cal]
    else:
        reference = parts["reference"]
        guess = np.full(cal.size, sample.y[reference][~sample.masked[reference]].mean())
        residual = np.zeros(cal.size)
    labels = impute(guess, sample.y[cal], masked, residual)
    thresholds = {
        "naive": conformal_quantile(scores[~masked], p.alpha),
        "pcp": pcp_threshold(scores, w, masked, p.alpha, p.beta),
        "ui": conformal_quantile(cqr_scores(labels, lower[cal], upper[cal]), p.alpha),
        "clean_oracle": conformal_quantile(scores, p.alpha),
    }
    sets = {arm: cqr_interval(lower[test], upper[test], q) for arm, q in thresholds.items()}
    return {"union": union(sets["naive"], sets["pcp"], sets["ui"]), **sets}
