"""How many keys must be sampled so that sums over the residual are right to a relative epsilon with probability 1 - delta.

By the central limit theorem a sum over n_s residual terms, estimated from b uniform draws, misses by more than tau with probability at
most delta once b >= (z n_s std / tau)^2 (Desai et al. 2025, Lemma 4.1). Budgets are float tensors, one per row, not yet rounded; where
the formula has no finite answer (a denominator of zero) they are infinite, which means exact attention.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from torch import Tensor

Sides = Literal["two_sided", "one_sided"]


def normal_quantile(delta: float, sides: Sides = "two_sided") -> float:
    """z(delta): the standard normal exceeds it in absolute value (`two_sided`) or at all (`one_sided`) with probability delta.

    Raises:
        ValueError: unless 0 < delta < 1.

    Example:
        >>> round(normal_quantile(0.05), 2), round(normal_quantile(0.05, "one_sided"), 2)
        (1.96, 1.64)
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), got {delta}")
    return max(NormalDist().inv_cdf(1 - (delta / 2 if sides == "two_sided" else delta)), 0.0)


def sum_budget(n_s: Tensor, std: Tensor, total: Tensor, epsilon: float, z: float) -> Tensor:
    """Draws after which an estimated sum is within epsilon times |total|, by the normal law.

    Args:
        n_s: terms of the sum, (...,).
        std: their standard deviation (for vectors the root of the trace of their covariance).
        total: what the error is relative to: the whole sum, or its norm.
        epsilon: relative error.
        z: quantile of the normal law.

    Returns:
        Draws, (...,), float32, not rounded; 0 where the terms are all equal, infinite where `total` is 0 (nothing of the sum has been seen)
        or a number is not finite.

    Example:
        >>> sum_budget(torch.tensor(100), torch.tensor(1.0), torch.tensor(100.0), 0.2, 1.96).item()
        96.04000091552734
    """
    root = z * n_s.float() * std.float() / (epsilon * total.float())
    draws = torch.where(torch.isfinite(root), root.square(), torch.inf)  # 0 / 0 and x / 0 alike
    return torch.where((std == 0) & (total != 0), torch.zeros_like(draws), draws)


def combined_budget(denominator: Tensor, numerator: Tensor) -> Tensor:
    """The larger of the two budgets: what the whole softmax attention needs (Theorem 4.3)."""
    return torch.maximum(denominator, numerator)


def sdpa_shares(epsilon: float, delta: float) -> tuple[float, float]:
    """(epsilon, delta) that numerator and denominator must each keep so that the output keeps (epsilon, delta).

    2 (eps1 + eps2) = epsilon and delta1 + delta2 = delta, split evenly.
    """
    return epsilon / 4, delta / 2


def finite_population(draws: Tensor, n_s: Tensor) -> Tensor:
    """The smaller budget that suffices without replacement: b / (1 + b / n_s); n_s for an infinite b."""
    n = n_s.float()
    return torch.where(torch.isinf(draws), n, draws / (1 + draws / n.clamp(min=1)))


def whole_budget(draws: Tensor, b0: Tensor, n_s: Tensor) -> Tensor:
    """Budgets as whole numbers between the base sample and the residual, int64."""
    bounded = torch.minimum(draws.nan_to_num(nan=torch.inf, posinf=torch.inf), n_s.float())
    return torch.minimum(torch.maximum(torch.ceil(bounded).long(), b0), n_s)
