"""Factorised and dense projections of a model in low precision: quantised factors between rotations, or rounding alone.

Only the projections are quantised, weights and the activations that they see (their input, and the latents, which is what a cache would
hold); the rest of the network stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial

import torch
from torch import nn

from tasks.low_rank.attention import AttentionBlock, Projection
from tasks.low_rank.collector import LayerStatistics
from tasks.low_rank.factorisations import SharedFactors
from tasks.low_rank.fine_tuning import DAMPING, element_weights
from tasks.low_rank.layers import PerHeadLowRankLinear, put
from tasks.low_rank.methods import ModelFactors, whole
from tasks.quantisation.baselines import RoundedLinear
from tasks.quantisation.quantised_training import QuantisationParams, QuantisedFactors, quantise_factors
from tasks.quantisation.quantisers import UNQUANTISED, fake_quantise
from tasks.quantisation.rotations import block_rotation

Modules = dict[tuple[int, Projection], nn.Module]

PLAIN = QuantisationParams(rotate_input=False, latent_rotation="none", steps=0)
"""Rounding to nearest of factors, without rotation or training."""
ROTATED = QuantisationParams(latent_rotation="fixed", steps=0)
"""Rounding between two fixed rotations, without training."""


class InFloat32(nn.Module):
    """A module that computes in float32 inside a model of another type: levels of 8 bits are not bfloat16's."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.in_features, self.out_features = module.in_features, module.out_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map x (..., in) to (..., out), in x's own type."""
        found: torch.Tensor = self.module(x.float()).to(x.dtype)
        return found


def quantised_modules(
    factors: ModelFactors,
    blocks: Sequence[AttentionBlock],
    statistics: Sequence[LayerStatistics],
    params: QuantisationParams,
    seed: int,
    damping: float = DAMPING,
) -> tuple[Modules, dict[tuple[int, Projection], QuantisedFactors]]:
    """Modules that compute Q(Q(x S1^T) Q(S1 A S2^T)) Q(S2 B) for every factorised projection.

    Factors with one latent for all heads, or all projections (QSVD), are one wide head; they are rounded, not trained, and all owners of a
    latent rotate it alike.

    Args:
        factors: per head; with a shared latent only for `steps=0`.
        blocks: of the dense model.
        statistics: with the Fisher information of the rotated weights, where the input is rotated and factors are trained.
        params: see there.
        seed: draws the starts of the latent rotations, by layer and projection.
        damping: of the weights of the objective, as in fine-tuning.

    Raises:
        ValueError: if shared factors are to be trained, or rotated Fisher information is missing.
    """
    modules: Modules = {}
    trained: dict[tuple[int, Projection], QuantisedFactors] = {}
    for (layer, p), found in factors.items():
        block, known = blocks[layer], statistics[layer]
        if isinstance(found, SharedFactors):
            if params.steps:
                raise ValueError(f"layer {layer}'s {p} has one latent for all heads; only factors per head are trained here, say steps=0")
            target = whole(block.weight(p))[None]
            generator = torch.Generator().manual_seed(1_000_003 * seed + 1009 * layer)
            trained[layer, p] = quantise_factors(target, found.A[None], found.B[None], torch.ones_like(target), params, generator)
            modules[layer, p] = quantised_linear(trained[layer, p], block.projection(p), params)
            continue
        fisher = known.fisher_rotated.get(p) if params.rotate_input else known.fisher.get(p)
        if fisher is None:
            wanted = (
                "rotated Fisher information; it is collected for keys and values, with a rotation"
                if params.rotate_input
                else "Fisher information"
            )
            raise ValueError(f"layer {layer}'s {p} has no {wanted}")
        generator = torch.Generator().manual_seed(1_000_003 * seed + 1009 * layer + "qkv".index(p))
        weights = element_weights(fisher, "element", None, damping)
        trained[layer, p] = quantise_factors(block.weight(p), found.A, found.B, weights, params, generator)
        modules[layer, p] = quantised_linear(trained[layer, p], block.projection(p), params)
    return modules, trained


def quantised_linear(factors: QuantisedFactors, like: nn.Module, params: QuantisationParams) -> PerHeadLowRankLinear:
    """Takes the place of a linear layer: its device and bias, in float32."""
    device = next(like.parameters()).device
    A, B = factors.A.to(device, torch.float32), factors.B.to(device, torch.float32)
    rotation = block_rotation(A.shape[1]).to(device) if params.rotate_input else None
    rounding = None
    if params.activation_bits != UNQUANTISED:
        rounding = partial(fake_quantise, bits=params.activation_bits, clip=params.activation_clip)
    bias = getattr(like, "bias", None)
    made = PerHeadLowRankLinear(A, B, bias, input_rotation=rotation, quantise_input=rounding, quantise_latent=rounding)
    return made.requires_grad_(False)


def rounded_modules(
    blocks: Sequence[AttentionBlock], projections: Sequence[Projection], weight_bits: int, activation_bits: int, *, hadamard: bool
) -> Modules:
    """Dense projections rounded to nearest, plain or after a Hadamard rotation, in float32."""
    return {
        (layer, p): RoundedLinear(deepcopy(block.projection(p)).float(), weight_bits, activation_bits, hadamard=hadamard)  # type: ignore[arg-type]
        for layer, block in enumerate(blocks)
        for p in projections
    }


@contextmanager
def in_place(blocks: list[AttentionBlock], modules: Mapping[tuple[int, Projection], nn.Module]) -> Iterator[None]:
    """Have modules of float32 in the place of projections inside the block, whatever the model's type."""
    types = {key: next(blocks[key[0]].projection(key[1]).parameters()).dtype for key in modules}
    before = put(blocks, {key: module if types[key] == torch.float32 else InFloat32(module) for key, module in modules.items()})
    try:
        yield
    finally:
        put(blocks, before)
