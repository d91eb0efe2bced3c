"""One decode step of vAttention on a CPU in a single kernel: select by signatures, sample, size the sample, attend.

Heavy keys are those whose 64-bit signature is nearest to the query's in Hamming distance; one pass counts bits and a histogram of the 65
distances gives the threshold, without a sort. The base sample is drawn from the rest, its spread decides the budget of the denominator
(Desai et al. 2025, Lemma 4.1), more draws follow, and the softmax runs over what was read. Signatures of keys belong to the cache: they
are made once per key, of the query at every step.

Shapes as in `tasks.attention.kernels.gather_decode`. Draws depend on (seed, head) alone, not on threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tasks.attention.kernels.gather_decode import check_decode
from tasks.attention.kernels.numba_decode import AHEAD, EMPTY, arrays, mix, over_heads, scale_of
from tasks.attention.kernels.numba_primitives import count_bits, fetch_row, inline, jit, product, random_below

if TYPE_CHECKING:
    from torch import Tensor

BITS = 64


@dataclass(frozen=True)
class FusedSizes:
    """How much is read, as whole numbers of keys; ends and heavy keys may not overlap, what is too many is cut.

    Attributes:
        sink: keys at the beginning.
        window: keys at the end.
        heavy: keys by signature.
        base: size of the base sample, at least 2 (or 0: no sample).
        ratio: (z(delta) / epsilon)^2, by which the spread becomes a budget; 0 keeps the base sample as it is (a fixed size).
    """

    sink: int
    window: int
    heavy: int
    base: int
    ratio: float = 0.0

    def __post_init__(self) -> None:
        for name in ("sink", "window", "heavy", "base"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.base == 1:
            raise ValueError("base must be 0 or at least 2, got 1; one draw has no spread")
        if not (self.ratio >= 0 and math.isfinite(self.ratio)):
            raise ValueError(f"ratio must be finite and at least 0, got {self.ratio}")

    @classmethod
    def of_density(cls, n: int, density: float, *, ends: int = 16, heavy_share: float = 0.5) -> FusedSizes:
        """A fixed size: `density * n` keys in all, ends included, the rest divided between heavy keys and the sample.

        Raises:
            ValueError: unless 0 < density <= 1.

        Example:
            >>> FusedSizes.of_density(1000, 0.1)
            FusedSizes(sink=16, window=16, heavy=34, base=34, ratio=0.0)
        """
        if not 0 < density <= 1:
            raise ValueError(f"density must lie in (0, 1], got {density}")
        budget = max(math.ceil(density * n) - 2 * ends, 2)
        heavy = round(budget * heavy_share)
        sampled = budget - heavy
        return cls(ends, ends, heavy + (1 if sampled == 1 else 0), 0 if sampled == 1 else sampled)


def signature_planes(width: int, generator: torch.Generator) -> Tensor:
    """Normals of 64 random hyperplanes, (64, d), float32."""
    return torch.randn(BITS, width, generator=generator)


def signatures(keys: Tensor, planes: Tensor) -> Tensor:
    """Which side of each hyperplane keys (G, n, d) lie on, centred by their mean: int64 bits, (G, n)."""
    centred = keys.float() - keys.float().mean(1, keepdim=True)
    places = torch.arange(BITS, dtype=torch.int64)
    return torch.stack([((head @ planes.T >= 0).long() << places).sum(-1) for head in centred])


def vattention_decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    key_signatures: Tensor,
    planes: Tensor,
    sizes: FusedSizes,
    seed: int,
    scaling: float | None = None,
    *,
    threads: int = 1,
) -> tuple[Tensor, Tensor]:
    """One decode step, selection included.

    Args:
        query: (H, d).
        keys: (G, n, d), float32 or bfloat16.
        values: (G, n, d), of the same type.
        key_signatures: (G, n), from `signatures`.
        planes: (64, d), what they were made with.
        sizes: how much is read.
        seed: of the draws; take another one for every layer and step.
        scaling: of the logits; 1 / sqrt(d) by default.
        threads: heads are divided among so many.

    Returns:
        Output (H, d) in float32, and how many keys each head read, (H,) int64.

    Raises:
        ValueError: for shapes or types that do not fit.
    """
    out, counts, _, _ = _run(query, keys, values, key_signatures, planes, sizes, seed, scaling, threads, attend=True)
    return torch.from_numpy(out), torch.from_numpy(counts)


def vattention_lists(
    query: Tensor,
    keys: Tensor,
    key_signatures: Tensor,
    planes: Tensor,
    sizes: FusedSizes,
    seed: int,
    scaling: float | None = None,
    *,
    threads: int = 1,
) -> tuple[Tensor, Tensor]:
    """What `vattention_decode` reads, without attending: indices int32 and weights float32, (H, m), for other kernels."""
    _, counts, listed, weights = _run(query, keys, keys, key_signatures, planes, sizes, seed, scaling, threads, attend=False)
    longest = max(int(counts.max()), 1)
    inside = np.arange(longest) < counts[:, None]
    return (
        torch.from_numpy(np.where(inside, listed[:, :longest], 0).astype(np.int32)),
        torch.from_numpy(np.where(inside, weights[:, :longest], 0).astype(np.float32)),
    )


def _run(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    signed: Tensor,
    planes: Tensor,
    sizes: FusedSizes,
    seed: int,
    scaling: float | None,
    threads: int,
    *,
    attend: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    check_decode(query, keys, values)
    if signed.shape != keys.shape[:2] or planes.shape != (BITS, query.shape[1]):
        raise ValueError(
            f"need key_signatures {tuple(keys.shape[:2])} and planes {(BITS, query.shape[1])}, "
            f"got {tuple(signed.shape)} and {tuple(planes.shape)}"
        )
    q, k, v = arrays(query, keys, values)
    heads, n = q.shape[0], k.shape[1]
    sink = min(sizes.sink, n)
    window = min(sizes.window, n - sink)
    heavy = min(sizes.heavy, n - sink - window)
    base = min(sizes.base, n - sink - window - heavy)
    most = n if sizes.ratio > 0 else sink + window + heavy + base
    out = np.empty((heads, v.shape[2]), dtype=np.float32)
    counts = np.empty(heads, dtype=np.int64)
    listed, weights = np.empty((heads, most), dtype=np.int32), np.empty((heads, most), dtype=np.float32)
    bits = signed.contiguous().numpy().view(np.uint64)
    normals = planes.float().contiguous().numpy()
    factor = np.float32(scale_of(query, scaling))

    def work(first: int, last: int) -> None:
        read = (sink, window, heavy, base, sizes.ratio, np.uint64(seed), attend)
        _fused(q, k, v, bits, normals, factor, *read, out, counts, listed, weights, first, last)

    over_heads(work, heads, threads)
    return out, counts, listed, weights


@inline
def _nearest(bits: Any, mine: Any, sink: int, end: int, heavy: int, far: Any, taken: Any, listed: Any, count: int) -> int:
    """Add the `heavy` keys of sink..end whose signatures are nearest to `mine`; of equally near ones the first. Returns the new count."""
    histogram = np.zeros(BITS + 1, dtype=np.int64)
    for j in range(sink, end):
        far[j] = count_bits(bits[j] ^ mine)
    for j in range(sink, end):
        histogram[far[j]] += 1
    threshold, below = 0, 0
    while threshold < BITS and below + histogram[threshold] < heavy:
        below += histogram[threshold]
        threshold += 1
    ties = heavy - below
    for j in range(sink, end):
        if far[j] < threshold or (far[j] == threshold and ties > 0):
            if far[j] == threshold:
                ties -= 1
            taken[j] = 1
            listed[count] = j
            count += 1
    return count


@inline
def _draw(state: Any, sink: int, end: int, wanted: int, taken: Any, listed: Any, count: int) -> int:
    """Add `wanted` keys of sink..end that are not taken yet, uniformly; returns the new count."""
    for _ in range(wanted):
        j = sink + random_below(state, end - sink)
        while taken[j] != 0:
            j = sink + random_below(state, end - sink)
        taken[j] = 1
        listed[count] = j
        count += 1
    return count


@jit
def _fused(
    q: Any, keys: Any, values: Any, bits: Any, planes: Any, factor: Any, sink: int, window: int, heavy: int, base: int, ratio: float,
    seed: Any, attend: bool, out: Any, counts: Any, listed: Any, weights: Any, first: int, last: int,
) -> None:  # fmt: skip
    shared = q.shape[0] // keys.shape[0]
    n = keys.shape[1]
    end = n - window
    logits = np.empty(listed.shape[1], dtype=np.float32)
    far = np.empty(n, dtype=np.uint8)
    taken = np.empty(n, dtype=np.uint8)
    state = np.empty(1, dtype=np.uint64)
    for h in range(first, last):
        g = h // shared
        near = keys[g]
        state[0] = seed * np.uint64(0xD1342543DE82EF95) + np.uint64(h)
        taken[:] = 0
        count = 0
        for j in range(sink):
            listed[h, count] = j
            count += 1
        for j in range(end, n):
            listed[h, count] = j
            count += 1
        if heavy > 0:
            mine = np.uint64(0)
            for b in range(BITS):
                if product(planes[b], q[h]) >= 0:
                    mine |= np.uint64(1) << np.uint64(b)
            count = _nearest(bits[g], mine, sink, end, heavy, far, taken, listed[h], count)
        fixed = count
        residual = n - fixed
        count = _draw(state, sink, end, base, taken, listed[h], count)
        top = EMPTY
        sized = ratio > 0 and 0 < base < residual
        if attend or sized:
            for i in range(count):
                if i + AHEAD < count:
                    fetch_row(near, listed[h, i + AHEAD])
                logits[i] = factor * product(q[h], near[listed[h, i]])
                top = max(top, logits[i])
        if sized:
            certain = 0.0
            for i in range(fixed):
                certain += np.exp(logits[i] - top)
            mean, square = 0.0, 0.0
            for i in range(fixed, count):
                e = np.exp(logits[i] - top)
                mean += e
                square += e * e
            mean /= base
            variance = max(square - base * mean * mean, 0.0) / (base - 1)
            total = certain + residual * mean
            wanted = ratio * residual * residual * variance / (total * total)
            b = residual if wanted >= residual else max(base, int(np.ceil(wanted)))
            if b == residual:
                for j in range(sink, end):
                    if taken[j] == 0:
                        listed[h, count] = j
                        count += 1
            else:
                count = _draw(state, sink, end, b - base, taken, listed[h], count)
            if attend:
                for i in range(fixed + base, count):
                    if i + AHEAD < count:
                        fetch_row(near, listed[h, i + AHEAD])
                    logits[i] = factor * product(q[h], near[listed[h, i]])
                    top = max(top, logits[i])
        stands_for = np.float32(residual / (count - fixed)) if count > fixed else np.float32(0.0)
        for i in range(count):
            weights[h, i] = np.float32(1.0) if i < fixed else stands_for
        counts[h] = count
        if attend:
            mix(logits, weights[h], listed[h], count, top, values[g], out[h])
