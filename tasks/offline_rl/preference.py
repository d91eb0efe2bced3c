"""Preferences between segments scored by a policy's own log-likelihood, and their Bradley-Terry loss with an asymmetric bias.

In the maximum-entropy framework A*(s, a) = alpha log pi*(a | s), so a segment is as good as its discounted log-likelihood and no value
function is learned (Hejna et al., CPL, ICLR 2024, eq. 5). The loss is that of any method that compares two log-likelihoods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def gaussian_log_prob(mean: torch.Tensor, action: torch.Tensor, spread: float) -> torch.Tensor:
    """Log pi(a | s) = -|a - mu(s)|^2 / (2 spread^2), without the normalising constant, over the last axis.

    Args:
        mean: (..., a).
        action: (..., a).
        spread: fixed standard deviation; 1/sqrt(2) makes it the plain squared error.

    Raises:
        ValueError: for a spread that is not positive, or actions of another dimension.
    """
    if not spread > 0:
        raise ValueError(f"spread must be positive, got {spread}")
    if mean.shape[-1] != action.shape[-1]:
        raise ValueError(f"the policy has {mean.shape[-1]} action coordinates, the data {action.shape[-1]}")
    return -(action - mean).square().sum(-1) / (2 * spread**2)


def segment_score(log_prob: torch.Tensor, alpha: torch.Tensor | float, gamma: float = 1.0) -> torch.Tensor:
    """S = sum_t gamma^t alpha log pi(a_t | s_t); t is the index within the segment.

    Args:
        log_prob: (..., k).
        alpha: temperature, broadcast against (...,).
        gamma: discount within the segment, in (0, 1].

    Returns:
        (...,).

    Example:
        >>> import torch
        >>> segment_score(torch.tensor([-1.0, -2.0]), alpha=0.5, gamma=0.5).item()
        -1.0
    """
    import torch

    if not 0 < gamma <= 1:
        raise ValueError(f"gamma must lie in (0, 1], got {gamma}")
    if gamma == 1:
        return log_prob.sum(-1) * alpha
    weights = gamma ** torch.arange(log_prob.shape[-1], dtype=log_prob.dtype, device=log_prob.device)
    return (log_prob * weights).sum(-1) * alpha


def preference_loss(preferred: torch.Tensor, other: torch.Tensor, bias: torch.Tensor | float = 1.0) -> torch.Tensor:
    """-log sigmoid(S+ - bias S-) = softplus(bias S- - S+), element by element.

    `bias` < 1 is CPL's and PREFORL's asymmetric weight: with it, lowering both likelihoods together no longer leaves the loss unchanged.

    Args:
        preferred: S+, (...,).
        other: S-, (...,).
        bias: lambda in (0, 1], broadcast.

    Raises:
        ValueError: for a bias outside (0, 1].

    Example:
        >>> import torch
        >>> round(preference_loss(torch.zeros(1), torch.zeros(1)).item(), 4)
        0.6931
    """
    import torch

    low, high = (float(bias.min()), float(bias.max())) if isinstance(bias, torch.Tensor) else (bias, bias)
    if not 0 < low <= high <= 1:
        raise ValueError(f"the bias lambda must lie in (0, 1], got {low}..{high}")
    return torch.nn.functional.softplus(bias * other - preferred)
