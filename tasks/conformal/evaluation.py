"""Evaluate stage: coverage and length of every arm's sets on the test rows, per split, with intervals over splits.

`scores.parquet` keeps one row per (data, split, arm), `summary.parquet` means with standard errors and bootstrap intervals.
A length is a mean over finite sets; the share of infinite ones stands in a metric of its own. High z is the top quarter, where
labels go missing. `pooled` is the mean over the real sets, split by split.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import Field

from tasks.common.formats import read_json, read_parquet, write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.statistics import bootstrap_interval, paired, standard_error, summarise
from tasks.conformal import figures
from tasks.conformal.calibration import Split, read_splits
from tasks.conformal.intervals import covers, cqr_interval, lengths, union
from tasks.conformal.quantiles import Floats

MAIN = ("naive", "clean_oracle", "wcp", "pcp_true", "pcp_est", "naive_imp", "ui", "ui_global", "triply")
PARTS_OF_UNION = ("naive", "pcp_est", "ui")
PAIRS = (
    ("naive_imp.coverage", "ui.coverage"),
    ("naive_imp.coverage", "ui_global.coverage"),
    ("ui_global.coverage", "ui.coverage"),
    ("ui.length", "pcp_est.length"),
    ("ui_blind.length", "pcp_est.length"),
    ("naive.coverage", "clean_oracle.coverage"),
)
"""Paired differences, reported for every set and pooled."""


class EvaluateParams(Params):
    """How results are summarised: resamples of the bootstrap."""

    resamples: int = Field(1000, ge=10)


def evaluate(params: EvaluateParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Judge all arms on the test rows of all splits, and draw the figures of the paper's page."""
    about = read_json(inputs.file("prepare", "data.json"))
    thresholds = read_parquet(inputs.file("train-thresholds", "thresholds.parquet"))
    with_z = read_parquet(inputs.file("train-thresholds", "with_z.parquet"))
    frames, deciles = [], []
    for name in log.progress(about, desc="data sets"):
        splits = read_splits(inputs.file("warmstart", f"predictions-{name}.parquet"))
        by_split = dict(iter(thresholds[thresholds["data"] == name].groupby("split")))
        z_by_split = dict(iter(with_z[with_z["data"] == name].groupby("split")))
        for split in splits:
            arms = by_split[split.seed].set_index("arm")["threshold"].to_dict()
            sets = arm_sets(split, arms, z_by_split[split.seed]["threshold"].to_numpy())
            frames.append(score_sets(split, sets).assign(data=name, split=split.seed))
            deciles.append(coverage_by_decile(split, sets).assign(data=name, split=split.seed))
    scores = pd.concat(frames, ignore_index=True)
    write_parquet(out / "scores.parquet", scores)
    write_parquet(out / "summary.parquet", _summary(scores, params.resamples))
    real = [name for name, entry in about.items() if entry["kind"] == "real"]
    _draw(inputs, log, scores, pd.concat(deciles, ignore_index=True), real)
    return metrics_of(scores, real)


def arm_sets(split: Split, thresholds: dict[str, float], with_z: Floats) -> dict[str, tuple[Floats, Floats]]:
    """Prediction sets of all arms on the test rows: `(lo, hi)` by arm; the triply robust one is a union, shape (n, 3)."""
    lower, upper = split.test["lower"].to_numpy(), split.test["upper"].to_numpy()
    sets = {arm: cqr_interval(lower, upper, q) for arm, q in thresholds.items()}
    sets["wcp"] = cqr_interval(lower, upper, with_z)
    sets["triply"] = union(*(sets[arm] for arm in PARTS_OF_UNION))
    return sets


def score_sets(split: Split, sets: dict[str, tuple[Floats, Floats]]) -> pd.DataFrame:
    """Coverage, coverage by z, mean length of finite sets (NaN if none) and share of infinite ones, a row per arm."""
    y, high = split.test["y"].to_numpy(), high_z(split)
    records = []
    for arm, (lo, hi) in sets.items():
        inside, length = covers(y, lo, hi), lengths(lo, hi)
        finite = np.isfinite(length)
        records.append(
            {
                "arm": arm,
                "coverage": float(inside.mean()),
                "coverage_high_z": float(inside[high].mean()),
                "coverage_low_z": float(inside[~high].mean()),
                "length": float(length[finite].mean()) if finite.any() else np.nan,
                "infinite_share": float(1.0 - finite.mean()),
            }
        )
    return pd.DataFrame(records)


def high_z(split: Split) -> np.ndarray:
    """Test rows in the top quarter of the (first) privileged feature, where labels go missing."""
    z = split.test["z_0"].to_numpy()
    return np.asarray(z >= np.quantile(z, 0.75))


def coverage_by_decile(split: Split, sets: dict[str, tuple[Floats, Floats]]) -> pd.DataFrame:
    """Coverage of naive sets and of UI in each tenth of the test rows, ordered by z."""
    y, z = split.test["y"].to_numpy(), split.test["z_0"].to_numpy()
    decile = np.argsort(np.argsort(z, kind="stable"), kind="stable") * 10 // z.size
    frame = pd.DataFrame({"decile": decile, **{arm: covers(y, *sets[arm]) for arm in ("naive", "ui")}})
    return frame.groupby("decile", as_index=False).mean()


def metrics_of(scores: pd.DataFrame, real: list[str]) -> Metrics:
    """All metrics, from the table of scores; `real` names the sets that are pooled."""
    values = {
        (str(arm), str(name)): rows.sort_values("split").reset_index(drop=True) for (arm, name), rows in scores.groupby(["arm", "data"])
    }
    names = sorted({n for _, n in values})
    series = {(f"{arm}.{key}", name): values[arm, name][key].to_numpy() for arm, name in values for key in _keys(arm)}
    metrics: Metrics = {}
    if real:
        for what in sorted({what for what, _ in series}):
            series[what, "pooled"] = np.mean([series[what, name] for name in real], axis=0)
        names.append("pooled")
    for (what, name), numbers in series.items():
        if what.endswith("infinite_share"):
            metrics[f"{what}.{name}"] = float(numbers.mean())
        else:
            metrics |= _if_any(summarise, f"{what}.{name}", numbers)
    for (a, b), name in product(PAIRS, names):
        metrics |= _if_any(paired, f"{a}.{name}-{b}.{name}", series[a, name], series[b, name])
    for arm in ("triply", *PARTS_OF_UNION):
        shortfall = [_below_parts(values, arm, name) for name in names if name != "pooled"]
        metrics[f"{arm}.below_parts.all"] = float(sum(s.sum() for s in shortfall))
        metrics[f"{arm}.below_parts.all.n"] = float(sum(s.size for s in shortfall))
    return metrics


def _keys(arm: str) -> tuple[str, ...]:
    return ("coverage", "length", "coverage_high_z", "coverage_low_z", "infinite_share") if arm in MAIN else ("coverage", "length")


def _if_any(report: object, name: str, *numbers: Floats) -> Metrics:
    """Report the splits in which every number is finite; a length that is never finite has no metric."""
    finite = np.logical_and.reduce([np.isfinite(n) for n in numbers])
    return report(name, *(n[finite] for n in numbers)) if finite.any() else {}  # type: ignore[operator]


def _below_parts(values: dict[tuple[str, str], pd.DataFrame], arm: str, name: str) -> np.ndarray:
    best = np.maximum.reduce([values[part, name]["coverage"].to_numpy() for part in PARTS_OF_UNION])
    return np.asarray(values[arm, name]["coverage"].to_numpy() < best)


def _summary(scores: pd.DataFrame, resamples: int) -> pd.DataFrame:
    records = []
    for (name, arm), rows in scores.groupby(["data", "arm"]):
        for key in ("coverage", "length"):
            numbers = rows[key].to_numpy()
            numbers = numbers[np.isfinite(numbers)]
            if numbers.size:
                lo, hi = bootstrap_interval(numbers, np.random.default_rng(0), resamples=resamples)
                records.append(
                    {"data": name, "arm": arm, "metric": key, "mean": numbers.mean(), "se": standard_error(numbers), "lo": lo, "hi": hi}
                )
    return pd.DataFrame(records)


def _draw(inputs: Inputs, log: Log, scores: pd.DataFrame, deciles: pd.DataFrame, real: Iterable[str]) -> None:
    real = list(real)
    log.figure("coverage", figures.coverage_boxes(scores, real))
    log.figure("length", figures.length_boxes(scores, real))
    log.figure("coverage_by_z", figures.coverage_by_z(deciles, real))
    log.figure("imputed_labels", figures.imputed_labels(read_parquet(inputs.file("train-thresholds", "imputed.parquet")), real))
    log.figure("weight_error", figures.weight_error(read_parquet(inputs.file("train-sweep", "sweep.parquet"))))
    log.figure("triply_robust", figures.triply_robust(read_parquet(inputs.file("train-triply", "cells.parquet"))))
    log.figure("ablation", figures.ablation(scores, real))
