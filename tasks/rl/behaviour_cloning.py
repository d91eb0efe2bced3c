"""Behaviour cloning: a policy that imitates demonstrations, with a little entropy so that it stays noisy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tasks.rl.networks import Policy
from tasks.training.loop import descend


@dataclass(frozen=True)
class Cloned:
    """How cloning went: loss of every step, and the share of held-out steps whose likeliest action is the expert's."""

    losses: np.ndarray
    accuracy: float


def clone(
    policy: Policy,
    observation: np.ndarray,
    action: np.ndarray,
    rng: np.random.Generator,
    *,
    epochs: int = 15,
    batch: int = 256,
    rate: float = 1e-3,
    entropy: float = 0.01,
    held_out: float = 0.2,
) -> Cloned:
    """Minimise cross entropy - entropy * H(pi) on a random part of the demonstrated steps.

    Args:
        policy: whose actor is trained.
        observation: (B, ...).
        action: the expert's (B,).
        rng: the split, and the order of the steps.
        epochs: passes over the training part.
        batch: steps per update.
        rate: of Adam.
        entropy: bonus.
        held_out: share of the steps that only judge, in (0, 1).

    Raises:
        ValueError: without demonstrations, or if the split leaves none on either side.
    """
    if not len(action):
        raise ValueError("there are no demonstrations; collect some before cloning")
    if not 0 < held_out < 1 or not 1 <= round(held_out * len(action)) < len(action):
        raise ValueError(f"held_out = {held_out} of {len(action)} steps leaves nothing on one side; give a share in (0, 1) and more steps")
    order = rng.permutation(len(action))
    judges, rows = np.split(order, [round(held_out * len(action))])
    parts = -(-len(rows) // batch)
    device = next(policy.actor.parameters()).device
    todo: list[np.ndarray] = []

    def loss(step: int) -> torch.Tensor:
        if step % parts == 0:
            todo[:] = np.array_split(rng.permutation(rows), parts)
        at = todo[step % parts]
        log_policy = policy.logits(observation[at]).log_softmax(-1)
        spread = -(log_policy.exp() * log_policy).sum(-1).mean()
        return torch.nn.functional.nll_loss(log_policy, torch.from_numpy(action[at]).to(device)) - entropy * spread

    losses = descend(loss, list(policy.actor.parameters()), epochs * parts, rate=rate)
    policy.refresh()
    guess = policy.behaviour(observation[judges]).argmax(-1)
    return Cloned(losses, float((guess == action[judges]).mean()))
