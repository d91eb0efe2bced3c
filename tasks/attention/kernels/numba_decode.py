"""Weighted-softmax decoding on a CPU straight from index lists: the listed keys are read once, nothing is gathered or copied.

One decode step of one sequence, shapes as in `tasks.attention.kernels.gather_decode`. Caches are float32 or bfloat16; sums are float32.
With several threads, heads are divided among them.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tasks.attention.kernels.gather_decode import check_decode
from tasks.attention.kernels.numba_primitives import as_float, fetch_row, inline, jit, product

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

EMPTY = np.float32(-1e30)
AHEAD = 6
"""Rows that are asked for before they are needed."""


def sparse_decode(
    query: Tensor, keys: Tensor, values: Tensor, indices: Tensor, weights: Tensor, scaling: float | None = None, *, threads: int = 1
) -> Tensor:
    """Weighted softmax attention over listed keys.

    Args:
        query: (H, d).
        keys: (G, n, d), float32 or bfloat16, rows contiguous.
        values: (G, n, d), of the same type.
        indices: (H, m), key numbers.
        weights: (H, m), 0 for padding.
        scaling: of the logits; 1 / sqrt(d) by default.
        threads: heads are divided among so many.

    Returns:
        (H, d), float32; 0 for a head that reads nothing.

    Raises:
        ValueError: for shapes or types that do not fit.
    """
    check_decode(query, keys, values, indices, weights)
    q, k, v = arrays(query, keys, values)
    listed, weight = indices.int().contiguous().numpy(), weights.float().contiguous().numpy()
    out = np.empty((q.shape[0], v.shape[2]), dtype=np.float32)
    factor = np.float32(scale_of(query, scaling))
    over_heads(lambda first, last: _sparse(q, k, v, listed, weight, factor, out, first, last), q.shape[0], threads)
    return torch.from_numpy(out)


def dense_decode(query: Tensor, keys: Tensor, values: Tensor, scaling: float | None = None, *, threads: int = 1) -> Tensor:
    """All keys with weight 1, by the same arithmetic: the kernel's dense twin. Arguments as in `sparse_decode`."""
    check_decode(query, keys, values)
    q, k, v = arrays(query, keys, values)
    out = np.empty((q.shape[0], v.shape[2]), dtype=np.float32)
    factor = np.float32(scale_of(query, scaling))
    over_heads(lambda first, last: _dense(q, k, v, factor, out, first, last), q.shape[0], threads)
    return torch.from_numpy(out)


def arrays(query: Tensor, keys: Tensor, values: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Query in float32, and caches as numba reads them, without a copy where rows are contiguous.

    Raises:
        ValueError: for caches on another device, or of another type than float32 or bfloat16.
    """
    return query.float().contiguous().numpy(), cache_array(keys, "keys"), cache_array(values, "values")


def cache_array(cache: Tensor, name: str) -> np.ndarray:
    """A float32 cache as it is, a bfloat16 cache as the uint16 of its bits.

    Raises:
        ValueError: for another device or type.
    """
    if cache.device.type != "cpu" or cache.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"{name} must be float32 or bfloat16 on the CPU, got {cache.dtype} on {cache.device}")
    whole = cache if cache.is_contiguous() else cache.contiguous()
    return whole.numpy() if cache.dtype == torch.float32 else whole.view(torch.int16).numpy().view(np.uint16)


def scale_of(query: Tensor, scaling: float | None) -> float:
    """Factor of the logits: the given one, else 1 / sqrt(d)."""
    return 1 / math.sqrt(query.shape[-1]) if scaling is None else scaling


def over_heads(work: Callable[[int, int], None], heads: int, threads: int) -> None:
    """Call `work(first, last)` on ranges of heads, one per thread; kernels release the interpreter's lock.

    Raises:
        ValueError: if `threads` is less than 1.
    """
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    if threads == 1:
        work(0, heads)
        return
    cuts = [heads * t // threads for t in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, cuts[:-1], cuts[1:]))


@inline
def mix(logits: Any, weights: Any, listed: Any, count: Any, top: Any, values: Any, out: Any) -> None:
    """Softmax of `count` weighted logits with shift `top` applied to the listed rows of `values`, into `out`."""
    total = np.float32(0.0)
    out[:] = np.float32(0.0)
    for i in range(count):
        if weights[i] > 0:
            if i + AHEAD < count:
                fetch_row(values, listed[i + AHEAD])
            e = weights[i] * np.exp(logits[i] - top)
            total += e
            row = values[listed[i]]
            for c in range(out.shape[0]):
                out[c] += e * as_float(row[c])
    if total > 0:
        for c in range(out.shape[0]):
            out[c] /= total


@jit
def _sparse(q: Any, keys: Any, values: Any, listed: Any, weights: Any, factor: Any, out: Any, first: int, last: int) -> None:
    shared = q.shape[0] // keys.shape[0]
    length = listed.shape[1]
    logits = np.empty(length, dtype=np.float32)
    for h in range(first, last):
        g = h // shared
        mine = keys[g]
        top = EMPTY
        for i in range(length):
            if i + AHEAD < length:
                fetch_row(mine, listed[h, i + AHEAD])
            if weights[h, i] > 0:
                logits[i] = factor * product(q[h], mine[listed[h, i]])
                top = max(top, logits[i])
        mix(logits, weights[h], listed[h], length, top, values[g], out[h])


@jit
def _dense(q: Any, keys: Any, values: Any, factor: Any, out: Any, first: int, last: int) -> None:
    shared = q.shape[0] // keys.shape[0]
    n = keys.shape[1]
    logits = np.empty(n, dtype=np.float32)
    for h in range(first, last):
        g = h // shared
        top = EMPTY
        for i in range(n):
            logits[i] = factor * product(q[h], keys[g, i])
            top = max(top, logits[i])
        total = np.float32(0.0)
        out[h] = np.float32(0.0)
        for i in range(n):
            e = np.exp(logits[i] - top)
            total += e
            for c in range(out.shape[1]):
                out[h, c] += e * as_float(values[g, i, c])
        for c in range(out.shape[1]):
            out[h, c] /= total
