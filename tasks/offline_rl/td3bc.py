"""TD3+BC (Fujimoto & Gu, 2021): deterministic policy gradient on normalised Q plus behaviour cloning; and ReBRAC's penalties.

ReBRAC (Tarasov et al., 2023) is TD3+BC with a penalty on the critic's target too and layer-normalised critics; see `rebrac.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from pydantic import Field
from torch import nn

from tasks.offline_rl.stacked import StackedMlp, target_update
from tasks.offline_rl.value_learning import Batch, TwinCritics, ValueConfig, noise_like


class Td3BcConfig(ValueConfig):
    """TD3+BC.

    Attributes:
        alpha: weight of Q, which is divided by its mean magnitude, against a behaviour-cloning weight of 1.
        noise: standard deviation of the target policy's smoothing, clipped at `noise_clip`.
        delay: critic updates per actor update.
        critic_penalty: ReBRAC's beta_2, of squared distance between target action and recorded next action.
        layer_norm: in the critics.
    """

    alpha: float = Field(2.5, ge=0)
    noise: float = Field(0.2, ge=0)
    noise_clip: float = Field(0.5, ge=0)
    delay: int = Field(2, ge=1)
    critic_penalty: float = Field(0.0, ge=0)
    layer_norm: bool = False


class Td3Bc:
    """P learners: `loss` for critics and, every `delay` steps, actors.

    Args:
        generators: P of them.
        d: state coordinates.
        a: action coordinates.
        config: weights and rates.
        device: torch device.

    Example:
        >>> learner = Td3Bc([torch.Generator().manual_seed(0)], 3, 2, Td3BcConfig(hidden=(8,)))
        >>> learner.value(torch.zeros(1, 5, 3)).shape
        torch.Size([1, 5])
    """

    def __init__(self, generators: Sequence[torch.Generator], d: int, a: int, config: Td3BcConfig, device: str = "cpu") -> None:
        self.config, self.generators = config, generators
        self.actor = StackedMlp(generators, (d, *config.hidden, a), squash=True).to(device)
        self.critics = TwinCritics(generators, (d + a, *config.hidden), layer_norm=config.layer_norm).to(device)
        self.target_actor, self.target_critics = deepcopy(self.actor), deepcopy(self.critics)

    def networks(self) -> list[nn.Module]:
        """Actor and critics."""
        return [self.actor, self.critics]

    def loss(self, batch: Batch, step: int) -> torch.Tensor:
        """Squared temporal-difference errors, plus -alpha Q / mean|Q| + |pi(s) - a|^2 on the actor's turns."""
        config = self.config
        with torch.no_grad():
            ahead = self.target_actor(batch.next_obs)
            smoothing = (config.noise * noise_like(ahead, self.generators)).clamp(-config.noise_clip, config.noise_clip)
            ahead = (ahead + smoothing).clamp(-1, 1)
            value = self.target_critics(batch.next_obs, ahead).amin(0)
            if config.critic_penalty:
                value = value - config.critic_penalty * batch.has_next * (ahead - batch.next_action).square().sum(-1)
            target = batch.reward + config.gamma * batch.continuation * value
        total = (self.critics(batch.obs, batch.action) - target).square().mean(-1).sum()
        if step % config.delay == 0:
            chosen = self.actor(batch.obs)
            q = self.critics.judge(batch.obs, chosen)
            unit = q.abs().mean(-1, keepdim=True).detach().clamp(min=1e-6)
            cloning = (chosen - batch.action).square().mean(-1)
            total = total + (cloning - config.alpha * q / unit).mean(-1).sum()
        return total

    def follow(self, step: int) -> None:
        """Move both target networks on the actor's turns, as TD3 does."""
        if step % self.config.delay == 0:
            target_update(self.target_actor, self.actor, self.config.target_rate)
            target_update(self.target_critics, self.critics, self.config.target_rate)

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        """min(Q1, Q2)(s, pi(s))."""
        return self.critics.judge(obs, self.actor(obs), both=True)
