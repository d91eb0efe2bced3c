"""Orthogonal matrices that spread outliers: Hadamard transforms, whole or in blocks, and steps along orthogonal matrices.

A rotation S changes nothing that is computed exactly, (x S^T)(S W) = x W, but what is rounded: an outlier in one channel becomes a little
in all. Fixed rotations are normalised Hadamard matrices; learned ones move by Cayley transforms and stay orthogonal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def hadamard(size: int) -> torch.Tensor:
    """Sylvester's Hadamard matrix over sqrt(size), symmetric and orthogonal, (size, size), float32.

    Raises:
        ValueError: unless size is a power of two.

    >>> hadamard(2).mul(2 ** 0.5).round().tolist()
    [[1.0, 1.0], [1.0, -1.0]]
    """
    import torch

    if size < 1 or size & (size - 1):
        raise ValueError(f"a Hadamard matrix of this kind has a power of two rows, got {size}; use block_rotation")
    matrix: torch.Tensor = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    matrix = matrix / size**0.5
    return matrix.float()


def block_size(size: int) -> int:
    """The largest power of two that divides a dimension.

    >>> block_size(576), block_size(4096), block_size(28)
    (64, 4096, 4)
    """
    if size < 1:
        raise ValueError(f"a dimension is at least 1, got {size}")
    return size & -size


def block_rotation(size: int) -> torch.Tensor:
    """Equal Hadamard blocks along the diagonal, as large as divide `size`, (size, size); one block for a power of two."""
    import torch

    block = hadamard(block_size(size))
    rotation: torch.Tensor = torch.kron(torch.eye(size // len(block)), block)
    return rotation


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Product of x (..., E) and `block_rotation(E)`, which is its own transpose, block by block.

    >>> import torch
    >>> rotate(rotate(torch.arange(12.0))).round().tolist() == list(range(12))
    True
    """
    block = hadamard(block_size(x.shape[-1])).to(x.device, x.dtype)
    parts: torch.Tensor = x.reshape(*x.shape[:-1], -1, len(block)) @ block
    return parts.flatten(-2)


def random_orthogonal(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Orthogonal matrices drawn uniformly (Stewart, 1980), shape (..., n, n), float32."""
    import torch

    q, r = torch.linalg.qr(torch.randn(shape, generator=generator, dtype=torch.float64))
    unique: torch.Tensor = q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    return unique.float()


def cayley_step(S: torch.Tensor, gradient: torch.Tensor, rate: float) -> torch.Tensor:
    """A descent step that stays orthogonal: S <- (I + t/2 K)^-1 (I - t/2 K) S with the skew K = G S^T - S G^T.

    For a batch of square orthogonal matrices, each with a step of its own: t = min(rate, 1 / |K|_1), as Cayley-SGD bounds it (Li, Li &
    Todorovic, 2020). Solved in double precision, so that rounding does not add up over steps.

    Args:
        S: (..., n, n), orthogonal.
        gradient: of the loss with respect to S, same shape.
        rate: largest step.

    Raises:
        ValueError: if the shapes differ or are not square, or the rate is not positive.
    """
    import torch

    if S.shape != gradient.shape or S.shape[-1] != S.shape[-2]:
        raise ValueError(f"S {tuple(S.shape)} and its gradient {tuple(gradient.shape)} must be equal batches of square matrices")
    if not rate > 0:
        raise ValueError(f"rate must be positive, got {rate}")
    s, g = S.double(), gradient.double()
    skew = g @ s.mT - s @ g.mT
    norm = skew.abs().sum(-2).amax(-1)[..., None, None]
    half = 0.5 * torch.minimum(torch.full_like(norm, rate), 1 / norm.clamp_min(1e-12)) * skew
    eye = torch.eye(s.shape[-1], dtype=s.dtype, device=s.device).expand_as(s)
    moved: torch.Tensor = torch.linalg.solve(eye + half, (eye - half) @ s)
    return moved.to(S.dtype)
