"""A small Llama with grouped key-value heads, made in memory, and what tests calibrate it on."""

from __future__ import annotations

from typing import Any

import torch

from tasks.language_models.random_llama import RandomLlamaParams, random_model

VOCABULARY = 300
HIDDEN, HEAD, QUERY_HEADS, KV_HEADS, LAYERS = 48, 8, 6, 2, 2


def tiny_model(seed: int = 0) -> Any:
    """Float32, two layers, six query heads and two key-value heads of dimension 8."""
    params = RandomLlamaParams(layers=LAYERS, kv_heads=KV_HEADS, head_width=HEAD, vocabulary=512, positions=128, seed=seed)
    return random_model(params, VOCABULARY).float().eval().requires_grad_(False)


def tiny_ids(rows: int = 6, length: int = 20, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def positive(*shape: int, seed: int = 0) -> torch.Tensor:
    return randn(*shape, seed=seed).square() + 0.05
