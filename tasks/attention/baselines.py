"""Methods that vAttention is compared with, as methods of `tasks.attention.interface`: they return weights, 0 where a key is not read.

Sizes: `sink` and `window` as in `VAttentionConfig`; `density` is the share of the valid keys that a row reads in all, ends included, so
that methods of one density read equally many keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tasks.attention.selection import Size, deterministic_set, random_order, sample_weights, sink_mask, size_of, top_mask, window_mask
from tasks.attention.weighted import exponentials

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Dense:
    """Every valid key: exact attention."""

    def __call__(
        self, logits: Tensor, valid: Tensor, scores: Tensor, generator: torch.Generator, *, values: Tensor | None = None
    ) -> Tensor:
        """Weights, (..., R, n)."""
        return valid.expand(logits.shape).float()


@dataclass(frozen=True)
class SinkWindow:
    """The first keys and as many of the last ones as the density allows (StreamingLLM; Xiao et al. 2024)."""

    density: float
    sink: Size = 16

    def __post_init__(self) -> None:
        _check_density(self.density)

    def __call__(
        self, logits: Tensor, valid: Tensor, scores: Tensor, generator: torch.Generator, *, values: Tensor | None = None
    ) -> Tensor:
        """Weights, (..., R, n)."""
        counts = valid.sum(-1)
        total = size_of(self.density, counts)
        sink = size_of(self.sink, counts).minimum(total)
        return (sink_mask(valid, sink) | window_mask(valid, total - sink)).expand(logits.shape).float()


@dataclass(frozen=True)
class TopK:
    """Ends and the keys with the largest scores, weight 1: with the logits as scores, oracle top-k; else a predictor's top-k.

    Example:
        >>> logits, valid = torch.tensor([[0.0, 3.0, 1.0, 2.0, 0.0]]), torch.ones(1, 5, dtype=torch.bool)
        >>> TopK(density=0.6, sink=1, window=1)(logits, valid, logits, torch.Generator()).tolist()
        [[1.0, 1.0, 0.0, 0.0, 1.0]]
    """

    density: float
    sink: Size = 16
    window: Size = 16

    def __post_init__(self) -> None:
        _check_density(self.density)

    def __call__(
        self, logits: Tensor, valid: Tensor, scores: Tensor, generator: torch.Generator, *, values: Tensor | None = None
    ) -> Tensor:
        """Weights, (..., R, n)."""
        ends, rest, budget = _ends(valid, self.sink, self.window, self.density)
        return (ends | top_mask(scores, rest, budget)).float()


@dataclass(frozen=True)
class TopP:
    """Ends and the fewest heaviest keys with which at least the share `p` of the softmax is read; an oracle.

    Attributes:
        p: share of the softmax, in (0, 1]; what sink and window hold counts.
        sink: keys at the beginning.
        window: keys at the end.
    """

    p: float
    sink: Size = 16
    window: Size = 16

    def __post_init__(self) -> None:
        if not 0 < self.p <= 1:
            raise ValueError(f"p must lie in (0, 1], got {self.p}")

    def __call__(
        self, logits: Tensor, valid: Tensor, scores: Tensor, generator: torch.Generator, *, values: Tensor | None = None
    ) -> Tensor:
        """Weights, (..., R, n)."""
        fixed = deterministic_set(valid, logits, self.sink, self.window, 0)
        e = exponentials(logits, valid)
        share = e / e.sum(-1, keepdim=True)
        rest = valid & ~fixed
        sorted_share, order = (share * rest).sort(-1, descending=True)
        before = (share * fixed).sum(-1, keepdim=True) + sorted_share.cumsum(-1) - sorted_share
        needed = torch.zeros_like(rest.expand(share.shape)).scatter_(-1, order, before < self.p)  # less than p without it
        return (fixed | (needed & rest)).float()


@dataclass(frozen=True)
class UniformSample:
    """Ends, and a uniform sample of the rest that stands for all of it, weights n_s / b: sampling without heavy keys."""

    density: float
    sink: Size = 16
    window: Size = 16

    def __post_init__(self) -> None:
        _check_density(self.density)

    def __call__(
        self, logits: Tensor, valid: Tensor, scores: Tensor, generator: torch.Generator, *, values: Tensor | None = None
    ) -> Tensor:
        """Weights, (..., R, n)."""
        ends, rest, budget = _ends(valid, self.sink, self.window, self.density)
        shape = logits.shape
        return _with_sample(ends.expand(shape), rest.expand(shape), budget.expand(shape[:-1]), generator)


@dataclass(frozen=True)
class HybridFixed:
    """Ends, then a share of the budget to the best scored keys and the rest to a uniform sample: vAttention without its adaptive budget.

    Attributes:
        density: share of keys read in all.
        sink: keys at the beginning.
        window: keys at the end.
        heavy_share: of what is left after the ends, how much goes to heavy keys.
    """

    density: float
    sink: Size = 16
    window: Size = 16
    heavy_share: float = 0.5

    def __post_init__(self) -> None:
        _check_density(self.density)
        if not 0 <= self.heavy_share <= 1:
            raise ValueError(f"heavy_share must lie in [0, 1], got {self.heavy_share}")

    def __call__(
        self, logits: Tensor, valid: Tensor, scores: Tensor, generator: torch.Generator, *, values: Tensor | None = None
    ) -> Tensor:
        """Weights, (..., R, n)."""
        ends, rest, budget = _ends(valid, self.sink, self.window, self.density)
        heavy = torch.round(budget * self.heavy_share).long()
        fixed = ends | top_mask(scores, rest, heavy)
        return _with_sample(fixed, valid & ~fixed, (budget - heavy).expand(logits.shape[:-1]), generator)


@dataclass(frozen=True)
class Collisions:
    """Ends, and the keys that `tasks.attention.predictors.MagicPIG` (the predictor to use with it) sampled, with the weights it gave them.

    How many keys are read follows from its tables, not from a density.
    """

    sink: Size = 16
    window: Size = 16

    def __call__(
        self, logits: Tensor, valid: Tensor, scores: Tensor, generator: torch.Generator, *, values: Tensor | None = None
    ) -> Tensor:
        """Weights, (..., R, n).

        Raises:
            ValueError: if a score is negative, so not the weight of a sample.
        """
        if bool((scores < 0).any()):
            raise ValueError("scores must be weights of sampled keys (at least 0); use the predictor MagicPIG with this method")
        ends = deterministic_set(valid, logits, self.sink, self.window, 0)
        return torch.where(ends, torch.ones_like(scores), scores * (valid & ~ends))


def _ends(valid: Tensor, sink: Size, window: Size, density: float) -> tuple[Tensor, Tensor, Tensor]:
    """Keys at both ends, the rest of the valid ones, and how many of these the density leaves for reading."""
    counts = valid.sum(-1)
    ends = sink_mask(valid, size_of(sink, counts)) | window_mask(valid, size_of(window, counts))
    rest = valid & ~ends
    return ends, rest, (size_of(float(density), counts) - ends.sum(-1)).clamp(min=0).minimum(rest.sum(-1))


def _with_sample(fixed: Tensor, residual: Tensor, b: Tensor, generator: torch.Generator) -> Tensor:
    chosen = random_order(residual, generator) <= b[..., None]
    return sample_weights(fixed, chosen, residual.sum(-1), b)


def _check_density(density: float) -> None:
    if isinstance(density, bool) or not (math.isfinite(density) and 0 < density <= 1):
        raise ValueError(f"density must lie in (0, 1], got {density}")
