"""Symmetric uniform quantisers: integers in -L..L times a scale, L = 2^(bits-1) - 1, with a gradient that passes through the rounding.

A scale belongs to a slice of the tensor: `dim` is reduced away and kept as 1. Weights used as `x @ W` with W (E, H) have one scale per
output channel with `dim=-2`, weights stored as (out, in) with `dim=-1`; activations have one per token with `dim=-1`. Nothing here knows
about models; `bits=16` means "not quantised" and returns its argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

UNQUANTISED = 16
CLIP_GRID = tuple(0.5 + 0.025 * step for step in range(21))
"""Clipping ratios that a search tries: 0.5, 0.525, ..., 1."""


def largest_code(bits: int) -> int:
    """L = 2^(bits-1) - 1.

    Raises:
        ValueError: unless bits are 2 to 8 (codes are stored as int8).

    >>> largest_code(8), largest_code(4)
    (127, 7)
    """
    if not 2 <= bits <= 8:
        raise ValueError(f"bits must be 2 to 8, or {UNQUANTISED} for no quantisation, got {bits}")
    return int(2 ** (bits - 1) - 1)


def scale_of(x: torch.Tensor, bits: int, dim: int = -1, clip: float | torch.Tensor = 1.0) -> torch.Tensor:
    """Distance of neighbouring levels, clip * max|x| / L over `dim`, kept as 1; a slice of zeros has scale 1.

    Args:
        x: any shape.
        bits: 2 to 8.
        dim: is reduced.
        clip: share of the largest magnitude that is represented, in (0, 1]; a tensor has the result's shape.

    Raises:
        ValueError: for unsupported bits or a clip outside (0, 1].
    """
    import torch

    if not bool((torch.as_tensor(clip) > 0).all() and (torch.as_tensor(clip) <= 1).all()):
        raise ValueError(f"clip must lie in (0, 1], got {clip}")
    scale = clip * x.detach().abs().amax(dim, keepdim=True) / largest_code(bits)
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def quantise(x: torch.Tensor, bits: int, dim: int = -1, clip: float | torch.Tensor = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, int8 of x's shape, and scales: x is about codes * scales.

    >>> import torch
    >>> codes, scales = quantise(torch.tensor([[1.0, -0.5, 0.26], [0.0, 0.0, 0.0]]), bits=3)
    >>> codes.tolist(), [round(s, 4) for s in scales.flatten().tolist()]
    ([[3, -2, 1], [0, 0, 0]], [0.3333, 1.0])
    """
    import torch

    limit = largest_code(bits)
    scale = scale_of(x, bits, dim, clip)
    return (x / scale).round().clamp(-limit, limit).to(torch.int8), scale


def dequantise(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Codes times scales, in the scales' type."""
    return codes.to(scale.dtype) * scale


def fake_quantise(x: torch.Tensor, bits: int, dim: int = -1, clip: float | torch.Tensor = 1.0) -> torch.Tensor:
    """Round to the nearest level, in x's own type; the gradient is 1 for what is not clipped and 0 for what is (straight-through).

    Levels are found in float32 at least. Scales are computed anew at every call and have no gradient. Clipped is what lies half a level
    or more beyond the last one.

    >>> import torch
    >>> x = torch.tensor([1.0, 0.4, -0.8], requires_grad=True)
    >>> fake_quantise(x, 2, clip=0.6).sum().backward()
    >>> x.grad.tolist()
    [0.0, 1.0, 1.0]
    """
    if bits == UNQUANTISED:
        return x
    import torch

    limit = largest_code(bits)
    fine = x.to(torch.promote_types(x.dtype, torch.float32))  # a half type's codes would be off by one
    scale = scale_of(fine, bits, dim, clip)
    bound = (limit + 0.5) * scale
    inside = fine.clamp(-bound, bound)
    rounded = (fine.detach() / scale).round().clamp(-limit, limit) * scale
    return (inside + (rounded - inside).detach()).to(x.dtype)


def search_clip(x: torch.Tensor, bits: int, dim: int = -1, ratios: Sequence[float] = CLIP_GRID) -> torch.Tensor:
    """The clipping ratio of each slice with the smallest squared error, shape of the scales; of equal ones the last.

    Raises:
        ValueError: for no ratios, or one outside (0, 1].
    """
    import torch

    if not ratios:
        raise ValueError("no clipping ratios to choose from, got an empty list")
    errors = torch.stack([(fake_quantise(x.detach(), bits, dim, r) - x.detach()).square().sum(dim, keepdim=True) for r in ratios])
    best = len(ratios) - 1 - errors.flip(0).argmin(0)
    return torch.as_tensor(list(ratios), dtype=x.dtype, device=x.device)[best]
