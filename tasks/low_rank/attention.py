"""Where a transformers decoder keeps its query, key and value projections.

Every module that has `q_proj`, `k_proj`, `v_proj` and `o_proj` is an attention block of the text model (Llama, Mistral, Qwen2, and the
language model inside LLaVA or SmolVLM; CLIP's and SigLIP's towers call their output `out_proj` and are left alone).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from tasks.low_rank.heads import split_heads

Projection = Literal["q", "k", "v"]
PROJECTIONS: tuple[Projection, ...] = ("q", "k", "v")


@dataclass(frozen=True)
class AttentionBlock:
    """One attention module.

    Attributes:
        name: its name in the model.
        module: the module itself.
        head_dim: dimension H of a head.
    """

    name: str
    module: nn.Module
    head_dim: int

    def projection(self, projection: Projection) -> nn.Module:
        """The module that makes queries, keys or values."""
        found: nn.Module = getattr(self.module, f"{projection}_proj")
        return found

    def heads(self, projection: Projection) -> int:
        """How many heads the projection makes; keys and values may have fewer than queries."""
        return int(self.projection(projection).out_features) // self.head_dim  # type: ignore[arg-type]

    @property
    def hidden(self) -> int:
        """Hidden size E."""
        return int(self.projection("q").in_features)  # type: ignore[arg-type]

    def weight(self, projection: Projection) -> torch.Tensor:
        """Weight of every head, (h, E, H), as a copy in float32."""
        weight = self.projection(projection).weight.detach().float()  # type: ignore[operator]
        return split_heads(weight, self.heads(projection)).contiguous()


def attention_blocks(model: nn.Module) -> list[AttentionBlock]:
    """The attention blocks of a model, first layer first.

    Raises:
        ValueError: if there is none, or a projection does not divide into heads.
    """
    needed = tuple(f"{p}_proj" for p in (*PROJECTIONS, "o"))
    blocks = []
    for name, module in model.named_modules():
        if not all(isinstance(getattr(module, part, None), nn.Module) for part in needed):
            continue
        dimension = int(getattr(module, "head_dim", 0))
        if dimension < 1:
            raise ValueError(f"attention module {name!r} ({type(module).__name__}) lacks head_dim; it cannot be factorised per head")
        for part in needed[:3]:
            rows = int(getattr(module, part).out_features)
            if rows % dimension:
                raise ValueError(f"{name}.{part} has {rows} rows, which do not divide into heads of head_dim {dimension}")
        blocks.append(AttentionBlock(name, module, dimension))
    if not blocks:
        kinds = sorted({type(m).__name__ for _, m in model.named_modules() if "ttention" in type(m).__name__})
        raise ValueError(
            f"{type(model).__name__} has no attention with q_proj, k_proj, v_proj and o_proj (attention modules: {kinds or 'none'}); "
            "one fused projection is not supported"
        )
    return blocks
