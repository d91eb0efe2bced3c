"""Proximal policy optimisation (Schulman et al., 2017) with a KL to the behaviour policy, on flat batches with a weight per step.

The surrogate takes any advantage: GAE, that of a set, or a mixture of both in one batch. Rollouts and advantages are made elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from tasks.rl.networks import Policy


@dataclass(frozen=True)
class Batch:
    """B steps.

    Attributes:
        observation: (B, ...).
        action: (B,).
        probability: the behaviour policy's, of every action (B, A).
        advantage: (B,).
        weight: of the step in the policy loss (B,); 0 leaves its KL and its value.
        target: what the critic should say (B,).
    """

    observation: np.ndarray
    action: np.ndarray
    probability: np.ndarray
    advantage: np.ndarray
    weight: np.ndarray
    target: np.ndarray

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True)
class Surrogate:
    """Mean quantities of a batch: the clipped surrogate (to be maximised), KL(behaviour || policy), entropy, share of clipped steps."""

    gain: torch.Tensor
    kl: torch.Tensor
    entropy: torch.Tensor
    clipped: torch.Tensor


def clipped_surrogate(
    log_policy: torch.Tensor,
    action: torch.Tensor,
    probability: torch.Tensor,
    advantage: torch.Tensor,
    weight: torch.Tensor | None = None,
    clip: float = 0.2,
) -> Surrogate:
    """E[w min(r A, clip(r, 1 - eps, 1 + eps) A)], and the exact KL of the two categorical distributions.

    Args:
        log_policy: log pi (..., A), normalised.
        action: (...).
        probability: pi_b (..., A), without a graph.
        advantage: (...).
        weight: (...), 1 when absent.
        clip: eps.

    Raises:
        ValueError: for clip <= 0.

    Example:
        >>> log_policy = torch.tensor([[0.5, 0.5]]).log()
        >>> found = clipped_surrogate(log_policy, torch.tensor([0]), log_policy.exp(), torch.tensor([2.0]))
        >>> found.gain.item(), found.kl.item(), found.clipped.item()
        (2.0, 0.0, 0.0)
    """
    if not clip > 0:
        raise ValueError(f"clip must be positive, got {clip}")
    chosen = action.unsqueeze(-1)
    log_behaviour = probability.clamp_min(1e-12).log()
    ratio = (log_policy.gather(-1, chosen) - log_behaviour.gather(-1, chosen)).squeeze(-1).exp()
    bounded = ratio.clamp(1 - clip, 1 + clip)
    gain = torch.minimum(ratio * advantage, bounded * advantage)
    if weight is not None:
        gain = gain * weight
    kl = (probability * (log_behaviour - log_policy)).sum(-1)
    entropy = -(log_policy.exp() * log_policy).sum(-1)
    return Surrogate(gain.mean(), kl.mean(), entropy.mean(), ((ratio - bounded) != 0).float().mean())


def ppo_update(
    policy: Policy,
    optimisers: tuple[torch.optim.Optimizer, torch.optim.Optimizer],
    batch: Batch,
    rng: np.random.Generator,
    *,
    clip: float = 0.2,
    kl: float = 0.01,
    entropy: float = 0.0,
    epochs: int = 2,
    minibatch: int = 1024,
    norm: float = 0.5,
    value: float = 0.5,
) -> dict[str, float]:
    """Some epochs of minibatch ascent on E[surrogate] - kl E[KL(pi_b || pi)] + entropy E[H], and descent of the critic's squared error.

    Args:
        policy: is trained; its tables are refreshed.
        optimisers: of the actor and of the critic; they keep their state between batches.
        batch: the steps.
        rng: order of the steps.
        clip: eps of the ratio.
        kl: beta.
        entropy: bonus.
        epochs: passes over the batch.
        minibatch: steps per update.
        norm: largest gradient norm, of each network.
        value: factor of the critic's loss.

    Returns:
        means over the updates: `kl_nats`, `entropy_nats`, `clipped_share`, `value_loss`; and `updates`.

    Raises:
        FloatingPointError: when a loss is not finite.
    """
    device = next(policy.actor.parameters()).device
    action = torch.from_numpy(batch.action).to(device)
    numbers = (batch.probability, batch.advantage, batch.weight, batch.target)
    probability, advantage, weight, target = (torch.from_numpy(np.asarray(a, np.float32)).to(device) for a in numbers)
    told: list[tuple[float, ...]] = []
    for rows in minibatches(len(batch), minibatch, epochs, rng):
        at = torch.from_numpy(rows).to(device)
        logits, values = policy.logits_and_values(batch.observation[rows])
        log_policy = logits.log_softmax(-1)
        found = clipped_surrogate(log_policy, action[at], probability[at], advantage[at], weight[at], clip)
        error = (values - target[at]).square().mean()
        loss = -found.gain + kl * found.kl - entropy * found.entropy + value * error
        take_step(policy, optimisers, loss, norm)
        told.append((found.kl.item(), found.entropy.item(), found.clipped.item(), error.item()))
    policy.refresh()
    means = np.mean(told, 0)
    return dict(zip(("kl_nats", "entropy_nats", "clipped_share", "value_loss"), map(float, means), strict=True)) | {"updates": len(told)}


def take_step(policy: Policy, optimisers: tuple[torch.optim.Optimizer, ...], loss: torch.Tensor, norm: float) -> None:
    """One step of both networks down a joint loss, each gradient clipped.

    Raises:
        FloatingPointError: for a loss that is not finite.
    """
    if not torch.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss.item()}; lower the learning rates")
    for optimiser in optimisers:
        optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    for network in (policy.actor, policy.critic):
        torch.nn.utils.clip_grad_norm_(network.parameters(), norm)
    for optimiser in optimisers:
        optimiser.step()


def minibatches(count: int, size: int, epochs: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Rows of every update: each epoch is one random order, cut into equal parts of at most `size` rows.

    Raises:
        ValueError: for size, epochs or count below 1.
    """
    if min(count, size, epochs) < 1:
        raise ValueError(f"count, minibatch and epochs must be at least 1, got {count}, {size}, {epochs}")
    for _ in range(epochs):
        yield from np.array_split(rng.permutation(count), -(-count // size))
