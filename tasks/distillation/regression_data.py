"""Regression tables for distillation: loading, splitting, standardising, and the stage that prepares them.

A table is a frame of numbers whose last column is the target. Packaged tables come from pinned wheels; the wine-quality tables
are read from the official files (`winequality-red.csv`, `winequality-white.csv`, separator `;`, CC BY 4.0) in a folder that the
user names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from tasks.common.formats import read_parquet, write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.tabular.rdatasets import load_table

if TYPE_CHECKING:
    import pandas as pd

WINE_COLUMNS = (
    "fixed acidity",
    "volatile acidity",
    "citric acid",
    "residual sugar",
    "chlorides",
    "free sulfur dioxide",
    "total sulfur dioxide",
    "density",
    "pH",
    "sulphates",
    "alcohol",
    "quality",
)
WINE_SOURCE = "https://archive.ics.uci.edu/dataset/186/wine+quality"


class TableParams(Params):
    """Which tables to prepare.

    Attributes:
        tables: names, see `TABLES`.
        wine_folder: folder with the official wine-quality files, for `wine_red` and `wine_white`.
    """

    tables: tuple[str, ...] = Field(("boston", "concrete", "diabetes"), min_length=1)
    wine_folder: str = ""


def prepare(params: TableParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: write every table as `<name>.parquet`; report rows and coordinates q = features + target."""
    metrics: Metrics = {}
    for name in log.progress(params.tables, desc="tables"):
        frame = load_regression_table(name, params.wine_folder)
        write_parquet(out / f"{name}.parquet", frame)
        metrics |= {f"rows.{name}": float(len(frame)), f"coordinates.{name}": float(frame.shape[1])}
    return metrics


def load_regression_table(name: str, wine_folder: str = "") -> pd.DataFrame:
    """A table of float64 columns, the target last.

    Raises:
        KeyError: for an unknown name, with the list.
        FileNotFoundError: for wine without its file, saying where it comes from.
        ValueError: if columns are missing or numbers are not finite.

    Example:
        >>> load_regression_table("diabetes").shape
        (442, 11)
    """
    if name not in TABLES:
        raise KeyError(f"unknown table {name!r}; known: {', '.join(sorted(TABLES))}")
    frame = TABLES[name](wine_folder).astype(float)
    if not np.isfinite(frame.to_numpy()).all():
        raise ValueError(f"table {name!r} holds values that are missing or not finite; impute or drop those rows first")
    return frame


def read_wine(path: Path) -> pd.DataFrame:
    """One of the official wine-quality files.

    Raises:
        FileNotFoundError: without the file, saying where it comes from.
        ValueError: if it does not have the official columns.
    """
    import pandas as pd

    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; download it from {WINE_SOURCE} and set `wine_folder` to its folder")
    frame = pd.read_csv(path, sep=";")
    if tuple(frame.columns) != WINE_COLUMNS:
        raise ValueError(f"{path} has the columns {list(frame.columns)}; expected {list(WINE_COLUMNS)}, separated by ';'")
    return frame


def split_table(rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A random 80/20 split, every column standardised with the training part's mean and standard deviation.

    Args:
        rows: (n, q), the target last.
        seed: seed of the split.

    Returns:
        (train, test); constant columns become zero.

    Raises:
        ValueError: for fewer than 5 rows.
    """
    if len(rows) < 5:
        raise ValueError(f"an 80/20 split needs at least 5 rows, got {len(rows)}")
    order = np.random.default_rng([seed, 80]).permutation(len(rows))
    cut = int(0.8 * len(rows))
    train, test = rows[order[:cut]], rows[order[cut:]]
    mean, scale = train.mean(axis=0), train.std(axis=0)
    scale = np.where(scale > 1e-12, scale, 1.0)
    return (train - mean) / scale, (test - mean) / scale


def read_table(folder: Path, name: str) -> np.ndarray:
    """A prepared table as an array (n, q)."""
    return np.ascontiguousarray(read_parquet(folder / f"{name}.parquet").to_numpy(float))


def _boston(_: str) -> pd.DataFrame:
    return _target_last(load_table("MASS", "Boston"), "medv")


def _concrete(_: str) -> pd.DataFrame:
    return _target_last(load_table("modeldata", "concrete"), "compressive_strength")


def _diabetes(_: str) -> pd.DataFrame:
    from sklearn.datasets import load_diabetes

    return _target_last(load_diabetes(as_frame=True).frame, "target")


def _wine(colour: str) -> Callable[[str], pd.DataFrame]:
    return lambda folder: read_wine(Path(folder) / f"winequality-{colour}.csv")


def _target_last(frame: pd.DataFrame, target: str) -> pd.DataFrame:
    return frame[[c for c in frame.columns if c != target] + [target]]


TABLES: dict[str, Callable[[str], pd.DataFrame]] = {
    "boston": _boston,
    "concrete": _concrete,
    "diabetes": _diabetes,
    "wine_red": _wine("red"),
    "wine_white": _wine("white"),
}
