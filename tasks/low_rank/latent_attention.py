"""Attention whose cache holds latents instead of keys and values, inside a transformers model.

Values never come back: B_V is folded into the output projection (Palu, Chang et al., 2025), so that attention sums latents,
out = sum_h (p_h^T C_V) (B_V W_O,h). Keys are harder under rotary positions, for R(t) B_K^T does not commute with them: either keys are made
and rotated once and cached whole (`keys="whole"`: the quick one on a CPU), or their latents are cached and all keys rebuilt and rotated at
every step, each at the logical position of its slot (`keys="latent"`: the small one, which wants a fused kernel to be quick).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import nn

from tasks.low_rank.attention import attention_blocks
from tasks.low_rank.heads import join_heads
from tasks.low_rank.layers import PerHeadLowRankLinear

KeyCache = Literal["whole", "latent"]
SUPPORTED = ("LlamaAttention", "MistralAttention", "Qwen2Attention")
"""Attention classes of transformers with rotary positions and nothing between projections and attention (no norms of queries and keys)."""


class RotaryStore:
    """Cosines and sines of every cached slot, (B, n, H), shared by all layers of a model; follows the cache when it is cropped."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Any, tuple[torch.Tensor, torch.Tensor]] = WeakKeyDictionary()

    def extended(self, cache: Any, cos: torch.Tensor, sin: torch.Tensor, before: int, first: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of all slots after the new ones were appended behind `before` others; the first layer to ask appends.

        Raises:
            ValueError: if the cache holds slots whose positions were never seen.
        """
        kept = self._kept.get(cache)
        if first:
            if before and (kept is None or kept[0].shape[1] < before or kept[0].shape[0] not in (1, cos.shape[0])):
                raise ValueError(
                    "the cache was filled, or its rows were changed, outside of this model; prefill it with the compressed model"
                )
            if before and kept is not None:
                parts = [torch.cat([old[:, :before].expand(len(new), -1, -1), new], 1) for old, new in zip(kept, (cos, sin), strict=True)]
                kept = (parts[0], parts[1])
            else:
                kept = (cos, sin)
            self._kept[cache] = kept
        if kept is None:
            raise ValueError("no positions are known of this cache; the first layer has to run first")
        return kept


class LatentAttention(nn.Module):
    """Drop-in for a Llama-like attention module whose keys and values were factorised per head.

    Args:
        original: the attention module, with `PerHeadLowRankLinear` as `v_proj` (and as `k_proj` for latent keys).
        keys: what is cached of them.
        store: positions of cached slots, shared between layers; needed for latent keys.
        first: whether this is the layer that runs first.
    """

    def __init__(self, original: Any, keys: KeyCache, store: RotaryStore, first: bool) -> None:
        super().__init__()
        kind = type(original).__name__
        if kind not in SUPPORTED:
            raise ValueError(f"latents can be cached for {', '.join(SUPPORTED)}, got {kind}; use the factorised projections without it")
        needed = ["v_proj"] + (["k_proj"] if keys == "latent" else [])
        for part in needed:
            if not isinstance(getattr(original, part), PerHeadLowRankLinear):
                raise ValueError(f"{part} is a {type(getattr(original, part)).__name__}; factorise it per head before caching its latents")
        self.config, self.layer_idx, self.head_dim = original.config, original.layer_idx, original.head_dim
        self.num_key_value_groups, self.scaling, self.is_causal = original.num_key_value_groups, original.scaling, original.is_causal
        self.attention_dropout = original.attention_dropout
        self.q_proj, self.k_proj, self.v_proj = original.q_proj, original.k_proj, original.v_proj
        self.keys, self.store, self.first = keys, store, first
        library = sys.modules[type(original).__module__]
        self._rotate, self._functions = library.apply_rotary_pos_emb, library.ALL_ATTENTION_FUNCTIONS
        self._eager = library.eager_attention_forward
        self.o_folded, self.o_bias = fold_values(original)
        self.key_weight: torch.Tensor | None = None
        if keys == "whole" and isinstance(original.k_proj, PerHeadLowRankLinear):
            # Keys are made once per token and cached whole: one product with A B is quicker than two thin ones.
            self.key_weight = join_heads(original.k_proj.A.detach() @ original.k_proj.B.detach())
        self.train(original.training)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As the original's: hidden states (B, T, E) -> (B, T, E), attention weights or None."""
        rows, new = hidden_states.shape[:2]
        cos, sin = position_embeddings  # (B, T, H) each
        queries = self.q_proj(hidden_states).view(rows, new, -1, self.head_dim).transpose(1, 2)
        values = self.v_proj.latent(hidden_states).transpose(1, 2)  # (B, h, T, r)
        queries = self._rotate(queries, queries, cos, sin)[0]
        if self.keys == "whole":
            made = self._keys(hidden_states).view(rows, new, -1, self.head_dim).transpose(1, 2)
            keys = self._rotate(made, made, cos, sin)[1]
            if cache is not None:
                keys, values = cache.update(keys, values, self.layer_idx, kwargs=kwargs)
        else:
            latents = self.k_proj.latent(hidden_states).transpose(1, 2)
            if cache is not None:
                before = int(cache.get_seq_length(self.layer_idx))
                cos, sin = self.store.extended(cache, cos, sin, before, self.first)
                latents, values = cache.update(latents, values, self.layer_idx, kwargs=kwargs)
                cos, sin = cos[:, -latents.shape[2] :], sin[:, -latents.shape[2] :]  # a sliding window has dropped the oldest slots
            made = self.k_proj.expand(latents.transpose(1, 2)).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            keys = self._rotate(made, made, cos, sin)[1]
        weights: torch.Tensor | None = None
        if new == 1 and not self.training:
            out = attend_once(queries, keys, values, attention_mask, self.scaling)
        else:
            attend = self._functions.get_interface(self.config._attn_implementation, self._eager)
            dropout = self.attention_dropout if self.training else 0.0
            out, weights = attend(self, queries, keys, values, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs)
        # out: (B, T, h_q, r)
        out = out.reshape(rows, new, -1) @ self.o_folded
        return (out if self.o_bias is None else out + self.o_bias), weights

    def _keys(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if self.key_weight is None:
            found: torch.Tensor = self.k_proj(hidden_states)
            return found
        return nn.functional.linear(hidden_states, self.key_weight, self.k_proj.bias)


def attend_once(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scaling: float) -> torch.Tensor:
    """Attention of one new token: queries (B, h_q, 1, H), keys (B, h, n, H), values (B, h, n, r) -> (B, 1, h_q, r).

    Torch's fused kernels want values as wide as keys, and its general one turns half-precision caches into float32; here the query heads
    of a group read keys and latents together, as they are.
    """
    rows, heads = keys.shape[:2]
    grouped = queries.reshape(rows, heads, -1, queries.shape[-1])  # (B, h, group, H)
    scores = (grouped @ keys.transpose(-1, -2)).float() * scaling
    if mask is not None:  # (B or 1, 1, 1, n), true or 0 for what may be read
        kept = mask[..., : keys.shape[2]]
        scores = scores.masked_fill(~kept, -torch.inf) if kept.dtype == torch.bool else scores + kept.float()
    out = scores.softmax(-1).to(values.dtype) @ values  # (B, h, group, r)
    return out.reshape(rows, 1, -1, values.shape[-1])


def fold_values(attention: Any) -> tuple[nn.Parameter, nn.Parameter | None]:
    """B_V W_O for every query head, (h_q * r, E), and the output's bias with that of the values in it.

    Query head j reads the latent of key-value head j // group.
    """
    values, output = attention.v_proj, attention.o_proj
    group = attention.num_key_value_groups
    heads, rank, dimension = values.B.shape
    weight = output.weight.detach().float().T.reshape(heads, group, dimension, -1)  # (h, group, H, E)
    folded = torch.einsum("hrd,hgde->hgre", values.B.detach().float(), weight)
    bias = None if output.bias is None else output.bias.detach().float()
    if values.bias is not None:  # attention weights sum to one, so that the values' bias is a constant of the output
        constant = torch.einsum("hd,hgde->e", values.bias.detach().float().view(heads, dimension), weight)
        bias = constant if bias is None else bias + constant
    kind = output.weight.dtype
    made = nn.Parameter(folded.reshape(heads * group * rank, -1).to(kind), requires_grad=False)
    return made, None if bias is None else nn.Parameter(bias.to(kind), requires_grad=False)


def cache_latents(model: nn.Module, keys: KeyCache = "whole") -> dict[str, nn.Module]:
    """Replace every attention module of a factorised model by one that caches latents; returns the originals by name."""
    store, before = RotaryStore(), {}
    for layer, block in enumerate(attention_blocks(model)):
        before[block.name] = block.module
        model.set_submodule(block.name, LatentAttention(block.module, keys, store, first=layer == 0))
    return before


@contextmanager
def latents_cached(model: nn.Module, keys: KeyCache = "whole") -> Iterator[nn.Module]:
    """A factorised model that caches latents, and as it was afterwards."""
    before = cache_latents(model, keys)
    try:
        yield model
    finally:
        for name, module in before.items():
            model.set_submodule(name, module)
