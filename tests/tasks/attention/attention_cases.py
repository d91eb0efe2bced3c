"""Random queries, keys and values, tiny models, and the slow twins that fast routines are compared with."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def qkv(heads=4, groups=2, rows=3, n=120, width=8, value_width=6, seed=0, batch=1) -> tuple[Tensor, Tensor, Tensor]:
    g = generator(seed)
    return (
        torch.randn(batch, heads, rows, width, generator=g) * 2,
        torch.randn(batch, groups, n, width, generator=g),
        torch.randn(batch, groups, n, value_width, generator=g),
    )


def exact_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Row by row and head by head; the rows are the last of the positions."""
    batch, heads, rows, width = query.shape
    n, share = key.shape[2], heads // key.shape[1]
    out = torch.zeros(batch, heads, rows, value.shape[-1])
    for b in range(batch):
        for h in range(heads):
            for r in range(rows):
                seen = n - rows + r + 1
                s = key[b, h // share, :seen].double() @ query[b, h, r].double() / math.sqrt(width)
                out[b, h, r] = (torch.softmax(s, 0) @ value[b, h // share, :seen].double()).float()
    return out


def tiny_llama(heads=6, groups=2, layers=2, positions=4096, seed=0):
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=64,
            hidden_size=8 * heads,
            intermediate_size=64,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=groups,
            max_position_embeddings=positions,
            attn_implementation="sdpa",
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=None,
        )
        return LlamaForCausalLM(config).eval().requires_grad_(False)
