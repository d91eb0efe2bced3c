"""Sparse decoding in plain torch, from lists of keys and weights, and the dense variants that a sparse kernel has to beat.

One decode step of one sequence: query (H, d), keys and values (G, n, d), query head h reads key/value head h // (H / G). Which keys are
read is a list per query head, `indices` (H, m), with `weights` (H, m); an entry of weight 0 is padding and is never read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def index_lists(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (H, n) as lists of what is read: indices int32 and weights float32, both (H, m), m the longest; padded with weight 0.

    Example:
        >>> index_lists(torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]]))
        (tensor([[1, 2],
                [0, 0]], dtype=torch.int32), tensor([[2., 1.],
                [3., 0.]]))
    """
    read = weights > 0
    longest = max(int(read.sum(-1).max()), 1)
    order = (~read).to(torch.int8).sort(dim=-1, stable=True).indices[:, :longest]  # those that are read come first, in order
    listed = weights.gather(-1, order).float()
    return torch.where(listed > 0, order, 0).int(), listed


def sparse_decode(query: Tensor, keys: Tensor, values: Tensor, indices: Tensor, weights: Tensor, scaling: float | None = None) -> Tensor:
    """Weighted softmax attention over listed keys, by gathering them.

    Args:
        query: (H, d).
        keys: (G, n, d), in any float type.
        values: (G, n, d).
        indices: (H, m), key numbers.
        weights: (H, m), 0 for padding.
        scaling: of the logits; 1 / sqrt(d) by default.

    Returns:
        (H, d) in float32; 0 for a head that reads nothing.

    Raises:
        ValueError: for shapes that do not belong together, naming them.
    """
    check_decode(query, keys, values, indices, weights)
    heads, width = query.shape
    group = torch.arange(heads, device=query.device) // (heads // keys.shape[0])
    flat = (indices.long() + group[:, None] * keys.shape[1]).reshape(-1)
    picked_k = keys.reshape(-1, width).index_select(0, flat).view(heads, -1, width)
    picked_v = values.reshape(-1, values.shape[-1]).index_select(0, flat).view(heads, indices.shape[1], -1)
    logits = torch.bmm(picked_k, query.to(keys.dtype)[:, :, None])[..., 0].float() * (1 / math.sqrt(width) if scaling is None else scaling)
    shift = logits.masked_fill(weights == 0, -math.inf).amax(-1, keepdim=True)
    e = weights * torch.exp((logits - shift.masked_fill(shift == -math.inf, 0.0)).clamp(max=0.0))
    mixed = torch.bmm(e.to(values.dtype)[:, None], picked_v)[:, 0].float()
    return mixed / e.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)


def dense_variants(query: Tensor, keys: Tensor, values: Tensor, scaling: float | None = None) -> dict[str, Callable[[], Tensor]]:
    """Dense attention of one decode step in every way that torch offers; the fastest is the baseline.

    `sdpa` is torch's fused attention (heads of a group repeated by torch itself), `folded` the same with the heads of a group as
    queries of one head, which reads every key once, `matmul` two products around a softmax. All return (H, d) in the keys' dtype.
    """
    heads, width = query.shape
    groups = keys.shape[0]
    q = query.to(keys.dtype)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    factor = 1 / math.sqrt(width) if scaling is None else scaling

    def plain() -> Tensor:
        return sdpa(q[None, :, None], keys[None], values[None], scale=scaling, enable_gqa=heads != groups)[0, :, 0]

    def folded() -> Tensor:
        return sdpa(q.view(1, groups, heads // groups, width), keys[None], values[None], scale=scaling)[0].reshape(heads, -1)

    def matmul() -> Tensor:
        logits = torch.bmm(q.view(groups, heads // groups, width), keys.transpose(1, 2))
        return torch.bmm((logits.float() * factor).softmax(-1).to(values.dtype), values).reshape(heads, -1)

    return {"sdpa": plain, "folded": folded, "matmul": matmul}


def check_decode(query: Tensor, keys: Tensor, values: Tensor, indices: Tensor | None = None, weights: Tensor | None = None) -> None:
    """Refuse shapes that do not belong together.

    Raises:
        ValueError: naming what does not fit.
    """
    if query.ndim != 2 or keys.ndim != 3 or values.ndim != 3:
        raise ValueError(
            f"need query (H, d), keys (G, n, d), values (G, n, d), got {tuple(query.shape)}, {tuple(keys.shape)}, {tuple(values.shape)}"
        )
    if keys.shape[:2] != values.shape[:2] or keys.shape[2] != query.shape[1]:
        raise ValueError(f"keys {tuple(keys.shape)}, values {tuple(values.shape)} and query {tuple(query.shape)} do not fit")
    if query.shape[0] % keys.shape[0]:
        raise ValueError(
            f"{query.shape[0]} query heads cannot share {keys.shape[0]} key/value heads evenly; heads must be a multiple of {keys.shape[0]}"
        )
    if indices is not None and weights is not None:
        if indices.shape != weights.shape or indices.shape[:1] != query.shape[:1]:
            raise ValueError(
                f"indices and weights must be (H, m) with H = {query.shape[0]}, got {tuple(indices.shape)}, {tuple(weights.shape)}"
            )
        if indices.numel() and not (int(indices.min()) >= 0 and int(indices.max()) < keys.shape[1]):
            raise ValueError(f"indices must lie in 0..{keys.shape[1] - 1}, got {int(indices.min())}..{int(indices.max())}")
