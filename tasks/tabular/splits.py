"""Random splits of the rows of a table into disjoint parts of given shares."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


def random_parts(
    n_rows: int, shares: Mapping[str, float], rng: np.random.Generator, at_most: int | None = None
) -> dict[str, NDArray[np.int64]]:
    """Disjoint random row numbers for every part.

    Args:
        n_rows: rows of the table.
        shares: share of each part, summing to at most 1; the last part takes what rounding leaves when they sum to 1.
        rng: source of randomness.
        at_most: rows that one split uses at most, drawn at random; at least 1.

    Returns:
        row numbers by part, each sorted.

    Raises:
        ValueError: for no shares, shares that are not positive or sum to more than 1, no rows, or a part that would be empty.

    >>> parts = random_parts(10, {"train": 0.5, "test": 0.5}, np.random.default_rng(0))
    >>> sorted(np.concatenate(list(parts.values())).tolist()) == list(range(10))
    True
    """
    total = sum(shares.values())
    if not shares or not all(share > 0 for share in shares.values()) or total > 1 + 1e-9:
        raise ValueError(f"shares must be positive and sum to at most 1, got {dict(shares)}")
    if min(n_rows, n_rows if at_most is None else at_most) < 1:
        raise ValueError(f"n_rows and at_most must be at least 1, got {n_rows} and {at_most}")
    rows = rng.permutation(n_rows)[:at_most]
    ends = np.floor(np.cumsum(list(shares.values())) * rows.size + 1e-9).astype(int)
    starts = np.concatenate([[0], ends[:-1]])
    parts = {name: np.sort(rows[a:b]).astype(np.int64) for name, a, b in zip(shares, starts, ends, strict=True)}
    for name, part in parts.items():
        if part.size == 0:
            raise ValueError(f"part {name!r} is empty with {rows.size} rows and share {shares[name]}")
    return parts
