"""Conservative Q-learning, CQL(H) (Kumar et al., NeurIPS 2020), on a soft actor-critic with a fixed temperature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy

import torch
from pydantic import Field
from torch import nn

from tasks.offline_rl.stacked import StackedMlp, target_update
from tasks.offline_rl.value_learning import Batch, TwinCritics, ValueConfig, noise_like

LOG_STD = (-5.0, 1.0)


class CqlConfig(ValueConfig):
    """CQL.

    Attributes:
        alpha: weight of the conservative term.
        samples: actions per state and source (uniform, policy) in its log-sum-exp.
        temperature: of the entropy in the actor's loss.
        cloning: weight of squared error to recorded actions in the actor's loss, as common implementations warm up with.
    """

    alpha: float = Field(5.0, ge=0)
    samples: int = Field(4, ge=1)
    temperature: float = Field(0.01, ge=0)
    cloning: float = Field(0.0, ge=0)


class Cql:
    """P learners of twin Q and a squashed Gaussian policy, whose mean acts.

    Args:
        generators: P of them.
        d: state coordinates.
        a: action coordinates.
        config: weights and rates.
        device: torch device.

    Example:
        >>> Cql([torch.Generator().manual_seed(0)], 3, 2, CqlConfig(hidden=(8,))).value(torch.zeros(1, 5, 3)).shape
        torch.Size([1, 5])
    """

    def __init__(self, generators: Sequence[torch.Generator], d: int, a: int, config: CqlConfig, device: str = "cpu") -> None:
        self.config, self.generators, self.a = config, generators, a
        self.actor = StackedMlp(generators, (d, *config.hidden, 2 * a)).to(device)
        self.critics = TwinCritics(generators, (d + a, *config.hidden)).to(device)
        self.target_critics = deepcopy(self.critics)

    def networks(self) -> list[nn.Module]:
        """Policy and critics."""
        return [self.actor, self.critics]

    def sample(self, obs: torch.Tensor, samples: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions (P, samples B, a) of the policy and their log-densities (P, samples B), states repeated in blocks."""
        both = self.actor(obs).repeat(1, samples, 1)
        mean, log_std = both[..., : self.a], both[..., self.a :]
        log_std = log_std.clamp(*LOG_STD)
        noise = noise_like(mean, self.generators)
        before = mean + log_std.exp() * noise
        action = before.tanh()
        density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        # log(1 - tanh^2) in the form that does not lose digits.
        squash = 2 * (math.log(2) - before - torch.nn.functional.softplus(-2 * before))
        return action, (density - squash).sum(-1)

    def loss(self, batch: Batch, step: int) -> torch.Tensor:
        """Squared errors + alpha (log-sum-exp of Q over actions - Q of the recorded one) (eq. 4), and the soft actor's loss."""
        config = self.config
        with torch.no_grad():
            ahead, _ = self.sample(batch.next_obs)
            target = batch.reward + config.gamma * batch.continuation * self.target_critics(batch.next_obs, ahead).amin(0)
        q = self.critics(batch.obs, batch.action)  # (2, P, B)
        total = (q - target).square().mean(-1).sum()
        total = total + config.alpha * (self._soft_maximum(batch.obs) - q).mean(-1).sum()
        chosen, density = self.sample(batch.obs)
        value = self.critics.judge(batch.obs, chosen, both=True)
        cloning = (self.actor(batch.obs)[..., : self.a].tanh() - batch.action).square().sum(-1)
        return total + (config.temperature * density - value + config.cloning * cloning).mean(-1).sum()

    def _soft_maximum(self, obs: torch.Tensor) -> torch.Tensor:
        """Log of the integral of exp Q over the action box, by importance sampling from two sources: (2, P, B)."""
        n = self.config.samples
        states = obs.repeat(1, n, 1)
        uniform = torch.stack([2 * torch.rand((*states.shape[1:2], self.a), generator=g) - 1 for g in self.generators]).to(obs.device)
        with torch.no_grad():
            own, density = self.sample(obs, n)
        both = torch.cat([uniform, own], 1)
        q = self.critics(torch.cat([states, states], 1), both)  # (2, P, 2 n B)
        corrected = q - torch.cat([torch.full_like(density, -self.a * math.log(2)), density], 1)
        return torch.logsumexp(corrected.view(*corrected.shape[:2], 2 * n, -1), -2) - math.log(2 * n)

    def follow(self, step: int) -> None:
        """Move the target critics."""
        target_update(self.target_critics, self.critics, self.config.target_rate)

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        """min(Q1, Q2) at the policy's mean action."""
        return self.critics.judge(obs, self.actor(obs)[..., : self.a].tanh(), both=True)
