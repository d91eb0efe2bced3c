"""The partial softmaxes of `split_decode` as a Triton kernel for CUDA devices. Not measured here: see the paper's page.

Grid: parts of the cache x (sequence, key-value head). A block keeps the queries of its group, and B_K, on chip; it walks over its part
tile by tile, rebuilds and rotates keys if asked, and accumulates values in the latent. The query heads of a group are padded to 16 rows and
ranks to a power of two of at least 16, what the tensor cores take; loads beyond are masked to zero. int8 codes are exact in bfloat16, so
their scales multiply scores and weights, never the codes.

Triton is imported when the kernel is first wanted; the names must be this module's globals, where its compiler looks them up.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from tasks.attention.kernels.gpu_programs import BLOCK, LOG2_E, import_triton, padded
from tasks.low_rank.kernels.split_decode import Partials, part_size

if TYPE_CHECKING:
    from tasks.low_rank.kernels.split_decode import RotaryKeys

tl: Any = None


@cache
def _kernel() -> Any:
    global tl
    triton, tl = import_triton()

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def partial_softmax(  # type: ignore[no-untyped-def]
        q, K, V, B_K, positions, frequencies, key_scales, value_scales, lengths, values, top, total,
        heads, groups, slots, splits, size, rank_k, rank_v, width, scale,
        ROWS: tl.constexpr, SLOTS: tl.constexpr, RK: tl.constexpr, RV: tl.constexpr, HALF: tl.constexpr,
        ROTARY: tl.constexpr, KEY_CODES: tl.constexpr, VALUE_CODES: tl.constexpr,
    ):  # fmt: skip
        part = tl.program_id(0)
        owner = tl.program_id(1)
        b = owner // groups
        g = owner % groups
        group = heads // groups
        start = part * size
        stop = tl.minimum(start + size, tl.load(lengths + b))

        row = tl.arange(0, ROWS)
        k_column = tl.arange(0, RK)
        v_column = tl.arange(0, RV)
        half = tl.arange(0, HALF)
        is_row = row < group
        is_k = k_column < rank_k
        is_v = v_column < rank_v
        q_row = q + (b * heads + g * group + row)[:, None] * width
        if ROTARY:
            q_first = tl.load(q_row + half[None, :], mask=is_row[:, None], other=0.0)  # (ROWS, HALF)
            q_second = tl.load(q_row + HALF + half[None, :], mask=is_row[:, None], other=0.0)
            b_row = B_K + (g * rank_k + k_column)[:, None] * width + half[None, :]  # (RK, HALF)
            b_first = tl.load(b_row, mask=is_k[:, None], other=0.0)
            b_second = tl.load(b_row + HALF, mask=is_k[:, None], other=0.0)
            frequency = tl.load(frequencies + half)
        else:
            q_all = tl.load(q_row + k_column[None, :], mask=is_row[:, None] & is_k[None, :], other=0.0)  # (ROWS, RK)

        highest = tl.full([ROWS], float("-inf"), dtype=tl.float32)
        weight = tl.zeros([ROWS], dtype=tl.float32)
        sums = tl.zeros([ROWS, RV], dtype=tl.float32)
        cache_row = owner.to(tl.int64) * slots
        for first in range(start, stop, SLOTS):
            slot = first + tl.arange(0, SLOTS)
            inside = slot < stop
            at = cache_row + slot
            latent = tl.load(K + at[:, None] * rank_k + k_column[None, :], mask=inside[:, None] & is_k[None, :], other=0)  # (SLOTS, RK)
            if ROTARY:
                latent = latent.to(b_first.dtype)
                x = tl.dot(latent, b_first, input_precision="ieee")  # (SLOTS, HALF)
                y = tl.dot(latent, b_second, input_precision="ieee")
                position = tl.load(positions + b.to(tl.int64) * slots + slot, mask=inside, other=0)
                angle = position.to(tl.float32)[:, None] * frequency[None, :]
                cos = tl.cos(angle)
                sin = tl.sin(angle)
                turned_x = (x * cos - y * sin).to(q_first.dtype)
                turned_y = (y * cos + x * sin).to(q_first.dtype)
                scores = tl.dot(q_first, tl.trans(turned_x), input_precision="ieee")  # (ROWS, SLOTS)
                scores += tl.dot(q_second, tl.trans(turned_y), input_precision="ieee")
            else:
                scores = tl.dot(q_all, tl.trans(latent.to(q_all.dtype)), input_precision="ieee")
            if KEY_CODES:
                scores = scores * tl.load(key_scales + at, mask=inside, other=0.0)[None, :]
            scores = tl.where(inside[None, :], scores * scale, float("-inf"))
            above = tl.maximum(highest, tl.max(scores, 1))
            shrink = tl.exp2(highest - above)
            p = tl.exp2(scores - above[:, None])
            weight = weight * shrink + tl.sum(p, 1)
            if VALUE_CODES:
                p = p * tl.load(value_scales + at, mask=inside, other=0.0)[None, :]
            value = tl.load(V + at[:, None] * rank_v + v_column[None, :], mask=inside[:, None] & is_v[None, :], other=0)  # (SLOTS, RV)
            value = value.to(q.dtype.element_ty)
            sums = sums * shrink[:, None] + tl.dot(p.to(value.dtype), value, input_precision="ieee")
            highest = above

        into = (b * heads + g * group + row) * splits + part
        tl.store(top + into, highest, mask=is_row)
        tl.store(total + into, weight, mask=is_row)
        tl.store(values + into[:, None] * rank_v + v_column[None, :], sums, mask=is_row[:, None] & is_v[None, :])

    return partial_softmax


def partial_attention(
    q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    rotary: RotaryKeys | None,
    key_scales: torch.Tensor | None,
    value_scales: torch.Tensor | None,
    splits: int,
) -> Partials:
    """As `split_decode.partial_attention`, on the device; caches that are no codes must have the queries' type.

    Raises:
        ValueError: for a mixture of types, or a head dimension whose half is no power of two of at least 16 with `rotary`.
        ImportError: without triton.
    """
    batch, heads, width = q.shape
    groups, slots, rank_k = K.shape[1:]
    rank_v, half = V.shape[3], width // 2
    if any(part.dtype not in (q.dtype, torch.int8) for part in (K, V)) or (rotary is not None and rotary.B_K.dtype != q.dtype):
        raise ValueError(f"caches and B_K must have the queries' type {q.dtype} (or int8 codes), got {K.dtype} and {V.dtype}")
    if rotary is not None and (half < 16 or half & (half - 1)):
        raise ValueError(f"half of the head dimension must be a power of two of at least 16 to rotate keys, got {half}")
    q = q.contiguous()
    found = Partials(
        torch.empty(batch, heads, splits, rank_v, device=q.device, dtype=torch.float32),
        torch.empty(batch, heads, splits, device=q.device, dtype=torch.float32),
        torch.empty(batch, heads, splits, device=q.device, dtype=torch.float32),
    )
    # Pointers that a variant does not read are given those of q, so that the signature stays one.
    _kernel()[(splits, batch * groups)](
        q,
        K,
        V,
        q if rotary is None else rotary.B_K.contiguous(),
        q if rotary is None else rotary.positions.to(torch.int32).contiguous(),
        q if rotary is None else rotary.frequencies.float().contiguous(),
        q if key_scales is None else key_scales.float().contiguous(),
        q if value_scales is None else value_scales.float().contiguous(),
        lengths.to(torch.int32).contiguous(),
        found.values,
        found.top,
        found.total,
        heads,
        groups,
        slots,
        splits,
        part_size(slots, splits),
        rank_k,
        rank_v,
        width,
        scale * LOG2_E,
        ROWS=padded(heads // groups),
        SLOTS=BLOCK,
        RK=padded(rank_k),
        RV=padded(rank_v),
        HALF=max(16, half) if rotary is not None else 16,
        ROTARY=rotary is not None,
        KEY_CODES=key_scales is not None,
        VALUE_CODES=value_scales is not None,
        num_warps=4,
        num_stages=2,
    )
    return found
