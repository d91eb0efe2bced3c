"""Fine-tuning of a policy over triples with a clipped surrogate: one sample is one bandit arm, or a member of a set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from pydantic import Field, model_validator

from tasks.common.node import Params
from tasks.creativity.triangles import TriangleTask, vertex_sets
from tasks.rl.ppo import clipped_surrogate
from tasks.rl.set_advantages import Diversity, Objective, set_advantages


class TriplePolicy(Protocol):
    """A distribution over ordered triples of vertices."""

    def log_probabilities(self, triples: torch.Tensor) -> torch.Tensor:
        """Log probabilities (B, 3, V) along triples (B, 3)."""
        ...

    def sample(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Triples (count, 3)."""
        ...

    def parameters(self) -> Any:
        """What is trained."""
        ...


class CreativityArm(Params):
    """One way of fine-tuning.

    Attributes:
        objective: of sets; None is PPO with the mean reward of the batch as baseline.
        set_size: n.
        group: N consecutive samples that sets are drawn from.
        sets: M of them.
        diversity: see `tasks.rl.set_advantages`.
    """

    objective: Objective | None = None
    set_size: int = Field(4, ge=1)
    group: int = Field(8, ge=1)
    sets: int = Field(4, ge=1)
    diversity: Diversity = "share"

    @model_validator(mode="after")
    def _fits(self) -> CreativityArm:
        if self.set_size > self.group:
            raise ValueError(f"set_size must lie in 1..{self.group} (samples in a group), got {self.set_size}")
        return self


class CreativityTraining(Params):
    """What all arms share.

    Attributes:
        updates: batches of samples.
        samples: in a batch; a multiple of every arm's group.
        epochs: full-batch steps on each.
        rate: of Adam.
        clip: eps of the ratio.
    """

    updates: int = Field(400, ge=1)
    samples: int = Field(256, ge=2)
    epochs: int = Field(2, ge=1)
    rate: float = Field(0.03, gt=0.0)
    clip: float = Field(0.2, gt=0.0)


def fine_tune_triples(
    policy: TriplePolicy,
    task: TriangleTask,
    arm: CreativityArm,
    training: CreativityTraining,
    rng: np.random.Generator,
    look: Callable[[int, dict[str, float]], None] | None = None,
) -> None:
    """Reward 1 for a triangle, else 0; the signature of a sample is its set of vertices.

    Args:
        policy: is trained in place.
        task: what is valid.
        arm: which advantage.
        training: how long, how fast.
        rng: of samples and sets.
        look: called after every update with its number, validity and unique share of the batch.

    Raises:
        ValueError: if a batch is not a whole number of groups.
    """
    if training.samples % arm.group:
        raise ValueError(f"samples must be a multiple of the group of {arm.group}, got {training.samples}")
    weights = list(policy.parameters())
    device = weights[0].device
    optimiser = torch.optim.Adam(weights, lr=training.rate)
    for number in range(training.updates):
        triples = policy.sample(training.samples, rng)
        reward = task.valid(triples).astype(float)
        kinds = vertex_sets(triples, task.vertices)
        advantage, weight = sample_advantages(reward, kinds, arm, rng)
        drawn = torch.from_numpy(triples).to(device)
        a, w = (torch.from_numpy(x[:, None]).float().to(device).expand(-1, 3) for x in (advantage, weight))
        behaviour: torch.Tensor | None = None
        for _ in range(training.epochs):
            log_policy = policy.log_probabilities(drawn)
            behaviour = log_policy.detach().exp() if behaviour is None else behaviour
            gain = clipped_surrogate(log_policy, drawn, behaviour, a, w, training.clip).gain
            optimiser.zero_grad(set_to_none=True)
            (-3.0 * gain).backward()  # type: ignore[no-untyped-call]  # the sum over a triple's tokens, the mean over triples
            optimiser.step()
        if look is not None:
            look(number, {"validity": float(reward.mean()), "unique_share": len(np.unique(kinds)) / len(kinds)})


def sample_advantages(reward: np.ndarray, kinds: np.ndarray, arm: CreativityArm, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Advantage and weight (B,) of every sample."""
    if arm.objective is None:
        return (reward - reward.mean()) / (reward.std() + 1e-8), np.ones(len(reward))
    found = set_advantages(
        reward.reshape(-1, arm.group),
        kinds.reshape(-1, arm.group),
        rng,
        set_size=arm.set_size,
        sets=arm.sets,
        objective=arm.objective,
        diversity=arm.diversity,
    )
    return found.advantage.ravel(), found.weight.ravel()
