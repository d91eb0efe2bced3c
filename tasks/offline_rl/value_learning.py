"""What value-based offline learners share: minibatches of transitions, twin critics, the loop, and what is kept of a run.

A learner has `loss(batch, step)` for all of its networks at once (each loss detaches what is not its own), `follow(step)` for its target
networks, `actor` and `value(obs)`. TD3+BC, ReBRAC, IQL, CQL and AWR are modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from pydantic import Field
from torch import nn

from tasks.common.node import Params
from tasks.offline_rl.cloning import RowSampler
from tasks.offline_rl.learning_data import DataStack
from tasks.offline_rl.stacked import StackedMlp, generators_of
from tasks.training.loop import descend


class ValueConfig(Params):
    """Sizes and rates that every value-based learner has.

    Attributes:
        gamma: discount.
        batch: transitions per update.
        rate: of Adam, for all networks.
        target_rate: of the target networks.
        hidden: layers of every network.
        updates: in all.
        checkpoints: after how many updates an iterate is kept; the last one always is.
    """

    gamma: float = Field(0.99, ge=0, lt=1)
    batch: int = Field(256, ge=1)
    rate: float = Field(1e-3, gt=0)
    target_rate: float = Field(0.005, gt=0, le=1)
    hidden: tuple[int, ...] = (64, 64)
    updates: int = Field(20000, ge=1)
    checkpoints: tuple[int, ...] = ()


@dataclass(frozen=True)
class Batch:
    """B transitions of each of P policies.

    Attributes:
        obs: (P, B, d); next_obs: (P, B, d).
        action: (P, B, a), in [-1, 1]; next_action: the recorded one of the next step, (P, B, a), where has_next is 1.
        reward: (P, B); continuation: (P, B), 0 where the task ended; has_next: (P, B).
        rows: rows of the stack, (P, B).
    """

    obs: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    next_obs: torch.Tensor
    next_action: torch.Tensor
    has_next: torch.Tensor
    continuation: torch.Tensor
    rows: torch.Tensor


class Learner(Protocol):
    """A value-based method: all its networks, stacked over P policies."""

    actor: StackedMlp

    def networks(self) -> list[nn.Module]:
        """Networks that gradients reach."""
        ...

    def loss(self, batch: Batch, step: int) -> torch.Tensor:
        """Sum of the losses of all networks, each with gradients to its own weights alone."""
        ...

    def follow(self, step: int) -> None:
        """Move the target networks, after the step."""
        ...

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        """What the learner expects of its policy from states (P, B, d): (P, B)."""
        ...


class TwinCritics(nn.Module):
    """Two Q networks for each of P policies, in one stack.

    Args:
        generators: P of them; each makes the first weights of both its networks.
        sizes: (d + a, hidden...).
        layer_norm: as `StackedMlp`.
    """

    __call__: Callable[..., torch.Tensor]

    def __init__(self, generators: Sequence[torch.Generator], sizes: Sequence[int], *, layer_norm: bool = False) -> None:
        super().__init__()
        self.net = StackedMlp([*generators, *generators], (*sizes, 1), layer_norm=layer_norm)

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Q (2, P, B) of obs (P, B, d) and action (P, B, a)."""
        both = torch.cat([obs, action], -1).repeat(2, 1, 1)
        return self.net(both)[..., 0].view(2, *obs.shape[:2])

    def judge(self, obs: torch.Tensor, action: torch.Tensor, both: bool = False) -> torch.Tensor:
        """Q of the first network (P, B), or the smaller of both, gradients to the action alone."""
        inputs = torch.cat([obs, action], -1)
        if both:
            return self.net(inputs.repeat(2, 1, 1), frozen=True)[..., 0].view(2, *obs.shape[:2]).amin(0)
        return self.net(inputs, frozen=True, first=len(obs))[..., 0]


@dataclass
class ValueRun:
    """What training returns, by number of updates.

    Attributes:
        weights: tensors of the stacked actors.
        expected: what each learner expects of its policy at the starts of D+, P arrays (n+,).
    """

    weights: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    expected: dict[int, list[np.ndarray]] = field(default_factory=dict)


Factory = Callable[[Sequence[torch.Generator], int, int], Learner]
"""(generators, d, a) -> learner."""


def train_values(
    stack: DataStack,
    parts: Sequence[int],
    seeds: Sequence[tuple[int, ...]],
    config: ValueConfig,
    make: Factory,
    after: Callable[[int, float], None] | None = None,
) -> ValueRun:
    """Train P learners of one kind side by side.

    Args:
        stack: the data sets.
        parts: data set of each learner, (P,).
        seeds: numbers that seed each learner's generator.
        config: sizes and rates.
        make: makes the stacked learner.
        after: called with (step, summed loss).

    Raises:
        FloatingPointError: when a loss stops being finite.
    """
    generators = generators_of(seeds)
    learner = make(generators, stack.obs.shape[1], stack.action.shape[1])
    sampler = RowSampler([np.arange(stack.sizes[p]) + stack.offset[p] for p in parts], config.batch, generators, stack.device)
    kept = {c for c in config.checkpoints if c < config.updates} | {config.updates}
    found = ValueRun()

    def loss(step: int) -> torch.Tensor:
        return learner.loss(transitions(stack, sampler(step)), step)

    def stepped(step: int, value: float) -> None:
        learner.follow(step)
        if step + 1 in kept:
            found.weights[step + 1] = learner.actor.weights()
            found.expected[step + 1] = expected_at_starts(stack, parts, learner)
        if after is not None:
            after(step, value)

    every = [p for network in learner.networks() for p in network.parameters()]
    descend(loss, every, config.updates, rate=config.rate, after=stepped)
    return found


def transitions(stack: DataStack, rows: torch.Tensor) -> Batch:
    """Transitions at rows (P, B)."""
    names = ("obs", "action", "reward", "next_obs", "next_action", "has_next", "continuation")
    return Batch(**{name: getattr(stack, name)[rows] for name in names}, rows=rows)


def expected_at_starts(stack: DataStack, parts: Sequence[int], learner: Learner) -> list[np.ndarray]:
    """`learner.value` at the first state of every trajectory of D+, by policy."""
    starts = [stack.spans(p, "positive")[0] for p in parts]
    longest = max(len(s) for s in starts)
    padded = torch.stack([torch.cat([s, s[:1].expand(longest - len(s))]) for s in starts]).to(stack.device)
    with torch.no_grad():
        values = learner.value(stack.obs[padded]).cpu().numpy()
    return [v[: len(s)] for v, s in zip(values, starts, strict=True)]


def noise_like(action: torch.Tensor, generators: Sequence[torch.Generator]) -> torch.Tensor:
    """Standard normal numbers of the shape (P, ...) of `action`, row p by generator p."""
    return torch.stack([torch.randn(action.shape[1:], generator=g) for g in generators]).to(action.device)
