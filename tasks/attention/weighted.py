"""Attention with weights on the keys, by the dense masked formula: the slow twin of the kernels and the reference of every method.

With weights w the output of a row is sum_i w_i e_i V_i / sum_i w_i e_i, e_i = exp(s_i - m). Weights of one on all valid keys give
exact attention. Everything is float32; the shift m is the largest logit that is read, so that nothing overflows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def repeat_heads(tensor: Tensor, heads: int) -> Tensor:
    """Key/value heads (B, G, n, d) as query heads (B, H, n, d): query head h gets key/value head h // (H / G).

    Raises:
        ValueError: if H is not a multiple of G.
    """
    groups = tensor.shape[1]
    _check_heads(heads, groups)
    return tensor if heads == groups else tensor.repeat_interleave(heads // groups, dim=1)


def _check_heads(heads: int, groups: int) -> None:
    if heads % groups:
        raise ValueError(f"{heads} query heads cannot share {groups} key/value heads evenly; heads must be a multiple of {groups}")


def scaled_logits(query: Tensor, key: Tensor, scaling: float | None = None) -> Tensor:
    """Products of queries (B, H, R, d) and keys (B, G, n, d) in float32, times `scaling` (default 1 / sqrt(d)): (B, H, R, n).

    Raises:
        ValueError: if H is not a multiple of G.
    """
    factor = 1 / math.sqrt(query.shape[-1]) if scaling is None else scaling
    _check_heads(query.shape[1], key.shape[1])
    folded = query.float().mul(factor).reshape(query.shape[0], key.shape[1], -1, query.shape[-1])  # a group's heads lie together
    return (folded @ key.float().transpose(-1, -2)).view(*query.shape[:3], key.shape[2])


def mix_values(shares: Tensor, values: Tensor) -> Tensor:
    """Shares (..., R, n) of keys times their values (..., n, d), which may have fewer heads than the shares: (..., R, d), float32."""
    if values.shape[:-2] == shares.shape[:-2]:
        return shares @ values.float()
    *lead, rows, n = shares.shape
    folded = shares.reshape(*values.shape[:-2], -1, n)
    return (folded @ values.float()).view(*lead, rows, values.shape[-1])


def causal_valid(rows: int, n: int, device: str | torch.device = "cpu", window: int | None = None) -> Tensor:
    """Which keys each of the last `rows` of `n` positions may read: bool (rows, n); with `window`, only that many of the latest."""
    last = torch.arange(n - rows, n, device=device)[:, None]
    at = torch.arange(n, device=device)
    return (at <= last) & (at > last - window) if window else at <= last


def exponentials(logits: Tensor, read: Tensor) -> Tensor:
    """exp(s - m) where `read`, 0 elsewhere; m is the row's largest logit that is read."""
    masked = logits.masked_fill(~read, -math.inf)
    shift = masked.amax(-1, keepdim=True)
    return torch.exp(masked - shift.masked_fill(shift == -math.inf, 0.0))


def weighted_attention(logits: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """Output of attention with weighted keys.

    Args:
        logits: (..., R, n), float32.
        weights: (..., R, n), 0 where a key is not read.
        values: (..., n, d), or with fewer heads, which groups of neighbouring heads share.

    Returns:
        (..., R, d), float32. A row that reads nothing gives 0.

    Example:
        >>> v = torch.tensor([[1.0], [3.0]])
        >>> weighted_attention(torch.zeros(1, 2), torch.tensor([[1.0, 3.0]]), v).tolist()
        [[2.5]]
    """
    e = weights * exponentials(logits, weights > 0)
    return mix_values(e, values) / e.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
