"""Tables of small regression sets, as the supervised stages hand them on: one record per set, its rows flattened."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tasks.common.formats import read_parquet, write_parquet


@dataclass(frozen=True)
class RegressionSet:
    """M rows (x, y) that stand for a training set.

    Attributes:
        table: name of the table.
        trial: number of the split.
        arm: how it was made (`rand`, `lev`, `root`, `syn_k100`).
        size: m.
        rows: (m, q).
        start: matching objective of the first rows, 0 where nothing was matched.
        end: matching objective of these rows.
    """

    table: str
    trial: int
    arm: str
    size: int
    rows: np.ndarray
    start: float = 0.0
    end: float = 0.0


def write_sets(path: Path, sets: Iterable[RegressionSet]) -> None:
    """Write as Parquet, one record per set."""
    import pandas as pd

    write_parquet(path, pd.DataFrame([asdict(s) | {"rows": s.rows.ravel()} for s in sets]))


def read_sets(path: Path) -> dict[tuple[str, int, str, int], RegressionSet]:
    """What `write_sets` wrote, by (table, trial, arm, size)."""
    records = read_parquet(path).to_dict("records")
    sets = [RegressionSet(**r | {"rows": np.asarray(r["rows"]).reshape(r["size"], -1)}) for r in records]
    return {(s.table, s.trial, s.arm, s.size): s for s in sets}
