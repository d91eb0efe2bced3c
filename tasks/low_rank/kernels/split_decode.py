"""Split-KV decoding from dense or latent caches: each part of the cache gives a partial softmax, and the parts are merged by log-sum-exp.

This is how decoding fills a GPU: sequences, key-value heads and PARTS of the cache run side by side. On a CUDA device the parts are
computed by the Triton kernel of `triton_latent_decode`, elsewhere by the same block algorithm in torch (`partial_attention`), tile by tile,
with the same padding, the same base-2 exponentials and the same merge. Latents may be int8 with one scale per token; keys may be rebuilt
with RoPE.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tasks.attention.kernels.gpu_programs import BLOCK, LOG2_E, default_splits, padded, processors
from tasks.attention.kernels.online_softmax import merge_parts


@dataclass(frozen=True)
class RotaryKeys:
    """What is needed to rebuild keys from latents.

    Attributes:
        B_K: (g, r, H).
        positions: logical position of each slot, (B, L), integers.
        frequencies: inverse frequencies (H/2,), float32.
    """

    B_K: torch.Tensor
    positions: torch.Tensor
    frequencies: torch.Tensor


@dataclass(frozen=True)
class Partials:
    """Partial softmaxes of S parts: values (B, h, S, rv) not normalised, highest base-2 scores and sums of weights (B, h, S), float32."""

    values: torch.Tensor
    top: torch.Tensor
    total: torch.Tensor


def split_decode(
    q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    lengths: torch.Tensor | None = None,
    scale: float | None = None,
    *,
    rotary: RotaryKeys | None = None,
    key_scales: torch.Tensor | None = None,
    value_scales: torch.Tensor | None = None,
    splits: int | None = None,
) -> torch.Tensor:
    """What `reference.decode` (or, with `rotary`, `reference.decode_with_rope`) computes, from parts.

    Args:
        q: queries (B, h, H), or absorbed ones (B, h, r) for latents of keys without RoPE.
        K: keys or latents of keys, (B, g, L, r), contiguous; int8 codes with `key_scales`.
        V: values or latents of values, (B, g, L, rv), contiguous; int8 codes with `value_scales`.
        lengths: slots that count, (B,); None for all.
        scale: of the scores; default 1/sqrt(width of q).
        rotary: rebuild keys from K, rotated by position.
        key_scales: (B, g, L), of int8 codes.
        value_scales: (B, g, L).
        splits: parts of the cache; default: enough to fill the device.

    Returns:
        (B, h, rv), float32.

    Raises:
        ValueError: for shapes or types that do not fit.

    >>> g = torch.Generator().manual_seed(0)
    >>> q, K, V = (torch.randn(shape, generator=g) for shape in ((1, 4, 8), (1, 2, 100, 8), (1, 2, 100, 5)))
    >>> bool((split_decode(q, K, V, splits=3) - split_decode(q, K, V, splits=1)).abs().max() < 1e-5)
    True
    """
    check(q, K, V, lengths, rotary, key_scales, value_scales)
    slots = torch.full((len(q),), K.shape[2], device=q.device) if lengths is None else lengths
    parts = splits or (default_splits(K.shape[0] * K.shape[1], K.shape[2], processors(q)) if q.is_cuda else min(4, -(-K.shape[2] // BLOCK)))
    if not 1 <= parts <= K.shape[2]:
        raise ValueError(f"splits must lie in 1...{K.shape[2]}, got {parts}")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if q.is_cuda:
        from tasks.low_rank.kernels.triton_latent_decode import partial_attention as compute
    else:
        compute = partial_attention
    found = compute(q, K, V, slots, scale, rotary, key_scales, value_scales, parts)
    return merge_parts(found.top, found.total, found.values)


def part_size(slots: int, splits: int) -> int:
    """Slots in each part, a multiple of the tile; the last parts may be shorter or empty."""
    return math.ceil(slots / splits / BLOCK) * BLOCK


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
    """The Triton kernel's block algorithm in torch, one block after the other; arguments as in `split_decode`."""
    batch, heads = q.shape[:2]
    groups, slots, width = K.shape[1], K.shape[2], V.shape[3]
    size = part_size(slots, splits)
    found = Partials(
        torch.zeros(batch, heads, splits, width, device=q.device),
        torch.full((batch, heads, splits), -math.inf, device=q.device),
        torch.zeros(batch, heads, splits, device=q.device),
    )
    for b in range(batch):
        for g in range(groups):
            mine = slice(g * heads // groups, (g + 1) * heads // groups)
            for part in range(splits):
                block = _block(
                    q[b, mine].float(),
                    K[b, g],
                    V[b, g],
                    part * size,
                    min((part + 1) * size, int(lengths[b])),
                    scale,
                    (b, g),
                    rotary,
                    key_scales,
                    value_scales,
                )
                if block is not None:
                    found.values[b, mine, part], found.top[b, mine, part], found.total[b, mine, part] = block
    return found


def _block(
    q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    start: int,
    stop: int,
    scale: float,
    owner: tuple[int, int],
    rotary: RotaryKeys | None,
    key_scales: torch.Tensor | None,
    value_scales: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """What one block of the grid does: queries (n, .) of a group over slots start...stop of one cache."""
    if start >= stop:
        return None
    b, g = owner
    top = torch.full((len(q),), -math.inf, device=q.device)
    total, values = torch.zeros_like(top), torch.zeros(len(q), padded(V.shape[1]), device=q.device)
    for first in range(start, stop, BLOCK):
        slots = torch.arange(first, first + BLOCK, device=q.device)
        inside = slots < stop
        keys, latents = _tile(K, slots, inside), _tile(V, slots, inside)
        if rotary is None:
            scores = torch.nn.functional.pad(q, (0, keys.shape[1] - q.shape[1])) @ keys.T
        else:
            B = torch.nn.functional.pad(rotary.B_K[g].float(), (0, 0, 0, keys.shape[1] - rotary.B_K.shape[1]))
            scores = q @ _rotated(keys @ B, rotary.positions[b][slots.clamp_max(len(K) - 1)], rotary.frequencies).T
        if key_scales is not None:  # codes are exact in every floating type; their scale comes after the product
            scores = scores * torch.where(inside, key_scales[b, g][slots.clamp_max(len(K) - 1)], 0.0)
        scores = torch.where(inside, scores * (scale * LOG2_E), -math.inf)
        highest = torch.maximum(top, scores.amax(1))
        shrink, weights = torch.exp2(top - highest), torch.exp2(scores - highest[:, None])
        total = total * shrink + weights.sum(1)
        if value_scales is not None:
            weights = weights * torch.where(inside, value_scales[b, g][slots.clamp_max(len(K) - 1)], 0.0)
        values = values * shrink[:, None] + weights @ latents
        top = highest
    return values[:, : V.shape[1]], top, total


def _tile(cache: torch.Tensor, slots: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """A masked load: rows `slots` of (L, r), float32, zeros outside and up to the padded rank."""
    rows = cache[slots.clamp_max(len(cache) - 1)].float()
    rows = torch.where(inside[:, None], rows, 0.0)
    return torch.nn.functional.pad(rows, (0, padded(cache.shape[1]) - cache.shape[1]))


def _rotated(keys: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    angles = positions[:, None].float() * frequencies
    first, second = keys.chunk(2, dim=1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=1)


def check(
    q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    lengths: torch.Tensor | None,
    rotary: RotaryKeys | None,
    key_scales: torch.Tensor | None,
    value_scales: torch.Tensor | None,
) -> None:
    """Refuse what the kernels cannot read.

    Raises:
        ValueError: for shapes or types that do not fit.
    """
    if q.ndim != 3 or K.ndim != 4 or K.shape[:3] != V.shape[:3] or len(K) != len(q) or q.shape[1] % K.shape[1]:
        raise ValueError(
            f"shapes do not fit: q {tuple(q.shape)}, K {tuple(K.shape)}, V {tuple(V.shape)}; expected (B, h, .), (B, g, L, .), (B, g, L, .)"
        )
    if not (K.is_contiguous() and V.is_contiguous()):
        raise ValueError("caches must be contiguous; call .contiguous() once, when they are made")
    if lengths is not None and (lengths.shape != (len(q),) or bool((lengths < 1).any()) or bool((lengths > K.shape[2]).any())):
        raise ValueError(f"lengths must be {len(q)} numbers from 1 to {K.shape[2]}, got {lengths.tolist()}")
    for name, codes, scales in (("K", K, key_scales), ("V", V, value_scales)):
        if (codes.dtype == torch.int8) != (scales is not None) or (scales is not None and scales.shape != codes.shape[:3]):
            raise ValueError(
                f"{name} of type {codes.dtype} needs {'scales of shape (B, g, L)' if codes.dtype == torch.int8 else 'no scales'}"
            )
    if rotary is None:
        if q.shape[2] != K.shape[3]:
            raise ValueError(
                f"queries of width {q.shape[2]} cannot meet keys of width {K.shape[3]}; absorb B_K into the queries, or pass rotary"
            )
        return
    if rotary.B_K.shape != (K.shape[1], K.shape[3], q.shape[2]) or 2 * len(rotary.frequencies) != q.shape[2]:
        raise ValueError(
            f"B_K {tuple(rotary.B_K.shape)} and {len(rotary.frequencies)} frequencies do not fit; expected (g, r, H) = "
            f"{(K.shape[1], K.shape[3], q.shape[2])} and H/2"
        )
    if rotary.positions.shape != (len(K), K.shape[2]):
        raise ValueError(f"positions must have shape (B, L) = {(len(K), K.shape[2])}, got {tuple(rotary.positions.shape)}")
