"""Factorised projections as modules, and putting them into a transformers model.

`PerHeadLowRankLinear` and `SharedLowRankLinear` stand where a linear layer stood and give the same output shape, so that the attention
around them does not change. What they give up is memory and arithmetic of the projection; to cache latents instead of keys and values,
see `tasks.low_rank.latent_attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from tasks.low_rank.attention import AttentionBlock, Projection, attention_blocks
from tasks.low_rank.factorisations import HeadFactors, SharedFactors
from tasks.low_rank.methods import ModelFactors

Quantise = Callable[[torch.Tensor], torch.Tensor]


class PerHeadLowRankLinear(nn.Module):
    """x -> concat_h (x A_h) B_h + bias, with A (h, E, r), B (h, r, H).

    Attributes:
        input_rotation: optional S1 (E, E), orthogonal: A then acts on x S1^T (the rotation of the quantised model).
        quantise_input: applied to the (rotated) input, None for nothing.
        quantise_latent: applied to the latents (..., h, r), None for nothing.
    """

    input_rotation: torch.Tensor | None

    def __init__(
        self,
        A: torch.Tensor,
        B: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        input_rotation: torch.Tensor | None = None,
        quantise_input: Quantise | None = None,
        quantise_latent: Quantise | None = None,
    ) -> None:
        super().__init__()
        heads, hidden, rank = A.shape
        if B.shape[:2] != (heads, rank):
            raise ValueError(f"A {tuple(A.shape)} and B {tuple(B.shape)} do not fit; expected (h, E, r) and (h, r, H)")
        self.heads, self.rank = heads, rank
        self.in_features, self.out_features = hidden, heads * B.shape[2]
        if bias is not None and bias.shape != (self.out_features,):
            raise ValueError(f"the bias has shape {tuple(bias.shape)}, the projection {self.out_features} outputs")
        self.A, self.B = nn.Parameter(A.contiguous()), nn.Parameter(B.contiguous())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())
        self.register_buffer("input_rotation", input_rotation)
        self.quantise_input, self.quantise_latent = quantise_input, quantise_latent

    def latent(self, x: torch.Tensor) -> torch.Tensor:
        """Latents of every head: x (..., E) -> (..., h, r)."""
        if self.input_rotation is not None:
            x = x @ self.input_rotation.T
        if self.quantise_input is not None:
            x = self.quantise_input(x)
        flat = self.A.permute(1, 0, 2).flatten(1)  # (E, h * r)
        latent = (x @ flat).reshape(*x.shape[:-1], self.heads, self.rank)
        return latent if self.quantise_latent is None else self.quantise_latent(latent)

    def expand(self, latent: torch.Tensor) -> torch.Tensor:
        """What the latents stand for: (..., h, r) -> (..., h * H)."""
        out = torch.einsum("...hr,hrd->...hd", latent, self.B).flatten(-2)
        return out if self.bias is None else out + self.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map x (..., E) to (..., h * H)."""
        return self.expand(self.latent(x))


class SharedLowRankLinear(nn.Module):
    """x -> (x A) B + bias, with one latent (E, R) for all heads."""

    def __init__(self, A: torch.Tensor, B: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.in_features, self.rank, self.out_features = A.shape[0], A.shape[1], B.shape[1]
        self.A, self.B = nn.Parameter(A.contiguous()), nn.Parameter(B.contiguous())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map x (..., E) to (..., out)."""
        out = (x @ self.A) @ self.B
        return out if self.bias is None else out + self.bias


def low_rank_module(factors: HeadFactors | SharedFactors, like: nn.Module) -> nn.Module:
    """The module that takes the place of a linear layer: its type, device and bias.

    Raises:
        ValueError: if the factors do not have the layer's shape.
    """
    weight = next(like.parameters())
    A, B = (part.to(weight.device, weight.dtype) for part in (factors.A, factors.B))
    bias = getattr(like, "bias", None)
    made: nn.Module = PerHeadLowRankLinear(A, B, bias) if isinstance(factors, HeadFactors) else SharedLowRankLinear(A, B, bias)
    if (made.in_features, made.out_features) != (like.in_features, like.out_features):
        raise ValueError(
            f"factors of {made.in_features} -> {made.out_features} do not fit the layer of {like.in_features} -> {like.out_features}"
        )
    return made.requires_grad_(False)


def install(model: nn.Module, factors: ModelFactors) -> dict[tuple[int, Projection], nn.Module]:
    """Put factors into a model; returns the modules that stood there."""
    blocks = attention_blocks(model)
    made = {(layer, p): low_rank_module(found, blocks[layer].projection(p)) for (layer, p), found in factors.items()}
    return put(blocks, made)


def put(blocks: list[AttentionBlock], modules: Mapping[tuple[int, Projection], nn.Module]) -> dict[tuple[int, Projection], nn.Module]:
    """Set projections of blocks to these modules; returns those that stood there."""
    before = {}
    for (layer, p), module in modules.items():
        before[layer, p] = blocks[layer].projection(p)
        setattr(blocks[layer].module, f"{p}_proj", module)
    return before


@contextmanager
def installed(model: nn.Module, factors: ModelFactors) -> Iterator[nn.Module]:
    """The model with factors in place, and as it was afterwards."""
    before = install(model, factors)
    try:
        yield model
    finally:
        put(attention_blocks(model), before)


@contextmanager
def merged(model: nn.Module, factors: ModelFactors) -> Iterator[nn.Module]:
    """The model with the products A B as its weights, and as it was afterwards: the same function, quicker for short text."""
    blocks = attention_blocks(model)
    before = {}
    for (layer, p), found in factors.items():
        weight = blocks[layer].projection(p).weight
        if tuple(found.weight().shape) != tuple(weight.shape):  # type: ignore[arg-type]
            raise ValueError(f"factors of shape {tuple(found.weight().shape)} do not fit layer {layer}'s {p}_proj {tuple(weight.shape)}")  # type: ignore[arg-type]
        before[layer, p] = weight.data.clone()  # type: ignore[operator]
        weight.data.copy_(found.weight())  # type: ignore[operator]
    try:
        yield model
    finally:
        for (layer, p), kept in before.items():
            blocks[layer].projection(p).weight.data.copy_(kept)  # type: ignore[operator]
