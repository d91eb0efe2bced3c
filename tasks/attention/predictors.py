"""Predictors of heavy keys that need no training: the oracle, random hyperplanes (SimHash), product-quantised keys, MagicPIG's tables.

Keys are centred by their mean before hashing: softmax attention does not notice a vector that is added to all keys, but hashes do.
Randomness comes from a generator per (seed, layer), so that a layer's hash functions are the same in every call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tasks.attention.weighted import repeat_heads, scaled_logits

if TYPE_CHECKING:
    from torch import Tensor


def oracle(layer: int, query: Tensor, key: Tensor, logits: Tensor) -> Tensor:
    """The logits themselves. It reads every key, so it is no way to save time, but the best that a predictor can be."""
    return logits


@dataclass(frozen=True)
class SimHash:
    """Agreement of the signs of random projections of queries and centred keys (Charikar 2002): the untrained twin of HashAttention.

    Attributes:
        bits: of a signature.
        seed: of the projections.

    Example:
        >>> q = torch.eye(4).reshape(1, 1, 4, 4)
        >>> SimHash(bits=256)(0, q, torch.cat([q, -q], 2), torch.empty(0)).argmax(-1).tolist()
        [[[0, 1, 2, 3]]]
    """

    bits: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least_one("bits", self.bits)

    def __call__(self, layer: int, query: Tensor, key: Tensor, logits: Tensor) -> Tensor:
        """Agreeing minus disagreeing bits, (B, H, R, n)."""
        planes = _gaussian((query.shape[-1], self.bits), self.seed, layer).to(query.device)
        q, k = query.float() @ planes, centred(key) @ planes
        return scaled_logits(torch.where(q >= 0, 1.0, -1.0), torch.where(k >= 0, 1.0, -1.0), 1.0)


@dataclass(frozen=True)
class ProductQuantised:
    """Products of queries with keys whose pieces are rounded to the nearest of a few centroids (Jegou et al. 2011).

    Attributes:
        piece: entries of a piece of a key.
        bits: 2^bits centroids per piece and head.
        iterations: of k-means.
        seed: which keys the centroids begin at.
    """

    piece: int = 2
    bits: int = 6
    iterations: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("piece", "bits"):
            _at_least_one(name, getattr(self, name))
        if self.iterations < 0:
            raise ValueError(f"iterations must be at least 0, got {self.iterations}")

    def __call__(self, layer: int, query: Tensor, key: Tensor, logits: Tensor) -> Tensor:
        """Products with the rounded keys, (B, H, R, n)."""
        return scaled_logits(query, self.rounded(layer, key))

    def rounded(self, layer: int, key: Tensor) -> Tensor:
        """Keys (B, G, n, d), every piece replaced by its centroid.

        Raises:
            ValueError: if d is not a multiple of the piece.
        """
        batch, groups, n, width = key.shape
        if width % self.piece:
            raise ValueError(f"piece must divide the head width {width}, got {self.piece}")
        pieces = key.float().reshape(batch, groups, n, -1, self.piece).permute(0, 1, 3, 2, 4)  # (B, G, d/piece, n, piece)
        pieces = pieces.reshape(-1, n, self.piece)
        draw = torch.Generator().manual_seed(_mixed(self.seed, layer))
        first = torch.randperm(n, generator=draw)[: 2**self.bits].to(key.device)
        centroids, codes = kmeans(pieces, pieces[:, first], self.iterations)
        found = centroids.gather(1, codes[..., None].expand(-1, -1, self.piece))
        return found.reshape(batch, groups, -1, n, self.piece).permute(0, 1, 3, 2, 4).reshape(batch, groups, n, width)


@dataclass(frozen=True)
class MagicPIG:
    """Keys that collide with the query in hash tables, each weighted by one over the probability of that (Chen et al. 2024).

    Sampling by hashes rather than a ranking: the "scores" are weights, 0 where a key does not collide, for the method
    `tasks.attention.baselines.Collisions`. Keys are centred and made to lie on a sphere by one more entry (Neyshabur & Srebro 2015),
    so that a larger product means a smaller angle theta. With p = 1 - theta / pi, a table of K bits is hit with probability p^K.

    Attributes:
        bits: K, of a table's code.
        tables: L.
        least: tables that must be hit: 1, or 2 as the MagicPIG paper asks for.
        seed: of the tables.
    """

    bits: int = 8
    tables: int = 75
    least: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("bits", "tables"):
            _at_least_one(name, getattr(self, name))
        if self.bits > 15:
            raise ValueError(f"bits must be at most 15, got {self.bits}")
        if self.least not in (1, 2):
            raise ValueError(f"least must be 1 or 2, got {self.least}")

    def __call__(self, layer: int, query: Tensor, key: Tensor, logits: Tensor) -> Tensor:
        """Weights 1/u of the keys that collide, 0 elsewhere, (B, H, R, n)."""
        q, k = on_sphere(query, key)
        hits = self.hits(layer, q, k)
        u = collision_probability(scaled_logits(q, k, 1.0), self.bits, self.tables, self.least)
        return torch.where(hits >= self.least, 1 / u.clamp(min=1e-6), torch.zeros_like(u))

    def hits(self, layer: int, query: Tensor, key: Tensor) -> Tensor:
        """In how many tables queries (B, H, R, d+1) and keys (B, G, n, d+1) on the sphere have the same code, int16 (B, H, R, n)."""
        planes = _gaussian((query.shape[-1], self.tables * self.bits), self.seed, layer).to(query.device)
        q, k = self._codes(query @ planes), repeat_heads(self._codes(key @ planes), query.shape[1])
        q, k = q.movedim(-1, 0)[..., None], k.movedim(-1, 0)[..., None, :]  # (L, B, H, R, 1) and (L, B, H, 1, n)
        found = torch.zeros((*query.shape[:3], key.shape[2]), dtype=torch.int16, device=query.device)
        for table in range(self.tables):
            found += q[table] == k[table]
        return found

    def _codes(self, projected: Tensor) -> Tensor:
        signs = (projected >= 0).reshape(*projected.shape[:-1], self.tables, self.bits)
        return (signs.int() << torch.arange(self.bits, dtype=torch.int32, device=projected.device)).sum(-1).to(torch.int16)


def collision_probability(cosine: Tensor, bits: int, tables: int, least: int = 1) -> Tensor:
    """Probability that at least `least` of `tables` tables of `bits` random hyperplanes give two vectors the same code.

    Args:
        cosine: of the angle between them.
        bits: K.
        tables: L.
        least: 1 or 2.

    Example:
        >>> right_angle = torch.tensor(0.0)
        >>> [round(collision_probability(right_angle, 1, 2, least).item(), 4) for least in (1, 2)]
        [0.75, 0.25]
    """
    one = (1 - torch.arccos(cosine.clamp(-1, 1)) / math.pi) ** bits
    u = 1 - (1 - one) ** tables
    return u if least == 1 else u - tables * one * (1 - one) ** (tables - 1)


def on_sphere(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors whose products rank keys as query . (key - mean key) does: (B, H, R, d+1) and (B, G, n, d+1).

    Keys are divided by the largest norm of their head and get the entry that makes the norm 1; queries get a 0.
    """
    k = centred(key)
    k = k / torch.linalg.vector_norm(k, dim=-1, keepdim=True).amax(2, keepdim=True).clamp(min=1e-12)
    rest = (1 - k.square().sum(-1, keepdim=True)).clamp(min=0).sqrt()
    q = torch.nn.functional.normalize(query.float(), dim=-1)
    return torch.cat([q, torch.zeros_like(q[..., :1])], -1), torch.cat([k, rest], -1)


def centred(key: Tensor) -> Tensor:
    """Keys (B, G, n, d) minus their mean over n, float32."""
    k = key.float()
    return k - k.mean(2, keepdim=True)


def kmeans(points: Tensor, centroids: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm on many small sets at once.

    Args:
        points: (S, n, p).
        centroids: (S, c, p), where it begins.
        iterations: how often centroids move; one without points stays.

    Returns:
        Centroids (S, c, p) and the nearest one of each point, (S, n).
    """
    codes = nearest(points, centroids)
    for _ in range(iterations):
        sums = torch.zeros_like(centroids).scatter_add_(1, codes[..., None].expand_as(points), points)
        counts = torch.zeros(centroids.shape[:2], device=points.device).scatter_add_(1, codes, torch.ones_like(points[..., 0]))
        centroids = torch.where(counts[..., None] > 0, sums / counts[..., None].clamp(min=1), centroids)
        codes = nearest(points, centroids)
    return centroids, codes


def nearest(points: Tensor, centroids: Tensor) -> Tensor:
    """Index of the nearest centroid (S, c, p) of every point (S, n, p): (S, n)."""
    # |x|^2 is the same for all centroids
    return (centroids.square().sum(-1)[:, None] - 2 * points @ centroids.transpose(1, 2)).argmin(-1)


def _gaussian(shape: tuple[int, int], seed: int, layer: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(_mixed(seed, layer)))


def _mixed(seed: int, layer: int) -> int:
    return seed * 1_000_003 + layer


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


PREDICTORS = {"oracle": lambda: oracle, "simhash": SimHash, "pq": ProductQuantised}
"""Predictors that need no training, by the names that `VAttentionConfig.predictor` knows."""
