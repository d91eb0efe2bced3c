"""Weighted-softmax sparse decoding on a CUDA device: split-KV, one Triton program per (sequence, query head, part of the index list).

A program walks over its part of the list block by block, gathers keys and values, adds the logarithm of the weight to each logit, and
keeps a running softmax; the parts are merged by their shifts. `online_softmax.split_decode` is the same algorithm in torch, and
tested; the kernel itself has not been measured where this project is built (no GPU there), see the paper's page.

Triton is imported when the kernel is first wanted; `tl` must be this module's global, where its compiler looks names up.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from tasks.attention.kernels.gpu_programs import BLOCK, LOG2_E, default_splits, division, import_triton, padded, processors
from tasks.attention.kernels.online_softmax import EMPTY, merge_parts

if TYPE_CHECKING:
    from torch import Tensor

tl: Any = None


@cache
def _kernel() -> Any:
    global tl
    triton, tl = import_triton()

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def partial_softmax(  # type: ignore[no-untyped-def]
        q, keys, values, indices, weights, shift, total, mixed,
        heads, groups, n, length, splits, per_split, width, width_v, scale, empty,
        BLOCK: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    ):  # fmt: skip
        part = tl.program_id(0)
        row = tl.program_id(1)  # sequence * heads + head
        sequence = row // heads
        group = (row % heads) // (heads // groups)
        cache_row = (sequence * groups + group).to(tl.int64) * n

        column = tl.arange(0, D)
        column_v = tl.arange(0, DV)
        is_k = column < width
        is_v = column_v < width_v
        query = tl.load(q + row * width + column, mask=is_k, other=0.0).to(tl.float32)  # (D,)

        highest = empty  # of log2-scaled logits; finite, so that a part without keys gives no NaN
        weight = 0.0
        sums = tl.zeros([DV], dtype=tl.float32)
        start = part * per_split
        stop = tl.minimum(start + per_split, length)
        for first in range(start, stop, BLOCK):
            entry = first + tl.arange(0, BLOCK)
            inside = entry < stop
            w = tl.load(weights + row.to(tl.int64) * length + entry, mask=inside, other=0.0)
            read = w > 0
            at = cache_row + tl.load(indices + row.to(tl.int64) * length + entry, mask=read, other=0)
            k = tl.load(keys + at[:, None] * width + column[None, :], mask=read[:, None] & is_k[None, :], other=0.0)  # (BLOCK, D)
            logits = tl.sum(k.to(tl.float32) * query[None, :], 1) * scale + tl.log2(tl.where(read, w, 1.0))
            logits = tl.where(read, logits, empty)
            above = tl.maximum(highest, tl.max(logits, 0))
            shrink = tl.exp2(highest - above)
            p = tl.where(read, tl.exp2(logits - above), 0.0)
            v = tl.load(values + at[:, None] * width_v + column_v[None, :], mask=read[:, None] & is_v[None, :], other=0.0)  # (BLOCK, DV)
            weight = weight * shrink + tl.sum(p, 0)
            sums = sums * shrink + tl.sum(p[:, None] * v.to(tl.float32), 0)
            highest = above

        into = row * splits + part
        tl.store(shift + into, highest)
        tl.store(total + into, weight)
        tl.store(mixed + into.to(tl.int64) * width_v + column_v, sums, mask=is_v)

    return partial_softmax


def sparse_decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    indices: Tensor,
    weights: Tensor,
    scaling: float | None = None,
    *,
    splits: int | None = None,
) -> Tensor:
    """Weighted softmax attention over listed keys, for a batch of sequences.

    Args:
        query: (B, H, d), or (H, d) for one sequence; then all others have one axis less, too.
        keys: (B, G, n, d), contiguous, in any float type.
        values: (B, G, n, d), contiguous.
        indices: (B, H, m), key numbers.
        weights: (B, H, m), 0 for padding.
        scaling: of the logits; 1 / sqrt(d) by default.
        splits: parts of the list; default: enough to fill the device.

    Returns:
        (B, H, d) or (H, d), float32; 0 for a head that reads nothing.

    Raises:
        ValueError: for tensors that are not on a CUDA device, or shapes that do not fit.
        ImportError: without triton.
    """
    if query.ndim == 2:
        one = sparse_decode(query[None], keys[None], values[None], indices[None], weights[None], scaling, splits=splits)
        return one[0]
    check_batch(query, keys, values, indices, weights)
    batch, heads, width = query.shape
    groups, n = keys.shape[1:3]
    length, width_v = indices.shape[2], values.shape[3]
    parts, per_split = division(length, splits or default_splits(batch * heads, length, processors(query)))
    rows = batch * heads
    shift = torch.empty(rows, parts, device=query.device, dtype=torch.float32)
    total = torch.empty_like(shift)
    mixed = torch.empty(rows, parts, width_v, device=query.device, dtype=torch.float32)
    _kernel()[(parts, rows)](
        query.contiguous(),
        keys.contiguous(),
        values.contiguous(),
        indices.int().contiguous(),
        weights.float().contiguous(),
        shift,
        total,
        mixed,
        heads,
        groups,
        n,
        length,
        parts,
        per_split,
        width,
        width_v,
        (1 / math.sqrt(width) if scaling is None else scaling) * LOG2_E,
        EMPTY,
        BLOCK=BLOCK,
        D=padded(width),
        DV=padded(width_v),
        num_warps=4,
    )
    return merge_parts(shift, total, mixed).view(batch, heads, width_v)


def check_batch(query: Tensor, keys: Tensor, values: Tensor, indices: Tensor, weights: Tensor) -> None:
    """Refuse what the kernel cannot read.

    Raises:
        ValueError: naming what does not fit.
    """
    if not query.is_cuda:
        raise ValueError(f"this kernel runs on a CUDA device, got tensors on {query.device}; use numba_decode or gather_decode there")
    if query.ndim != 3 or keys.ndim != 4 or values.ndim != 4 or keys.shape[:3] != values.shape[:3] or keys.shape[3] != query.shape[2]:
        raise ValueError(f"query {tuple(query.shape)}, keys {tuple(keys.shape)} and values {tuple(values.shape)} do not fit")
    if query.shape[0] != keys.shape[0] or query.shape[1] % keys.shape[1]:
        raise ValueError(
            f"query {tuple(query.shape)} and keys {tuple(keys.shape)} need equal batches, and heads a multiple of key/value heads"
        )
    if indices.shape != weights.shape or indices.shape[:2] != query.shape[:2] or indices.shape[2] == 0:
        raise ValueError(f"indices and weights must be (B, H, m), m >= 1, got {tuple(indices.shape)} and {tuple(weights.shape)}")
