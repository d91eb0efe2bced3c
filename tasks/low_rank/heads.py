"""Projection weights seen head by head, and how large a factorisation may be.

Notation: hidden size E, head dimension H, h heads. A projection's weight is stored as (h * H, E) and used as `x @ weight.T`; head j is
W_j, (E, H), used as `x @ W_j`. Two ratios are kept apart, as the literature mixes them: rho1 is the share of parameters that is KEPT,
rho2 the share of the key-value cache that is kept.
"""

from __future__ import annotations

import math
import warnings

import torch


def split_heads(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Weight of a projection, (h * H, E), as one matrix per head, (h, E, H).

    Raises:
        ValueError: if the rows do not divide into heads.

    >>> import torch
    >>> split_heads(torch.zeros(6, 4), heads=3).shape
    torch.Size([3, 4, 2])
    """
    rows, hidden = weight.shape
    if heads < 1 or rows % heads:
        raise ValueError(
            f"a weight of shape {tuple(weight.shape)} does not divide into {heads} heads of {rows / max(heads, 1):g} rows each"
        )
    return weight.reshape(heads, rows // heads, hidden).transpose(1, 2)


def join_heads(per_head: torch.Tensor) -> torch.Tensor:
    """The inverse of `split_heads`: (h, E, H) -> (h * H, E)."""
    heads, hidden, dimension = per_head.shape
    return per_head.transpose(1, 2).reshape(heads * dimension, hidden)


def head_rank(kept: float, hidden: int, dimension: int) -> int:
    """Rank r of A (E, r) and B (r, H), for every head, at which a share `kept` of the parameters is kept: rho1 = (1 + H/E) r/H.

    Raises:
        ValueError: for a share outside (0, 1 + H/E].

    >>> head_rank(0.5, hidden=4096, dimension=128), head_rank(0.9, hidden=4096, dimension=128)
    (62, 111)
    """
    largest = 1 + dimension / hidden
    _check_kept(kept, largest, f"1 + {dimension}/{hidden}")
    return bounded_rank(math.floor(kept * dimension / largest + 1e-9), hidden, dimension)


def matrix_rank(kept: float, hidden: int, columns: int) -> int:
    """Rank R of A (E, R) and B (R, columns) for a whole projection, or several side by side: R (E + columns) = kept E columns.

    >>> matrix_rank(0.5, hidden=576, columns=576)
    144
    """
    largest = (hidden + columns) * min(hidden, columns) / (hidden * columns)
    _check_kept(kept, largest, "the share at full rank")
    return bounded_rank(math.floor(kept * hidden * columns / (hidden + columns) + 1e-9), hidden, columns)


def bounded_rank(rank: int, hidden: int, columns: int) -> int:
    """The rank, at least 1 and at most what a matrix (hidden, columns) has; a larger one is cut with a warning."""
    full = min(hidden, columns)
    if rank > full:
        warnings.warn(f"rank {rank} is more than a matrix of {hidden} x {columns} has; using {full}", stacklevel=2)
    return max(1, min(rank, full))


def _check_kept(kept: float, largest: float, why: str) -> None:
    if not 0 < kept <= largest + 1e-12:
        raise ValueError(f"the share of parameters that is kept must lie in (0, {largest:.4g}] ({why}), got {kept}")
