"""Local quantisation-aware training of low-rank factors between two rotations, layer by layer, without data.

A head's weight W (E, H), used as x @ W, is to be computed as Q(x S1^T) Q(S1 A S2^T) Q(S2 B), with S1 a fixed (block) Hadamard matrix and S2
(r, r) orthogonal and learned. Minimised is |F'^1/2 o (S1 W - Q(S1 A S2^T) Q(S2 B))|^2, F' the Fisher information of the rotated weight S1 W
(WSVD, local QAT): Adam moves A and B, Cayley steps move S2, and gradients pass straight through the rounding. All heads are one batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field, field_validator

from tasks.common.node import Params
from tasks.quantisation.quantisers import UNQUANTISED, fake_quantise, largest_code
from tasks.quantisation.rotations import cayley_step, random_orthogonal, rotate
from tasks.training.loop import descend

if TYPE_CHECKING:
    import torch

LatentRotation = Literal["learned", "fixed", "none"]


class QuantisationParams(Params):
    """How factors are quantised.

    Attributes:
        weight_bits: of both factors, one scale per output channel; 16 for none.
        activation_bits: of the projection's input and of the latents, one scale per token (and head); 16 for none.
        activation_clip: share of a token's largest magnitude that is represented.
        rotate_input: S1 is a block Hadamard matrix, else the identity.
        latent_rotation: S2 is learned from a random start, stays there, or is the identity.
        steps: of training; 0 only rotates and rounds.
        rate: of Adam, for A and B.
        rotation_rate: largest Cayley step of S2.
    """

    weight_bits: int = 8
    activation_bits: int = 8
    activation_clip: float = Field(1.0, gt=0, le=1)
    rotate_input: bool = True
    latent_rotation: LatentRotation = "learned"
    steps: int = Field(50, ge=0)
    rate: float = Field(1e-5, gt=0)
    rotation_rate: float = Field(1.0, gt=0)

    @field_validator("weight_bits", "activation_bits")
    @classmethod
    def _supported(cls, bits: int) -> int:
        if bits != UNQUANTISED:
            largest_code(bits)
        return bits


def _precision(bits: tuple[int, int]) -> tuple[int, int]:
    QuantisationParams(weight_bits=bits[0], activation_bits=bits[1])
    return bits


Precision = Annotated[tuple[int, int], AfterValidator(_precision)]
"""A field of parameters: (weight bits, activation bits) that can be computed."""


@dataclass(frozen=True)
class QuantisedFactors:
    """Factors of rotated heads, on their quantisation levels.

    Attributes:
        A: Q(S1 A S2^T), (h, E, r).
        B: Q(S2 B), (h, r, H).
        latent_rotation: S2, (h, r, r).
        objective: normalised weighted error of all heads before each step and at the end, (steps + 1,).
        error: that of the factors returned, at most the lowest of `objective`, as every head is at its own best iterate.
    """

    A: torch.Tensor
    B: torch.Tensor
    latent_rotation: torch.Tensor
    objective: np.ndarray
    error: float


def quantise_factors(
    W: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    fisher: torch.Tensor,
    params: QuantisationParams,
    generator: torch.Generator,
) -> QuantisedFactors:
    """Rotate, train through the rounding, and round; each head is returned at the best of its iterates, the start included.

    Args:
        W: weights to approximate, (h, E, H), not rotated.
        A: start, (h, E, r), not rotated.
        B: start, (h, r, H).
        fisher: F', of the rotated weight if `params.rotate_input`, positive, (h, E, H).
        params: see there.
        generator: draws the start of S2.

    Raises:
        ValueError: for shapes that do not fit, or Fisher information without a positive entry.

    >>> import torch
    >>> g = torch.Generator().manual_seed(0)
    >>> A, B = torch.randn(2, 16, 4, generator=g), torch.randn(2, 4, 8, generator=g)
    >>> W = A @ B
    >>> found = quantise_factors(W, A, B, torch.ones_like(W), QuantisationParams(steps=5), g)
    >>> found.error < 1e-3, found.latent_rotation.shape
    (True, torch.Size([2, 4, 4]))
    """
    import torch

    _check(W, A, B, fisher)
    target = _rotated(W, params)
    scaled = fisher / (fisher * target.square()).sum()
    a, b = (torch.nn.Parameter(part.detach().clone()) for part in (_rotated(A, params), B))
    s2 = _start(A, params, generator).requires_grad_(params.latent_rotation == "learned")
    objective = np.empty(params.steps + 1)
    lowest = torch.full((len(W),), float("inf"), device=W.device)
    best = [a.detach().clone(), b.detach().clone(), s2.detach().clone()]

    def loss(step: int) -> torch.Tensor:
        left, right = _rounded(a, b, s2, params)
        errors = (scaled * (target - left @ right).square()).sum(dim=(1, 2))  # (h,)
        objective[step] = float(errors.detach().sum())
        better = errors.detach() < lowest
        lowest[better] = errors.detach()[better]
        for kept, now in zip(best, (left, right, s2), strict=True):
            kept[better] = now.detach()[better]
        return errors.sum()

    def turn(step: int, value: float) -> None:
        if s2.grad is not None:
            with torch.no_grad():
                s2.copy_(cayley_step(s2, s2.grad, params.rotation_rate))
            s2.grad = None

    if params.steps:
        descend(loss, [a, b], params.steps, rate=params.rate, after=turn)
    with torch.no_grad():
        loss(params.steps)
    return QuantisedFactors(best[0], best[1], best[2], objective, float(lowest.sum()))


def _start(A: torch.Tensor, params: QuantisationParams, generator: torch.Generator) -> torch.Tensor:
    import torch

    heads, _, rank = A.shape
    if params.latent_rotation == "none":
        return torch.eye(rank, dtype=A.dtype, device=A.device).repeat(heads, 1, 1)
    return random_orthogonal((heads, rank, rank), generator).to(A.device, A.dtype)


def _rotated(W: torch.Tensor, params: QuantisationParams) -> torch.Tensor:
    """S1 W along the input dimension, (h, E, .)."""
    return rotate(W.mT).mT.contiguous() if params.rotate_input else W


def _rounded(a: torch.Tensor, b: torch.Tensor, s2: torch.Tensor, params: QuantisationParams) -> tuple[torch.Tensor, torch.Tensor]:
    """Q(S1 A S2^T) and Q(S2 B), one scale per output channel."""
    return fake_quantise(a @ s2.mT, params.weight_bits, dim=-2), fake_quantise(s2 @ b, params.weight_bits, dim=-2)


def _check(W: torch.Tensor, A: torch.Tensor, B: torch.Tensor, fisher: torch.Tensor) -> None:
    import torch

    heads, hidden, dimension = W.shape
    if fisher.shape != W.shape or A.shape[:2] != (heads, hidden) or B.shape != (heads, A.shape[2], dimension):
        raise ValueError(
            f"shapes do not fit: W {tuple(W.shape)}, A {tuple(A.shape)}, B {tuple(B.shape)}, fisher {tuple(fisher.shape)}; "
            "expected (h, E, H), (h, E, r), (h, r, H), (h, E, H)"
        )
    if not (torch.isfinite(fisher).all() and (fisher >= 0).all() and (fisher > 0).any()):
        raise ValueError("Fisher information must be finite, not negative and not zero everywhere")
