"""Readers of the deep-GP literature's benchmark files in the layout in which their owners publish them; nothing is downloaded.

A reader takes a local file under its published name, checks the layout and returns `Rows`. What to fetch and from where:
`LAYOUTS` for tables, `IMAGES` for images. Tables with test rows of their own (the last rows of the file) say how many.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tasks.common.assets import AssetMissing
from tasks.gaussian_process.splits import Task

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Rows:
    """A data set before it is split.

    Attributes:
        features: (n, d).
        target: (n,); class numbers from 0 for a classification.
        task: `regression` or `classification`.
        classes: number of classes; 0 for a regression.
        test_rows: the last so many rows are the owners' test set; 0 where splits are random.
    """

    features: NDArray[Any]
    target: NDArray[Any]
    task: Task = "regression"
    classes: int = 0
    test_rows: int = 0


@dataclass(frozen=True)
class Layout:
    """How one published table looks.

    Attributes:
        file: its published name.
        source: where to get it.
        columns: how many it has.
        target: position or name of the target; other targets are in `drop`.
        drop: positions or names of columns that are no features.
        separator: between columns: a regular expression, or `excel`, or `arff`.
        header: whether the first line names the columns.
        keep: names of the columns that are used, where a file may have more.
        task: `regression`, or `classification` with labels 0 and 1.
        test_rows: the last so many rows are the owners' test set.
    """

    file: str
    source: str
    columns: int
    target: int | str = -1
    drop: tuple[int | str, ...] = ()
    separator: str = ","
    header: bool = False
    keep: tuple[str, ...] = ()
    task: Task = "regression"
    test_rows: int = 0


_UCI = "https://archive.ics.uci.edu/dataset"
_AIRLINE = ("Month", "DayofMonth", "DayOfWeek", "DepTime", "ArrTime", "AirTime", "Distance", "plane_age", "ArrDelay")

LAYOUTS: dict[str, Layout] = {
    "uci_boston": Layout("housing.data", "https://archive.ics.uci.edu/ml/machine-learning-databases/housing/", 14, separator=r"\s+"),
    "uci_concrete": Layout("Concrete_Data.xls", f"{_UCI}/165", 9, separator="excel", header=True),
    "energy": Layout("ENB2012_data.xlsx", f"{_UCI}/242", 10, "Y1", ("Y2",), separator="excel", header=True),
    "power": Layout("Folds5x2_pp.xlsx", f"{_UCI}/294", 5, "PE", separator="excel", header=True),
    "yacht": Layout("yacht_hydrodynamics.data", f"{_UCI}/243", 7, separator=r"\s+"),
    "kin8nm": Layout("kin8nm.arff", "https://www.openml.org/d/189", 9, separator="arff"),
    "protein": Layout("CASP.csv", f"{_UCI}/265", 10, "RMSD", header=True),
    "naval": Layout("data.txt", f"{_UCI}/316 (condition based maintenance of naval propulsion plants)", 18, 16, (17,), separator=r"\s+"),
    # The paper names a QSAR set without saying which of UCI's; this is the regression of aquatic toxicity.
    "qsar": Layout("qsar_aquatic_toxicity.csv", f"{_UCI}/505", 9, separator=";"),
    "yearmsd": Layout("YearPredictionMSD.txt", f"{_UCI}/203", 91, 0, test_rows=51_630),
    "airline": Layout(
        "airline.csv",
        "https://doi.org/10.7910/DVN/HG7NV7 (flights of 2008, ages of planes joined by tail number)",
        9,
        "ArrDelay",
        header=True,
        keep=_AIRLINE,
    ),
    "susy": Layout("SUSY.csv.gz", f"{_UCI}/279", 19, 0, task="classification", test_rows=500_000),
    "higgs": Layout("HIGGS.csv.gz", f"{_UCI}/280", 29, 0, task="classification", test_rows=500_000),
}
"""Layout by data set. UCI archives are unpacked first, so that the file itself lies in the folder."""

IMAGES: dict[str, str] = {
    "mnist": "the four IDX files of http://yann.lecun.com/exdb/mnist (mirror: https://huggingface.co/datasets/ylecun/mnist)",
    "fashion_mnist": "Debian's package dataset-fashion-mnist, or https://github.com/zalandoresearch/fashion-mnist",
    "cifar10": "the features of a ResNet-20, which must be trained first: arrays x_train (50000, d), y_train, x_test (10000, d), y_test",
    "frey": "https://cs.nyu.edu/~roweis/data.html (frey_rawface.mat)",
}
"""Where images come from, by data set; IDX files lie in a folder of the set's name."""

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
CIFAR_FEATURES = "cifar10_resnet20"
FREY = ("frey_rawface.mat", (20 * 28, 1965))


def read_table(name: str, folder: Path) -> Rows:
    """Read a published table of `LAYOUTS` from `folder`; columns that are not used go, constant features stay.

    Raises:
        KeyError: for an unknown name, listing the known ones.
        AssetMissing: if the file is not there, saying where it comes from.
        ValueError: if the file cannot be read, has other columns, values that are no finite numbers, labels other than 0 and 1,
            or no more rows than its owners' test set.
    """
    if name not in LAYOUTS:
        raise KeyError(f"unknown data set {name!r}; known: {', '.join(sorted(LAYOUTS))}")
    layout = LAYOUTS[name]
    path = folder / layout.file
    if layout.separator == "arff" and not path.is_file() and path.with_suffix(".csv").is_file():
        path = path.with_suffix(".csv")  # OpenML offers both
    _present(path, layout.source)
    try:
        frame = _frame(path, layout)
    except (ValueError, KeyError, OSError, EOFError, ImportError) as error:
        if isinstance(error, ImportError):
            raise
        raise ValueError(f"{path} cannot be read ({error}); fetch it again from {layout.source}") from None
    if layout.keep:
        absent = [c for c in layout.keep if c not in frame.columns]
        if absent:
            raise ValueError(f"{path} has no columns {absent}; is it the file from {layout.source}?")
        frame = frame[list(layout.keep)].dropna()
    if frame.shape[1] != layout.columns:
        raise ValueError(f"{path} has {frame.shape[1]} columns, expected {layout.columns}; is it the file from {layout.source}?")
    target, *others = (_column(frame, c) for c in (layout.target, *layout.drop))
    for column in (target, *others):
        if column not in frame.columns:
            raise ValueError(f"{path} has no column {column!r}; is it the file from {layout.source}?")
    try:
        values = frame.to_numpy(dtype=np.float32 if len(frame) > 1_000_000 else float)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} holds something else than numbers ({error}); fetch it again from {layout.source}") from None
    if not np.isfinite(values).all():
        raise ValueError(f"{path} has {int((~np.isfinite(values)).sum())} gaps; fetch it again from {layout.source}")
    if len(values) <= layout.test_rows:
        raise ValueError(f"{path} has {len(values)} rows, of which the last {layout.test_rows} are for testing; it is cut short")
    names = list(frame.columns)
    y = values[:, names.index(target)]
    x = values[:, [i for i, column in enumerate(names) if column not in (target, *others)]]
    if layout.task == "classification" and not np.isin(y, (0, 1)).all():
        raise ValueError(f"{path} must have labels 0 and 1 in column {layout.target}, got {np.unique(y)[:5].tolist()}")
    return Rows(x, y, layout.task, 2 if layout.task == "classification" else 0, layout.test_rows)


def _present(path: Path, source: str) -> Path:
    if not path.is_file():
        raise AssetMissing(str(path), f"get {path.name} from {source}", "is missing")
    return path


def _column(frame: pd.DataFrame, column: int | str) -> Any:
    return frame.columns[column] if isinstance(column, int) else column


def _frame(path: Path, layout: Layout) -> pd.DataFrame:
    import pandas as pd

    header = 0 if layout.header else None
    if layout.separator == "excel":
        frame = pd.read_excel(path, header=header)
        return frame.dropna(axis=0, how="all").dropna(axis=1, how="all")
    if path.suffix == ".csv" and layout.separator == "arff":
        return pd.read_csv(path)
    if layout.separator == "arff":
        lines = path.read_text(encoding="utf-8").splitlines()
        start = next((i for i, line in enumerate(lines) if line.strip().lower() == "@data"), None)
        if start is None:
            raise ValueError("there is no line @data")
        return pd.read_csv(path, header=None, skiprows=start + 1, comment="%")
    return pd.read_csv(path, header=header, sep=layout.separator, usecols=list(layout.keep) or None)


def read_images(name: str, folder: Path) -> Rows:
    """Read a published image classification set (`mnist`, `fashion_mnist`, `cifar10`): training rows, then the owners' test rows.

    Fashion-MNIST is also looked for where Debian installs it.

    Raises:
        KeyError: for an unknown name.
        AssetMissing: if a file is not there, saying where it comes from.
        ValueError: for a damaged file or one of another layout.
    """
    if name == "cifar10":
        parts = _cifar_features(folder)
    elif name in ("mnist", "fashion_mnist"):
        where = folder / name
        if name == "fashion_mnist" and not where.is_dir() and DEBIAN.is_dir():
            where = DEBIAN
        parts = [_idx(where, f"{p}-{kind}-ubyte", axes, IMAGES[name]) for p in ("train", "t10k") for kind, axes in _KINDS]
    else:
        raise KeyError(f"unknown data set {name!r}; known: cifar10, fashion_mnist, mnist")
    x_train, y_train, x_test, y_test = parts
    for x, y in ((x_train, y_train), (x_test, y_test)):
        if len(x) != len(y):
            raise ValueError(f"{name} has {len(x)} images and {len(y)} labels; fetch it again: {IMAGES[name]}")
    if x_train.shape[1:] != x_test.shape[1:]:
        raise ValueError(f"{name} has training images {x_train.shape[1:]} and test images {x_test.shape[1:]}")
    x = np.concatenate([x_train, x_test]).reshape(len(x_train) + len(x_test), -1).astype(np.float32)
    y = np.concatenate([y_train, y_test]).astype(np.int64)
    if y.min() < 0 or y.max() > 9:
        raise ValueError(f"{name} must have labels 0..9, got {y.min()}..{y.max()}")
    return Rows(x, y, "classification", 10, len(x_test))


_KINDS = (("images-idx3", 3), ("labels-idx1", 1))


def _idx(folder: Path, stem: str, axes: int, source: str) -> NDArray[np.uint8]:
    """One IDX file of unsigned bytes: magic 0, 0, 8, axes; sizes as big-endian integers; bytes."""
    packed = folder / f"{stem}.gz"
    path = packed if packed.is_file() else _present(folder / stem, source)
    try:
        content = gzip.decompress(path.read_bytes()) if path == packed else path.read_bytes()
    except (OSError, EOFError) as error:
        raise ValueError(f"{path} is damaged ({error}); fetch it again: {source}") from None
    head = 4 + 4 * axes
    if len(content) < head or content[:4] != bytes([0, 0, 8, axes]):
        raise ValueError(f"{path} is no IDX file of bytes with {axes} axes; fetch it again: {source}")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", axes, 4))
    if len(content) - head != int(np.prod(shape)):
        raise ValueError(f"{path} holds {len(content) - head} bytes, its head promises {shape}; fetch it again: {source}")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def _cifar_features(folder: Path) -> list[NDArray[Any]]:
    names = ("x_train", "y_train", "x_test", "y_test")
    path = next((p for s in (".npz", ".safetensors") if (p := folder / f"{CIFAR_FEATURES}{s}").is_file()), None)
    if path is None:
        where = folder / f"{CIFAR_FEATURES}.npz"
        raise AssetMissing(str(where), f"train a ResNet-20 on CIFAR-10 and save {IMAGES['cifar10']}", "(or .safetensors) is missing")
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                parts = [arrays[name] for name in names]
        else:
            from safetensors.numpy import load_file

            tensors = load_file(path)
            parts = [tensors[name] for name in names]
    except Exception as error:
        raise ValueError(f"{path} is damaged or lacks one of {names} ({error}); save {IMAGES['cifar10']} again") from None
    if parts[0].ndim != 2 or parts[2].ndim != 2:
        raise ValueError(f"{path} must hold features (n, d), got {parts[0].shape} and {parts[2].shape}")
    return parts


def read_frey(folder: Path) -> NDArray[np.float64]:
    """Frey faces, (1965, 560): grey values 0..255 of 1965 video frames of 28 x 20 pixels.

    Raises:
        AssetMissing: if the file is not there.
        ValueError: for a damaged file or one of another layout.
    """
    from scipy.io import loadmat

    file, shape = FREY
    path = _present(folder / file, IMAGES["frey"])
    try:
        faces = loadmat(path)["ff"]
    except Exception as error:  # scipy raises many kinds
        raise ValueError(f"{path} is damaged or holds no matrix `ff` ({error}); fetch it again from {IMAGES['frey']}") from None
    if faces.shape != shape:
        raise ValueError(f"{path}: matrix `ff` must be {shape}, got {faces.shape}; fetch it again from {IMAGES['frey']}")
    return np.asarray(faces.T, dtype=float)
