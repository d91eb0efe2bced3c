"""Implicit Q-learning (Kostrikov et al., ICLR 2022): an expectile of Q over recorded actions stands for the maximum."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from pydantic import Field
from torch import nn

from tasks.offline_rl.stacked import StackedMlp, target_update
from tasks.offline_rl.value_learning import Batch, TwinCritics, ValueConfig


class IqlConfig(ValueConfig):
    """IQL.

    Attributes:
        expectile: tau in (0, 1); 0.5 evaluates the behaviour policy, towards 1 it becomes the best recorded action.
        beta: inverse temperature of the advantage weights of the policy.
        largest_weight: clip of these weights.
    """

    expectile: float = Field(0.9, gt=0, lt=1)
    beta: float = Field(10.0, ge=0)
    largest_weight: float = Field(100.0, gt=0)


def expectile_loss(difference: torch.Tensor, expectile: float) -> torch.Tensor:
    """|tau - 1(u < 0)| u^2 (eq. 5), element by element.

    Example:
        >>> expectile_loss(torch.tensor([-1.0, 1.0]), 0.75).tolist()
        [0.25, 0.75]
    """
    return torch.where(difference < 0, 1 - expectile, expectile) * difference.square()


class Iql:
    """P learners of V, twin Q and an advantage-weighted policy.

    Args:
        generators: P of them.
        d: state coordinates.
        a: action coordinates.
        config: weights and rates.
        device: torch device.

    Example:
        >>> Iql([torch.Generator().manual_seed(0)], 3, 2, IqlConfig(hidden=(8,))).value(torch.zeros(1, 5, 3)).shape
        torch.Size([1, 5])
    """

    def __init__(self, generators: Sequence[torch.Generator], d: int, a: int, config: IqlConfig, device: str = "cpu") -> None:
        self.config = config
        self.actor = StackedMlp(generators, (d, *config.hidden, a), squash=True).to(device)
        self.critics = TwinCritics(generators, (d + a, *config.hidden)).to(device)
        self.values = StackedMlp(generators, (d, *config.hidden, 1)).to(device)
        self.target_critics = deepcopy(self.critics)

    def networks(self) -> list[nn.Module]:
        """Policy, critics, values."""
        return [self.actor, self.critics, self.values]

    def loss(self, batch: Batch, step: int) -> torch.Tensor:
        """Expectile regression of V, squared errors of Q, weighted squared errors of the policy (eq. 5 to 7)."""
        config = self.config
        with torch.no_grad():
            q_recorded = self.target_critics(batch.obs, batch.action).amin(0)
            target = batch.reward + config.gamma * batch.continuation * self.values(batch.next_obs)[..., 0]
        value = self.values(batch.obs)[..., 0]
        advantage = q_recorded - value
        total = expectile_loss(advantage, config.expectile).mean(-1).sum()
        total = total + (self.critics(batch.obs, batch.action) - target).square().mean(-1).sum()
        weight = (config.beta * advantage.detach()).exp().clamp(max=config.largest_weight)
        cloning = (self.actor(batch.obs) - batch.action).square().sum(-1)
        return total + (weight * cloning).mean(-1).sum()

    def follow(self, step: int) -> None:
        """Move the target critics."""
        target_update(self.target_critics, self.critics, self.config.target_rate)

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        """V(s)."""
        return self.values(obs)[..., 0]
