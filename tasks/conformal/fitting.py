"""Warm-start stage: per split, quantile models, imputer and mask model, and what they say about every row that is not for training.

`predictions-<data>.parquet` holds reference, calibration and test rows of all splits with the models' outputs, so that the
conformal methods, which are cheap, never need a model. No model sees anything but training rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field

from tasks.common.formats import read_json, read_parquet, write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.conformal import models
from tasks.conformal.datasets import PARTS, SYNTHETIC
from tasks.conformal.mlp import MlpParams, fit_mlp_quantiles
from tasks.conformal.quantiles import Floats

WIDER = (64, 128, 64, 32)
"""Hidden layers for the Facebook sets in the experiments of Feldman & Romano (2024)."""


class FitParams(Params):
    """How the models are fitted.

    Attributes:
        alpha: miscoverage level; the quantile models aim at alpha/2 and 1 - alpha/2.
        model: quantile models of the real sets, boosted trees or networks (all splits of a set trained as one batch).
        device: where networks are trained.
        iterations: most trees of each boosted model; half as many for the mask model.
        mlp: the networks.
        hidden: widths of the hidden layers by data set, where they differ from those of `mlp`.
    """

    alpha: float = Field(0.1, gt=0.0, lt=1.0)
    model: Literal["trees", "mlp"] = "trees"
    device: Literal["cpu", "cuda"] = "cpu"
    iterations: int = Field(120, ge=2)
    mlp: MlpParams = MlpParams()
    hidden: dict[str, tuple[int, ...]] = Field({"facebook_1": WIDER, "facebook_2": WIDER})

    def networks(self, data: str) -> MlpParams:
        """The networks of one data set."""
        return self.mlp.model_copy(update={"hidden": self.hidden.get(data, self.mlp.hidden)})


class _Item(NamedTuple):
    folder: Path
    data: str
    split: int
    params: FitParams


class SplitRows(NamedTuple):
    """Rows of one split: training features, labels and mask, and the other rows' table with their features."""

    x: Floats
    z: Floats
    y: Floats
    masked: np.ndarray
    rest: pd.DataFrame
    x_rest: Floats
    z_rest: Floats


def warmstart(params: FitParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Fit everything and write predictions; reports R^2 of the imputer and AUC of the mask model."""
    folder = inputs["prepare"]
    names = list(read_json(inputs.file("prepare", "data.json")))
    splits = {name: read_parquet(folder / f"splits-{name}.parquet", ["split"])["split"].unique().tolist() for name in names}
    items = [_Item(folder, name, split, params) for name in names for split in splits[name]]
    results = dict(
        zip(
            [(i.data, i.split) for i in items],
            log.progress(map_parallel(_fit_split, items), total=len(items), desc="models"),
            strict=True,
        )
    )
    metrics: Metrics = {}
    for name in names:
        frames = [results[name, split][0] for split in splits[name]]
        if params.model == "mlp" and name != SYNTHETIC:
            frames = _with_networks(frames, _Item(folder, name, -1, params), splits[name])
        write_parquet(out / f"predictions-{name}.parquet", pd.concat(frames, ignore_index=True))
        for key in ("imputer_r2", "mask_auc"):
            metrics |= summarise(f"{key}.{name}", [results[name, split][1][key] for split in splits[name]])
    return metrics


def read_split(folder: Path, data: str, split: int) -> SplitRows:
    """Rows of one split out of the prepare stage's folder; labels of training rows are as observed."""
    plan = read_parquet(folder / f"splits-{data}.parquet")
    plan = plan[plan["split"] == split]
    rows = read_parquet(folder / f"rows-{data}.parquet").iloc[plan["row"].to_numpy()]
    x = rows[[c for c in rows.columns if c.startswith("x_")]].to_numpy()
    z_names = [c for c in rows.columns if c.startswith("z_")]
    z, masked = rows[z_names].to_numpy(), plan["masked"].to_numpy()
    train = plan["part"].to_numpy() == PARTS.index("train")
    rest = plan[~train].reset_index(drop=True)
    for column in (*z_names, "y", "probability"):
        rest[column] = rows[column].to_numpy()[~train]
    return SplitRows(x[train], z[train], plan["observed"].to_numpy()[train], masked[train], rest, x[~train], z[~train])


def _fit_split(item: _Item) -> tuple[pd.DataFrame, dict[str, float]]:
    from sklearn.metrics import r2_score, roc_auc_score

    rows, p = read_split(item.folder, item.data, item.split), item.params
    clean, both, both_rest = ~rows.masked, np.hstack([rows.x, rows.z]), np.hstack([rows.x_rest, rows.z_rest])
    x, y, xz = rows.x[clean], rows.y[clean], both[clean]
    linear = item.data == SYNTHETIC
    rest = rows.rest
    if linear:
        rest["lower"], rest["upper"] = models.linear_quantiles(x, y, p.alpha)(rows.x_rest)
    elif p.model == "trees":
        rest["lower"], rest["upper"] = models.tree_quantiles(x, y, p.alpha, item.split, p.iterations)(rows.x_rest)
    rest["impute_linear"] = models.linear_mean(xz, y)(both_rest)
    rest["impute"] = rest["impute_linear"] if linear else models.tree_mean(xz, y, item.split, p.iterations)(both_rest)
    mask = models.linear_mask(both, rows.masked) if linear else models.tree_mask(both, rows.masked, item.split, p.iterations // 2)
    rest["mask_probability"] = mask(both_rest)
    seen = rest["masked"].nunique() > 1
    quality = {
        "imputer_r2": float(r2_score(rest["y"], rest["impute"])),
        "mask_auc": float(roc_auc_score(rest["masked"], rest["mask_probability"])) if seen else 0.5,
    }
    return rest, quality


def _with_networks(frames: list[pd.DataFrame], item: _Item, splits: list[int]) -> list[pd.DataFrame]:
    batch = (item, tuple(splits))
    # On a CPU in a process of its own thread count, so that the number of cores cannot change a sum's order.
    (pairs,) = map_parallel(_fit_networks, [batch], workers=1) if item.params.device == "cpu" else (_fit_networks(batch),)
    return [frame.assign(lower=pair[0], upper=pair[1]) for frame, pair in zip(frames, pairs, strict=True)]


def _fit_networks(batch: tuple[_Item, tuple[int, ...]]) -> list[tuple[Floats, Floats]]:
    item, splits = batch
    rows = [read_split(item.folder, item.data, split) for split in splits]
    return fit_mlp_quantiles(
        [(r.x[~r.masked], r.y[~r.masked]) for r in rows],
        [r.x_rest for r in rows],
        item.params.alpha,
        item.params.networks(item.data),
        seeds=splits,
        device=item.params.device,
    )
