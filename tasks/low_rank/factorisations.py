"""The SVD family: every method is a truncated SVD after a change of coordinates on the input side.

For W (E, H) and an invertible T (E, E), T W = U Sigma V^T gives A = T^-1 U Sigma^1/2 and B = Sigma^1/2 V^T, the best rank-r product in the
norm |T (W - A B)|. Plain SVD has T = I; ASVD (Yuan et al., 2023) a diagonal of activation magnitudes; FWSVD (Hsu et al., 2022) a diagonal
of summed Fisher information; SVD-LLM (Wang et al., 2024) whitened activations. Per head the same holds for every W_h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from tasks.low_rank.heads import join_heads
from tasks.low_rank.whitening import unwhiten


class Coordinates(Protocol):
    """A change of coordinates T on the input side of a weight."""

    def apply(self, weight: torch.Tensor) -> torch.Tensor:
        """T W for W (..., E, H)."""
        ...

    def undo(self, columns: torch.Tensor) -> torch.Tensor:
        """T^-1 U for U (..., E, k)."""
        ...


class Plain:
    """T = I."""

    def apply(self, weight: torch.Tensor) -> torch.Tensor:
        """W itself."""
        return weight

    def undo(self, columns: torch.Tensor) -> torch.Tensor:
        """U itself."""
        return columns


@dataclass(frozen=True)
class Diagonal:
    """T = diag(scale), scale (E,), positive."""

    scale: torch.Tensor

    def __post_init__(self) -> None:
        if not (torch.isfinite(self.scale).all() and (self.scale > 0).all()):
            raise ValueError("the scales of input channels must be positive and finite; clamp them first")

    def apply(self, weight: torch.Tensor) -> torch.Tensor:
        """Rows scaled up."""
        return self.scale[:, None] * weight

    def undo(self, columns: torch.Tensor) -> torch.Tensor:
        """Rows scaled down."""
        return columns / self.scale[:, None]


@dataclass(frozen=True)
class Whitened:
    """T = S^T with S S^T = E[x x^T], see `tasks.low_rank.whitening`."""

    factor: torch.Tensor

    def apply(self, weight: torch.Tensor) -> torch.Tensor:
        """S^T W."""
        return self.factor.T @ weight.to(self.factor.dtype)

    def undo(self, columns: torch.Tensor) -> torch.Tensor:
        """S^-T U."""
        return unwhiten(self.factor, columns)


def activation_scale(abs_mean: torch.Tensor, alpha: float = 0.5) -> Diagonal:
    """ASVD's coordinates: (mean |x_j|)^alpha per input channel, clamped away from zero for channels that are never used."""
    floor = 1e-4 * abs_mean.mean().clamp_min(torch.finfo(abs_mean.dtype).tiny)
    return Diagonal(abs_mean.clamp_min(floor) ** alpha)


def fisher_scale(fisher: torch.Tensor) -> Diagonal:
    """FWSVD's coordinates: the root of the Fisher information summed over outputs, fisher (E, out)."""
    rows = fisher.sum(dim=-1)
    return Diagonal(rows.clamp_min(1e-8 * rows.mean().clamp_min(torch.finfo(rows.dtype).tiny)).sqrt())


@dataclass(frozen=True)
class Spectrum:
    """All singular triples of T W, mapped back: W = sum_i sigma_i left_i right_i^T.

    Attributes:
        left: T^-1 U, (..., E, k).
        sigma: singular values of T W, (..., k), largest first.
        right: V^T, (..., k, H).
    """

    left: torch.Tensor
    sigma: torch.Tensor
    right: torch.Tensor


def spectrum(weight: torch.Tensor, coordinates: Coordinates) -> Spectrum:
    """The spectrum of W (..., E, H), batched over leading dimensions (heads).

    Raises:
        ValueError: if the transformed weight is not finite.
    """
    moved = coordinates.apply(weight).float()
    if not torch.isfinite(moved).all():
        raise ValueError("the weight is not finite in the coordinates of this factorisation; check the calibration statistics")
    u, sigma, right = torch.linalg.svd(moved, full_matrices=False)
    return Spectrum(coordinates.undo(u).float(), sigma, right)


@dataclass(frozen=True)
class HeadFactors:
    """A projection as A_h B_h per head; ranks may differ, what is beyond a head's rank is zero.

    Attributes:
        A: (h, E, r).
        B: (h, r, H).
        ranks: rank of every head, at most r.
    """

    A: torch.Tensor
    B: torch.Tensor
    ranks: tuple[int, ...]

    def weight(self) -> torch.Tensor:
        """The weight that they stand for, (h * H, E)."""
        return join_heads(self.A @ self.B)

    def parameters(self) -> int:
        """Numbers to store."""
        return sum(self.ranks) * (self.A.shape[1] + self.B.shape[2])


@dataclass(frozen=True)
class SharedFactors:
    """A projection as A B, one latent for all its heads.

    Attributes:
        A: (E, R).
        B: (R, out).
        owners: how many projections share A.
    """

    A: torch.Tensor
    B: torch.Tensor
    owners: int = 1

    def weight(self) -> torch.Tensor:
        """The weight that they stand for, (out, E)."""
        return (self.A @ self.B).T

    def parameters(self) -> float:
        """Numbers to store; a shared A counts once over its owners."""
        return self.A.numel() / self.owners + self.B.numel()


def truncate_heads(spectrum: Spectrum, kept: int | torch.Tensor) -> HeadFactors:
    """Factors of the first `kept` triples of every head, or of those in a mask (h, k).

    >>> import torch
    >>> w = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
    >>> torch.allclose(truncate_heads(spectrum(w, Plain()), 3).A @ truncate_heads(spectrum(w, Plain()), 3).B, w, atol=1e-5)
    True
    """
    heads = len(spectrum.sigma)
    if isinstance(kept, int):
        chosen = torch.arange(kept).expand(heads, kept)
        ranks = [kept] * heads
    else:
        ranks = [int(n) for n in kept.sum(dim=1)]
        chosen = kept.int().argsort(dim=1, descending=True, stable=True)[:, : max(ranks)]
    chosen = chosen.to(spectrum.sigma.device)
    live = torch.arange(chosen.shape[1], device=chosen.device) < torch.tensor(ranks, device=chosen.device)[:, None]  # (h, r)
    root = torch.where(live, spectrum.sigma.gather(1, chosen).sqrt(), 0.0)
    left = spectrum.left.gather(2, chosen[:, None, :].expand(-1, spectrum.left.shape[1], -1))
    right = spectrum.right.gather(1, chosen[:, :, None].expand(-1, -1, spectrum.right.shape[2]))
    return HeadFactors((left * root[:, None, :]).contiguous(), (right * root[:, :, None]).contiguous(), tuple(ranks))


def truncate_matrix(spectrum: Spectrum, kept: int | torch.Tensor, columns: slice | None = None, owners: int = 1) -> SharedFactors:
    """Factors of the first `kept` triples of a whole matrix, or of those in a mask (k,); `columns` picks a projection's part of B."""
    chosen = torch.arange(kept) if isinstance(kept, int) else kept.nonzero().squeeze(1)
    root = spectrum.sigma[chosen].sqrt()
    right = spectrum.right[chosen] if columns is None else spectrum.right[chosen][:, columns]
    return SharedFactors((spectrum.left[:, chosen] * root).contiguous(), (right * root[:, None]).contiguous(), owners)
