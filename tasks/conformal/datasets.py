"""Prepare stage: tables, the probability that each label is corrupted, and random splits with the labels that went missing.

Per data set `rows-<name>.parquet` holds features x_*, privileged information z_*, the true label y (standardised) and its
corruption probability; `splits-<name>.parquet` holds, per split, which row is in which part, and whether its label is
corrupted. True labels of corrupted rows travel along for the evaluation; no method reads them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import Field, field_validator

from tasks.common.formats import write_json, write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.conformal.corruption import Mechanism, corrupt, corruption_probabilities
from tasks.conformal.quantiles import Floats
from tasks.conformal.synthetic import hard_weights
from tasks.tabular.encoding import encode, most_correlated, standardise
from tasks.tabular.official import LAYOUTS, Table, read_official
from tasks.tabular.rdatasets import load_table
from tasks.tabular.splits import random_parts

PARTS = ("train", "reference", "calibration", "test")
SHARES = {"train": 0.5, "reference": 0.1, "calibration": 0.2, "test": 0.2}
SYNTHETIC = "s1"
OVER_COVERED = "deliveries"
"""Naive sets over-cover here; reported beside the others, never pooled with them."""

# R package, item, target, columns that are dropped: keys, dates, and what is a part or a function of the target.
PACKAGED: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "diamonds": ("ggplot2", "diamonds", "price", ()),
    "randhie": (
        "sampleSelection",
        "RandHIE",
        "meddol",
        ("outpdol", "drugdol", "suppdol", "mentdol", "inpdol", "totadm", "lnmeddol", "binexp"),
    ),
    "hotel": ("modeldata", "hotel_rates", "avg_price_per_room", ()),
    "chicago": ("modeldata", "Chicago", "ridership", ("date",)),
    "ames": ("modeldata", "ames", "Sale_Price", ()),
    "deliveries": ("modeldata", "deliveries", "time_to_delivery", ()),
}
LOGARITHMIC = ("randhie",)


class PrepareParams(Params):
    """What is prepared.

    Attributes:
        data: names of data sets, from `PACKAGED`, `tasks.tabular.official.LAYOUTS`, or `s1`.
        folder: where published files lie, for the sets of `LAYOUTS`.
        splits: random splits of each set; split s has seed s.
        rows: rows that one split uses at most.
        rate: share of corrupted labels.
        mechanism: what corruption does to a label.
    """

    data: tuple[str, ...] = ("diamonds", "randhie", "hotel", "chicago", "ames", "deliveries", "s1")
    folder: str = "~/datasets/conformal"
    splits: int = Field(30, ge=1, le=1000)
    rows: int = Field(10_000, ge=100)
    rate: float = Field(0.2, gt=0.0, lt=0.25)
    mechanism: Mechanism = "missing"

    @field_validator("data")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        known = sorted({*PACKAGED, *LAYOUTS, SYNTHETIC})
        for name in names:
            if name not in known:
                raise ValueError(f"unknown data set {name!r}; known: {', '.join(known)}")
        if not names or len(set(names)) < len(names):
            raise ValueError(f"data must name each set once and at least one, got {list(names)}")
        return names


Kind = Literal["real", "over", "synthetic"]


def kind_of(name: str) -> Kind:
    """`real` sets are pooled; the over-covered and the synthetic one stand beside them."""
    return "synthetic" if name == SYNTHETIC else "over" if name == OVER_COVERED else "real"


def read_table(name: str, folder: Path) -> Table:
    """A real data set, encoded, with its most correlated feature as privileged information.

    Raises:
        KeyError: for an unknown name, listing the known ones.
        AssetMissing, FileNotFoundError, ValueError: see the loaders.
    """
    if name in LAYOUTS:
        return read_official(name, folder)
    if name not in PACKAGED:
        raise KeyError(f"unknown data set {name!r}; known: {', '.join(sorted({*PACKAGED, *LAYOUTS}))}")
    package, item, target, drop = PACKAGED[name]
    frame = load_table(package, item).drop(columns=list(drop))
    y = frame.pop(target).to_numpy(dtype=float)
    features = encode(frame)
    y = np.log1p(y) if name in LOGARITHMIC else y
    return Table(features, y, most_correlated(features, y))


def prepare(params: PrepareParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Write rows and splits of every data set; reports rows, features and corrupted shares."""
    metrics: Metrics = {}
    about = {}
    for name in log.progress(params.data, desc="data sets"):
        if name == SYNTHETIC:
            rows, splits, privileged = _synthetic_rows(params)
        else:
            table = read_table(name, Path(params.folder).expanduser())
            privileged = table.privileged
            rows, splits = _real_rows(table, params)
        write_parquet(out / f"rows-{name}.parquet", rows)
        write_parquet(out / f"splits-{name}.parquet", splits)
        features = [c for c in rows.columns if c.startswith("x_")]
        about[name] = {"kind": kind_of(name), "privileged": privileged, "mechanism": params.mechanism}
        metrics[f"rows.{name}"] = float(len(rows))
        metrics[f"features.{name}"] = float(len(features))
        metrics[f"corrupted_share.{name}"] = float(splits["masked"].mean())
        metrics[f"privileged_correlation.{name}"] = float(np.corrcoef(rows["z_0"], rows["y"])[0, 1])
    write_json(out / "data.json", about)
    return metrics


def _real_rows(table: Table, params: PrepareParams) -> tuple[pd.DataFrame, pd.DataFrame]:
    z = table.features[table.privileged].to_numpy()
    x = table.features.drop(columns=table.privileged)
    rows = pd.DataFrame({f"x_{i}": x.iloc[:, i].to_numpy() for i in range(x.shape[1])})
    rows["z_0"], rows["y"] = z, standardise(table.target)
    rows["probability"] = corruption_probabilities(z, params.rate)
    splits = [_split(rows, split, params) for split in range(params.splits)]
    return rows, pd.concat(splits, ignore_index=True)


def _split(rows: pd.DataFrame, split: int, params: PrepareParams) -> pd.DataFrame:
    rng = np.random.default_rng([split, 0])
    parts = random_parts(len(rows), SHARES, rng, at_most=params.rows)
    used = np.concatenate([parts[p] for p in PARTS])
    masked = rng.random(used.size) < rows["probability"].to_numpy()[used]
    return _split_frame(split, used, [parts[p].size for p in PARTS], masked, rows["y"].to_numpy()[used], params.mechanism)


def _split_frame(split: int, used: np.ndarray, sizes: list[int], masked: np.ndarray, y: Floats, mechanism: Mechanism) -> pd.DataFrame:
    observed = corrupt(y, masked, mechanism, np.random.default_rng([split, 1]))
    part = np.repeat(np.arange(len(PARTS), dtype=np.int8), sizes)
    return pd.DataFrame({"split": np.int16(split), "row": used.astype(np.int32), "part": part, "masked": masked, "observed": observed})


def _synthetic_rows(params: PrepareParams) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    frames, splits = [], []
    for split in range(params.splits):
        sample = hard_weights(params.rows, np.random.default_rng([split, 2]))
        frame = pd.DataFrame({f"x_{i}": sample.x[:, i] for i in range(sample.x.shape[1])})
        frame["z_0"], frame["y"], frame["probability"] = sample.z, sample.y, sample.probability
        frames.append(frame)
        parts = random_parts(params.rows, SHARES, np.random.default_rng([split, 3]))
        used = np.concatenate([parts[p] for p in PARTS])
        sizes = [parts[p].size for p in PARTS]
        plan = _split_frame(split, used, sizes, sample.masked[used], sample.y[used], params.mechanism)
        splits.append(plan.assign(row=(used + split * params.rows).astype(np.int32)))
    return pd.concat(frames, ignore_index=True), pd.concat(splits, ignore_index=True), "z"
