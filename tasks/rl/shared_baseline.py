"""REINFORCE with a baseline shared by a group: several samples per problem, each compared with the group's mean.

Kool, van Hoof & Welling (2019, "Buy 4 REINFORCE samples"), used by POMO and, with `normalise`, by group-relative policy optimisation.
Nothing here knows what a sample is.
"""

from __future__ import annotations

import torch
from torch import Tensor


def group_advantages(rewards: Tensor, normalise: bool = False) -> Tensor:
    """Rewards minus their group's mean, (B, S) -> (B, S); they sum to 0 in every group.

    Args:
        rewards: S samples of each of B problems.
        normalise: divide by the group's standard deviation (groups without spread, beyond rounding, have 0).

    Raises:
        ValueError: for another shape, fewer than two samples, or rewards that are not finite.

    >>> group_advantages(torch.tensor([[1.0, 3.0], [2.0, 2.0]]))
    tensor([[-1.,  1.],
            [ 0.,  0.]])
    """
    if rewards.ndim != 2 or rewards.shape[1] < 2:
        raise ValueError(f"rewards must have shape (B, S) with S >= 2, got {tuple(rewards.shape)}")
    if not torch.isfinite(rewards).all():
        raise ValueError(f"{int((~torch.isfinite(rewards)).sum())} of {rewards.numel()} rewards are not finite; penalise, do not forbid")
    centred = rewards - rewards.mean(1, keepdim=True)
    if not normalise:
        return centred
    centred = centred - centred.mean(1, keepdim=True)  # the mean of large rewards is rounded by more than a small spread
    spread = centred.std(1, keepdim=True)
    rounding = 2 * torch.finfo(rewards.dtype).eps * rewards.abs().amax(1, keepdim=True)
    return torch.where(spread > rounding, centred / spread, 0.0)


def policy_loss(log_probs: Tensor, advantages: Tensor, entropy: Tensor | None = None, entropy_weight: float = 0.0) -> Tensor:
    """-mean(advantage * log p) - weight * mean entropy; its gradient is the estimate of -dE[R] for on-policy samples.

    Args:
        log_probs: of whole samples, (B, S), with a graph.
        advantages: (B, S), taken as constants.
        entropy: of the decisions, any shape, with a graph; needed where it has a weight.
        entropy_weight: lambda of the Gibbs target exp(-cost / lambda).

    Raises:
        ValueError: for shapes that differ, a negative weight, or a weight without entropy.

    >>> round(policy_loss(torch.tensor([[-1.0, -2.0]]), torch.tensor([[1.0, -1.0]])).item(), 3)
    -0.5
    """
    if log_probs.shape != advantages.shape:
        raise ValueError(f"log_probs and advantages must have one shape, got {tuple(log_probs.shape)} and {tuple(advantages.shape)}")
    if entropy_weight < 0:
        raise ValueError(f"entropy_weight must be at least 0, got {entropy_weight}")
    loss = -(advantages.detach().to(log_probs.dtype) * log_probs).mean()
    if entropy_weight == 0:
        return loss
    if entropy is None:
        raise ValueError(f"entropy_weight is {entropy_weight}, but no entropy was given")
    return loss - entropy_weight * entropy.mean()
