"""Flash decoding on a CPU: one pass over the cache with an online softmax, compiled by numba, one thread, float32.

ONE kernel serves every layout, because a latent cache is a cache of narrower heads: dense keys and values; latents per head, with queries
absorbed (`reference.absorb_keys`); a latent that all heads share, as one key-value head. What differs is how often the cache is read:
`heads_per_read` query heads share a pass. A shared latent read once for all heads is `heads_per_read=h`, re-read by every head it is 1.

The rotary variant rebuilds each key from its latent, which is compute-bound on a CPU; it is there to be right, not fast.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

TILE = 128
"""Slots between two corrections of the running maximum."""


@cache
def _compiled() -> tuple[Any, Any]:
    """The two kernels; numba is imported and they are compiled when first wanted."""
    import numba

    fast = numba.njit(fastmath={"reassoc", "contract", "arcp", "nsz"}, nogil=True)

    # Eight slots at a time: eight sums that do not wait for each other, and one pass over the query (or the result) for all of them.

    @fast
    def dots(q: Any, keys: Any, scale: Any, scores: Any) -> None:
        size, width = keys.shape
        whole = size // 8 * 8
        for t in range(0, whole, 8):
            s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = np.float32(0.0)
            for j in range(width):
                x = q[j]
                s0 += x * keys[t, j]
                s1 += x * keys[t + 1, j]
                s2 += x * keys[t + 2, j]
                s3 += x * keys[t + 3, j]
                s4 += x * keys[t + 4, j]
                s5 += x * keys[t + 5, j]
                s6 += x * keys[t + 6, j]
                s7 += x * keys[t + 7, j]
            scores[t], scores[t + 1], scores[t + 2], scores[t + 3] = s0 * scale, s1 * scale, s2 * scale, s3 * scale
            scores[t + 4], scores[t + 5], scores[t + 6], scores[t + 7] = s4 * scale, s5 * scale, s6 * scale, s7 * scale
        for t in range(whole, size):
            dot = np.float32(0.0)
            for j in range(width):
                dot += q[j] * keys[t, j]
            scores[t] = dot * scale

    @fast
    def add_weighted(p: Any, values: Any, out: Any) -> None:
        size, width = values.shape
        whole = size // 8 * 8
        for t in range(0, whole, 8):
            for j in range(width):
                low = p[t] * values[t, j] + p[t + 1] * values[t + 1, j] + p[t + 2] * values[t + 2, j] + p[t + 3] * values[t + 3, j]
                high = p[t + 4] * values[t + 4, j] + p[t + 5] * values[t + 5, j] + p[t + 6] * values[t + 6, j] + p[t + 7] * values[t + 7, j]
                out[j] += low + high
        for t in range(whole, size):
            for j in range(width):
                out[j] += p[t] * values[t, j]

    @fast
    def exponentials(scores: Any, size: int, highest: Any, bits: Any, powers: Any) -> Any:
        # scores[:size] <- exp(. - highest), and their sum; `bits` and `powers` are the same memory as int32 and float32. 2^x for x <= 0
        # from the exponent bits and a polynomial (Cephes' coefficients, 2e-7 relative), in loops that compile to vector instructions.
        for t in range(size):
            x = max((scores[t] - highest) * np.float32(1.44269504), np.float32(-126.0))
            whole = np.floor(x)
            bits[t] = (np.int32(whole) + np.int32(127)) << np.int32(23)
            f = (x - whole) * np.float32(0.693147181)
            y = np.float32(1.9875691500e-4) * f + np.float32(1.3981999507e-3)
            y = y * f + np.float32(8.3334519073e-3)
            y = y * f + np.float32(4.1665795894e-2)
            y = y * f + np.float32(1.6666665459e-1)
            y = y * f + np.float32(5.0000001201e-1)
            scores[t] = y * f * f + f + np.float32(1.0)
        total = np.float32(0.0)
        for t in range(size):
            scores[t] *= powers[t]
            total += scores[t]
        return total

    @fast
    def softmax_step(scores: Any, values: Any, top: Any, total: Any, out: Any, bits: Any, powers: Any) -> Any:
        # One tile: scores (TILE,), values (size, rv); out (rv,), top and total are the running softmax, of which the last two return.
        size = values.shape[0]
        highest = top
        for t in range(size):
            highest = max(highest, scores[t])
        shrink = np.exp(top - highest)
        total = total * shrink + exponentials(scores, size, highest, bits, powers)
        for j in range(values.shape[1]):
            out[j] *= shrink
        add_weighted(scores, values, out)
        return highest, total

    @fast
    def attend(q: Any, K: Any, V: Any, lengths: Any, scale: Any, heads_per_read: int, out: Any) -> None:
        group = q.shape[1] // K.shape[1]
        scores, bits = np.empty(TILE, np.float32), np.empty(TILE, np.int32)
        powers = bits.view(np.float32)
        top, total = np.empty(heads_per_read, np.float32), np.empty(heads_per_read, np.float32)
        for b in range(q.shape[0]):
            for first in range(0, q.shape[1], heads_per_read):
                g = first // group
                top[:], total[:] = np.float32(-3.0e38), np.float32(0.0)
                for start in range(0, lengths[b], TILE):
                    stop = min(start + TILE, lengths[b])
                    for i in range(heads_per_read):  # the tile stays in the cache of the core
                        dots(q[b, first + i], K[b, g, start:stop], scale, scores)
                        top[i], total[i] = softmax_step(scores, V[b, g, start:stop], top[i], total[i], out[b, first + i], bits, powers)
                for i in range(heads_per_read):
                    for j in range(out.shape[2]):
                        out[b, first + i, j] /= total[i]

    @fast
    def rebuild(latents: Any, B: Any, cos: Any, sin: Any, keys: Any) -> None:
        # Keys of one tile: latents (size, r), B (r, H), rotated by cos and sin (size, H/2) in the half-split layout.
        half = cos.shape[1]
        for t in range(latents.shape[0]):
            for j in range(2 * half):
                keys[t, j] = 0.0
            for k in range(latents.shape[1]):
                c = latents[t, k]
                for j in range(2 * half):
                    keys[t, j] += c * B[k, j]
            for j in range(half):
                x, y = keys[t, j], keys[t, half + j]
                keys[t, j], keys[t, half + j] = x * cos[t, j] - y * sin[t, j], y * cos[t, j] + x * sin[t, j]

    @fast
    def attend_with_rope(q: Any, C_K: Any, B_K: Any, C_V: Any, cos: Any, sin: Any, lengths: Any, scale: Any, out: Any) -> None:
        group, half = q.shape[1] // C_K.shape[1], cos.shape[2]
        scores, bits = np.empty(TILE, np.float32), np.empty(TILE, np.int32)
        powers = bits.view(np.float32)
        keys = np.empty((TILE, 2 * half), np.float32)
        top, total = np.empty(group, np.float32), np.empty(group, np.float32)
        for b in range(q.shape[0]):
            for g in range(C_K.shape[1]):
                top[:], total[:] = np.float32(-3.0e38), np.float32(0.0)
                for start in range(0, lengths[b], TILE):
                    stop = min(start + TILE, lengths[b])
                    rebuild(C_K[b, g, start:stop], B_K[g], cos[b, start:stop], sin[b, start:stop], keys)
                    for i in range(group):
                        first = g * group + i
                        dots(q[b, first], keys[: stop - start], scale, scores)
                        top[i], total[i] = softmax_step(scores, C_V[b, g, start:stop], top[i], total[i], out[b, first], bits, powers)
                for i in range(group):
                    for j in range(out.shape[2]):
                        out[b, g * group + i, j] /= total[i]

    return attend, attend_with_rope


def flash_decode(
    q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    lengths: np.ndarray | None = None,
    scale: float | None = None,
    heads_per_read: int | None = None,
) -> np.ndarray:
    """`reference.decode`, in one pass: q (B, h, rk), K (B, g, L, rk), V (B, g, L, rv) -> (B, h, rv), all float32 and contiguous.

    Args:
        q: queries; for latents of keys, absorbed ones.
        K: keys or their latents.
        V: values or their latents.
        lengths: slots that count, (B,); None for all.
        scale: of the scores; default 1/sqrt(rk), which is wrong for absorbed queries.
        heads_per_read: query heads that share a pass over the cache, a divisor of h/g; default h/g, so that it is read once.

    Raises:
        ValueError: for shapes, types or lengths that do not fit.

    >>> q, K, V = np.ones((1, 2, 4), np.float32), np.zeros((1, 1, 3, 4), np.float32), np.arange(3, dtype=np.float32).reshape(1, 1, 3, 1)
    >>> flash_decode(q, K, V).ravel().tolist()
    [1.0, 1.0]
    """
    slots = _lengths(q, K, V, lengths)
    if K.shape[3] != q.shape[2]:
        raise ValueError(f"queries of width {q.shape[2]} cannot meet keys of width {K.shape[3]}; absorb B_K into the queries first")
    group = q.shape[1] // K.shape[1]
    shared = group if heads_per_read is None else heads_per_read
    if shared < 1 or group % shared:
        raise ValueError(f"heads_per_read must divide the {group} query heads of a key-value head, got {shared}")
    out = np.zeros((*q.shape[:2], V.shape[3]), np.float32)
    _compiled()[0](q, K, V, slots, np.float32(q.shape[2] ** -0.5 if scale is None else scale), shared, out)
    return out


def flash_decode_with_rope(
    q: np.ndarray,
    C_K: np.ndarray,
    B_K: np.ndarray,
    C_V: np.ndarray,
    positions: np.ndarray,
    frequencies: np.ndarray,
    lengths: np.ndarray | None = None,
) -> np.ndarray:
    """`reference.decode_with_rope`, in one pass; a key is rebuilt once for all query heads of its group.

    Raises:
        ValueError: for shapes, types or lengths that do not fit.
    """
    slots = _lengths(q, C_K, C_V, lengths)
    if B_K.shape != (C_K.shape[1], C_K.shape[3], q.shape[2]) or 2 * len(frequencies) != q.shape[2]:
        raise ValueError(
            f"B_K {B_K.shape} and {len(frequencies)} frequencies do not fit queries {q.shape} and latents {C_K.shape}; "
            "expected (g, r, H) and H/2"
        )
    if positions.shape != (C_K.shape[0], C_K.shape[2]):
        raise ValueError(f"positions must have shape (B, L) = {(C_K.shape[0], C_K.shape[2])}, got {positions.shape}")
    out = np.zeros((*q.shape[:2], C_V.shape[3]), np.float32)
    angles = positions[..., None].astype(np.float32) * frequencies.astype(np.float32)  # (B, L, H/2)
    _compiled()[1](q, C_K, B_K, C_V, np.cos(angles), np.sin(angles), slots, np.float32(q.shape[2] ** -0.5), out)
    return out


def _lengths(q: np.ndarray, K: np.ndarray, V: np.ndarray, lengths: np.ndarray | None) -> np.ndarray:
    """Lengths as integers, after a look at everything that all kernels share."""
    for name, part, ndim in (("q", q, 3), ("K", K, 4), ("V", V, 4)):
        if part.dtype != np.float32 or part.ndim != ndim or not part.flags.c_contiguous:
            raise ValueError(f"{name} must be a contiguous float32 array with {ndim} dimensions, got {part.dtype} {part.shape}")
    if K.shape[:3] != V.shape[:3] or K.shape[0] != q.shape[0] or q.shape[1] % K.shape[1]:
        raise ValueError(f"shapes do not fit: q {q.shape}, K {K.shape}, V {V.shape}; expected (B, h, .), (B, g, L, .), (B, g, L, .)")
    slots = np.full(len(q), K.shape[2], np.int64) if lengths is None else np.asarray(lengths, np.int64)
    if slots.shape != (len(q),) or (slots < 1).any() or (slots > K.shape[2]).any():
        raise ValueError(f"lengths must be {len(q)} numbers from 1 to {K.shape[2]}, got {slots.tolist()}")
    return slots
