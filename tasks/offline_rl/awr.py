"""Advantage-weighted regression (Peng et al., 2019): clone recorded actions, weighted by how much better than expected they turned out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import nn

from tasks.offline_rl.learning_data import DataStack
from tasks.offline_rl.stacked import StackedMlp
from tasks.offline_rl.value_learning import Batch, ValueConfig


class AwrConfig(ValueConfig):
    """AWR.

    Attributes:
        temperature: beta of the weights exp((R - V) / beta).
        largest_weight: clip of these weights.
    """

    temperature: float = Field(0.05, gt=0)
    largest_weight: float = Field(20.0, gt=0)


class Awr:
    """P learners of V, by regression on the recorded discounted returns, and a weighted policy.

    Args:
        generators: P of them.
        d: state coordinates.
        a: action coordinates.
        config: weights and rates.
        returns: discounted return-to-go of every row of the stack, see `returns_to_go`.
        device: torch device.

    Example:
        >>> learner = Awr([torch.Generator().manual_seed(0)], 3, 2, AwrConfig(hidden=(8,)), torch.zeros(4))
        >>> learner.value(torch.zeros(1, 5, 3)).shape
        torch.Size([1, 5])
    """

    def __init__(
        self, generators: Sequence[torch.Generator], d: int, a: int, config: AwrConfig, returns: torch.Tensor, device: str = "cpu"
    ) -> None:
        self.config, self.returns = config, returns.to(device)
        self.actor = StackedMlp(generators, (d, *config.hidden, a), squash=True).to(device)
        self.values = StackedMlp(generators, (d, *config.hidden, 1)).to(device)

    def networks(self) -> list[nn.Module]:
        """Policy and values."""
        return [self.actor, self.values]

    def loss(self, batch: Batch, step: int) -> torch.Tensor:
        """Squared errors of V and weighted squared errors of the policy."""
        config = self.config
        achieved = self.returns[batch.rows]
        value = self.values(batch.obs)[..., 0]
        total = (achieved - value).square().mean(-1).sum()
        weight = ((achieved - value.detach()) / config.temperature).exp().clamp(max=config.largest_weight)
        cloning = (self.actor(batch.obs) - batch.action).square().sum(-1)
        return total + (weight * cloning).mean(-1).sum()

    def follow(self, step: int) -> None:
        """No target networks."""

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        """V(s), of the behaviour policy."""
        return self.values(obs)[..., 0]


def returns_to_go(stack: DataStack, gamma: float) -> torch.Tensor:
    """Discounted return-to-go of every row of a stack."""
    return torch.cat([torch.as_tensor(part.discounted(gamma)) for part in stack.parts])
