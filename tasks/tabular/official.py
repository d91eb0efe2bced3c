"""Readers of benchmark tables in the layout in which their owners publish them; nothing is downloaded or redistributed.

A reader takes a local file, checks its layout, and returns a `Table`. Columns are counted after the target is removed, as
the experiments with these sets do. Where to get the files: `SOURCES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tasks.tabular.encoding import encode

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Table:
    """A regression table: encoded features (n, d), target (n,), and the feature that serves as privileged information."""

    features: pd.DataFrame
    target: NDArray[np.float64]
    privileged: str


@dataclass(frozen=True)
class Layout:
    """How one published file looks: its name, header, columns, target and privileged feature (each by position or name)."""

    file: str
    columns: int
    target: int | str
    privileged: int | str
    header: bool = True
    drop: tuple[str, ...] = ()
    source: str = ""


_FACEBOOK = "https://archive.ics.uci.edu/dataset/363 (Facebook Comment Volume)"

LAYOUTS: dict[str, Layout] = {
    "facebook_1": Layout("Features_Variant_1.csv", 54, 53, 33, header=False, source=_FACEBOOK),
    "facebook_2": Layout("Features_Variant_2.csv", 54, 53, 33, header=False, source=_FACEBOOK),
    "bio": Layout("CASP.csv", 10, 0, 2, source="https://archive.ics.uci.edu/dataset/265 (Physicochemical Properties of Protein)"),
    "house": Layout("kc_house_data.csv", 21, "price", 2, drop=("id", "date"), source="King County house sales, published on Kaggle"),
    "meps_19": Layout(
        "meps_19_reg.csv",
        140,
        "UTILIZATION_reg",
        "K6SUM42",  # by name: the published experiments put the features in an order of their own before they count
        drop=("Unnamed: 0",),
        source="https://meps.ahrq.gov, HC-181, panel 19, prepared by the AIF360 script; its data-use terms forbid redistribution",
    ),
}
"""Layout by data set. `columns` counts all columns of the file but an unnamed row index."""


def read_official(name: str, folder: Path) -> Table:
    """Read a published table from `folder`.

    Args:
        name: one of `LAYOUTS`.
        folder: where the published file lies, under its published name.

    Raises:
        KeyError: for an unknown name, listing the known ones.
        FileNotFoundError: if the file is not there, saying where it comes from.
        ValueError: if the file has another number of columns or lacks the target or the privileged feature.
    """
    import pandas as pd

    if name not in LAYOUTS:
        raise KeyError(f"unknown data set {name!r}; known: {', '.join(sorted(LAYOUTS))}")
    layout = LAYOUTS[name]
    path = folder / layout.file
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; put the file {layout.file} there, from {layout.source}")
    frame = pd.read_csv(path, header=0 if layout.header else None)
    frame.columns = frame.columns.map(str)
    named = frame.drop(columns="Unnamed: 0", errors="ignore")
    if named.shape[1] != layout.columns:
        raise ValueError(f"{path} has {named.shape[1]} columns, expected {layout.columns}; is it the file from {layout.source}?")
    target = layout.target if isinstance(layout.target, str) else str(named.columns[layout.target])
    features = encode(named.drop(columns=[target, *layout.drop], errors="ignore"))
    privileged = layout.privileged if isinstance(layout.privileged, str) else str(features.columns[layout.privileged])
    for column in (target, privileged):
        if column not in named.columns:
            raise ValueError(f"{path} has no column {column!r}; is it the file from {layout.source}?")
    return Table(features, named[target].to_numpy(dtype=float), privileged)
