"""Decode steps and the dense masked formula that every kernel is compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from tasks.attention.weighted import repeat_heads, scaled_logits, weighted_attention

HEADS = [(4, 4), (6, 2), (9, 3), (4, 1)]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def step(heads=6, groups=2, n=300, width=32, value_width=None, dtype=torch.float32, seed=0) -> tuple[Tensor, Tensor, Tensor]:
    """Query (H, d) in float32, keys and values (G, n, d)."""
    g = torch.Generator().manual_seed(seed)
    return (
        torch.randn(heads, width, generator=g) * 2,
        torch.randn(groups, n, width, generator=g).to(dtype),
        torch.randn(groups, n, value_width or width, generator=g).to(dtype),
    )


def random_weights(heads: int, n: int, share=0.2, seed=1) -> Tensor:
    """Weights (H, n), most of them 0, the others between 0.1 and 10; every head reads another number of keys."""
    g = torch.Generator().manual_seed(seed)
    kept = torch.rand(heads, n, generator=g) < share * torch.linspace(0.5, 1.5, heads)[:, None]
    kept[:, 0] = True
    return kept * torch.exp(torch.empty(heads, n).uniform_(-2.3, 2.3, generator=g))


def dense_masked(query: Tensor, keys: Tensor, values: Tensor, weights: Tensor, scaling: float | None = None) -> Tensor:
    """The slow twin: logits of all keys, weights on them, (H, d)."""
    logits = scaled_logits(query[None, :, None], keys[None], scaling)
    return weighted_attention(logits, weights[None, :, None], repeat_heads(values[None], query.shape[0]))[0, :, 0]
