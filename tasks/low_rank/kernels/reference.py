"""What the decode kernels compute, written as masked dense formulas in torch.

One query token per sequence attends to a cache. Shapes: B sequences, h query heads, g key-value heads (h a multiple of g; the h/g query
heads of a group read the same cache), L cache slots of which the first `lengths[b]` count, H head dimension, r rank of the latents.

A latent cache holds C = X A, (B, g, L, r), in place of keys or values. Values need no reconstruction: sum_t p_t (C_t B) is
(sum_t p_t C_t) B, and B is folded into the output projection. Keys need none where no position enters between C B and the product with the
query; with rotary embeddings (RoPE) each key is rebuilt and rotated by its LOGICAL position, because a rotated latent does not give the
rotated key.
"""

from __future__ import annotations

import torch


def decode(
    q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, lengths: torch.Tensor | None = None, scale: float | None = None
) -> torch.Tensor:
    """softmax(scale q K^T) V over the first `lengths` slots: q (B, h, H), K (B, g, L, H), V (B, g, L, rv) -> (B, h, rv).

    Args:
        q: queries.
        K: keys, or latents of keys with `absorb_keys`' queries.
        V: values, or latents of values; the result then is a latent.
        lengths: (B,), 1 to L each; None for all slots.
        scale: default 1/sqrt(H), H the width of q.

    >>> one = torch.ones(1, 2, 4)
    >>> decode(one, torch.zeros(1, 1, 3, 4), torch.arange(3.0).reshape(1, 1, 3, 1)).flatten().tolist()
    [1.0, 1.0]
    """
    K, V = (part.repeat_interleave(q.shape[1] // part.shape[1], dim=1) for part in (K, V))
    logits = torch.einsum("bhd,bhld->bhl", q, K) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if lengths is not None:
        beyond = torch.arange(K.shape[2], device=K.device) >= lengths[:, None]  # (B, L)
        logits = logits.masked_fill(beyond[:, None], float("-inf"))
    return torch.einsum("bhl,bhld->bhd", logits.softmax(-1), V)


def absorb_keys(q: torch.Tensor, B_K: torch.Tensor) -> torch.Tensor:
    """Queries for latents of keys, without RoPE: q' = B_K q, q (B, h, H), B_K (g, r, H) -> (B, h, r).

    Scores keep the scale of q: pass `scale=H**-0.5` on.
    """
    per_group = q.reshape(len(q), B_K.shape[0], -1, q.shape[-1])  # (B, g, h/g, H)
    return torch.einsum("bgnd,grd->bgnr", per_group, B_K).flatten(1, 2)


def rotary_frequencies(dimension: int, base: float = 10_000.0) -> torch.Tensor:
    """Inverse frequencies of RoPE, base^(-2i/H), (H/2,)."""
    return base ** -(torch.arange(0, dimension, 2, dtype=torch.float64) / dimension).float()


def rotate_by_position(x: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """RoPE in the half-split layout of transformers: x (..., L, H) at positions (..., L) or (L,)."""
    angles = positions[..., None].to(frequencies.dtype) * frequencies  # (..., L, H/2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def decode_with_rope(
    q: torch.Tensor,
    C_K: torch.Tensor,
    B_K: torch.Tensor,
    C_V: torch.Tensor,
    positions: torch.Tensor,
    frequencies: torch.Tensor,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decode from latents with RoPE: keys C_K B_K are rebuilt and rotated, values stay latents.

    Args:
        q: queries, already rotated to their own position, (B, h, H).
        C_K: latents of keys, not rotated, (B, g, L, r).
        B_K: (g, r, H).
        C_V: latents of values, (B, g, L, rv).
        positions: logical position of each slot, (B, L): after eviction or with left padding it is not the slot's number.
        frequencies: of `rotary_frequencies`, (H/2,).
        lengths: as in `decode`.

    Returns:
        latents (B, h, rv).
    """
    keys = rotate_by_position(C_K @ B_K, positions[:, None], frequencies)
    return decode(q, keys, C_V, lengths)


def fold_values(O: torch.Tensor, B_V: torch.Tensor) -> torch.Tensor:  # noqa: E741
    """B_V folded into the output projection: O (E, h * H), B_V (g, rv, H) -> (E, h * rv), acting on concatenated latents.

    Query heads of a group share B_V, as they share its cache.
    """
    groups, rank, dimension = B_V.shape
    per_head = O.reshape(len(O), groups, -1, dimension)  # (E, g, h/g, H)
    folded: torch.Tensor = torch.einsum("egnd,grd->egnr", per_head, B_V)
    return folded.reshape(O.shape[0], -1, rank).flatten(1)
