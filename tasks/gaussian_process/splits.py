"""One random split of one data set, standardised with what its training rows know, and the files in which stages hand it on.

A folder of splits holds `data.json` (what each set is) and one Parquet file per set and seed, with columns `x_0, x_1, ...`, `y` and
`test`. This module knows the files and the standardisation; where tables come from is `tasks.gaussian_process.datasets`' business.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tasks.common.formats import read_json, read_parquet, write_parquet

Task = Literal["regression", "classification"]
Floats = NDArray[np.float64]
MANIFEST = "data.json"


@dataclass(frozen=True)
class Split:
    """Training and test rows of one split.

    Attributes:
        x_train: (N, d), mean 0 and standard deviation 1 per feature (constant features: 0).
        y_train: (N,), standardised for a regression, class numbers 0..classes-1 (int64) for a classification.
        x_test: (T, d), shifted and scaled as the training rows.
        y_test: (T,), as `y_train`.
        y_mean: mean of the training targets in original units; 0 for a classification.
        y_sd: their standard deviation (ddof = 0) in original units; 1 for a classification.
        task: `regression` or `classification`.
        classes: number of classes; 0 for a regression.
    """

    x_train: Floats
    y_train: NDArray[Any]
    x_test: Floats
    y_test: NDArray[Any]
    y_mean: float
    y_sd: float
    task: Task
    classes: int

    def in_original_units(self, y: NDArray[Any]) -> Floats:
        """Standardised targets or predictions, of any shape, in the units of the table."""
        return np.asarray(y * self.y_sd + self.y_mean, dtype=float)


def standardised_split(
    x: NDArray[Any], y: NDArray[Any], train: NDArray[np.int64], test: NDArray[np.int64], task: Task, classes: int = 0, components: int = 0
) -> Split:
    """Cut a table into training and test rows, project and standardise with statistics of the training rows alone.

    Args:
        x: features, (n, d).
        y: targets (n,); class numbers for a classification.
        train: row numbers of the training part.
        test: row numbers of the test part.
        task: `regression` or `classification`.
        classes: number of classes; 0 for a regression.
        components: principal components of the training features that replace the features; 0 keeps the features.

    Raises:
        ValueError: for values that are not finite, parts that are empty or share rows, targets without spread, labels outside the
            classes, or more components than features or training rows.

    >>> x, y = np.arange(8.0).reshape(4, 2), np.array([1.0, 3.0, 5.0, 9.0])
    >>> split = standardised_split(x, y, np.array([0, 1]), np.array([3]), "regression")
    >>> split.x_train.tolist(), split.y_test.tolist(), split.y_mean, split.y_sd
    ([[-1.0, -1.0], [1.0, 1.0]], [7.0], 2.0, 1.0)
    """
    if task not in ("regression", "classification"):
        raise ValueError(f"unknown task {task!r}; known: regression, classification")
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise ValueError(f"x must be (n, d) and y (n,), got {x.shape} and {y.shape}")
    if train.size == 0 or test.size == 0 or np.intersect1d(train, test).size:
        raise ValueError(f"parts must be disjoint and not empty, got {train.size} training and {test.size} test rows")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError(f"the table must hold finite numbers, {int((~np.isfinite(x)).sum() + (~np.isfinite(y)).sum())} are not")
    x_train, x_test = x[train], x[test]
    if components:
        x_train, x_test = _project(x_train, x_test, components)
    centre, spread = x_train.mean(axis=0), x_train.std(axis=0)
    scale = np.where(spread > 1e-12 * np.maximum(np.abs(centre), 1.0), spread, np.inf)  # a constant feature becomes 0
    x_train, x_test = (x_train - centre) / scale, (x_test - centre) / scale
    if task == "classification":
        if y.min() < 0 or y.max() >= classes or np.any(y != np.floor(y)):
            raise ValueError(f"labels must be whole numbers in 0..{classes - 1}, got {y.min()} to {y.max()}")
        return Split(x_train, y[train].astype(np.int64), x_test, y[test].astype(np.int64), 0.0, 1.0, task, classes)
    mean, sd = float(y[train].mean()), float(y[train].std())
    if sd == 0.0:
        raise ValueError(f"all {train.size} training targets are equal to {mean}; nothing to learn")
    return Split(x_train, (y[train] - mean) / sd, x_test, (y[test] - mean) / sd, mean, sd, task, 0)


def _project(x_train: NDArray[Any], x_test: NDArray[Any], components: int) -> tuple[Floats, Floats]:
    from sklearn.decomposition import PCA
    from threadpoolctl import threadpool_limits

    if components > min(x_train.shape):
        raise ValueError(f"components must be at most {min(x_train.shape)} with training features {x_train.shape}, got {components}")
    with threadpool_limits(1):  # the last bits of a product depend on the number of threads
        pca = PCA(components, svd_solver="covariance_eigh").fit(x_train)
        return np.ascontiguousarray(pca.transform(x_train)), np.ascontiguousarray(pca.transform(x_test))


def split_file(name: str, seed: int) -> str:
    """Name of the file that holds split `seed` of a data set."""
    return f"{name}-{seed}.parquet"


def save_split(folder: Path, name: str, seed: int, split: Split) -> None:
    """Write the rows of a split; what the data set is goes into the manifest (`describe`)."""
    import pandas as pd

    x = np.concatenate([split.x_train, split.x_test])
    columns: dict[str, NDArray[Any]] = {f"x_{i}": x[:, i] for i in range(x.shape[1])}
    columns["y"] = np.concatenate([split.y_train, split.y_test])
    columns["test"] = np.repeat([False, True], [len(split.x_train), len(split.x_test)])
    write_parquet(folder / split_file(name, seed), pd.DataFrame(columns))


def describe(splits: list[Split], *, fixed: bool = False) -> dict[str, Any]:
    """Manifest entry of a data set: its task and classes, and per seed the units of the target.

    Args:
        splits: one per seed, in the order of the seeds.
        fixed: the set comes with its own test rows, so that one file serves every seed.
    """
    first = splits[0]
    return {
        "task": first.task,
        "classes": first.classes,
        "features": first.x_train.shape[1],
        "seeds": len(splits),
        "fixed": fixed,
        "y_mean": [s.y_mean for s in splits],
        "y_sd": [s.y_sd for s in splits],
    }


def load_split(folder: Path, name: str, seed: int) -> Split:
    """Split `seed` of a data set as the prepare stage left it.

    Args:
        folder: of the prepare stage.
        name: of the data set.
        seed: number of the split; sets with their own test rows return the same split for every seed.

    Raises:
        KeyError: for a set that was not prepared, naming those that were.
        ValueError: for a seed that was not prepared.
    """
    sets = read_json(folder / MANIFEST)["splits"]
    if name not in sets:
        raise KeyError(f"data set {name!r} was not prepared; prepared: {', '.join(sorted(sets)) or 'none'}")
    about = sets[name]
    index = 0 if about["fixed"] else seed
    if not 0 <= index < about["seeds"]:
        raise ValueError(f"seed must lie in 0..{about['seeds'] - 1} for data set {name!r}, got {seed}; prepare more seeds")
    frame = read_parquet(folder / split_file(name, index))
    x = frame[[f"x_{i}" for i in range(about["features"])]].to_numpy()
    y, test = frame["y"].to_numpy(), frame["test"].to_numpy()
    mean, sd = about["y_mean"][index], about["y_sd"][index]
    return Split(x[~test], y[~test], x[test], y[test], mean, sd, about["task"], about["classes"])
