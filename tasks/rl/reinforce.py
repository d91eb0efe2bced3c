"""REINFORCE (Williams, 1992) with a learned baseline: Monte-Carlo advantages, one step per batch, nothing clipped."""

from __future__ import annotations

import numpy as np
import torch

from tasks.rl.networks import Policy
from tasks.rl.ppo import Batch, minibatches, take_step


def reinforce_update(
    policy: Policy,
    optimisers: tuple[torch.optim.Optimizer, torch.optim.Optimizer],
    batch: Batch,
    rng: np.random.Generator,
    *,
    entropy: float = 0.0,
    norm: float = 0.5,
    value: float = 0.5,
    critic_epochs: int = 1,
    minibatch: int = 1024,
) -> dict[str, float]:
    """One step up E[log pi(a|s) A] for the actor; the critic takes further steps of its own if asked to.

    Args:
        policy: is trained; its tables are refreshed.
        optimisers: of the actor and of the critic.
        batch: whole episodes with advantages return - value; behaviour probabilities only say what the KL became.
        rng: order of the critic's further steps.
        entropy: bonus.
        norm: largest gradient norm, of each network.
        value: factor of the critic's loss.
        critic_epochs: passes of the critic over the batch; the first shares the actor's step.
        minibatch: steps per further update of the critic.

    Returns:
        `kl_nats` (0 before the step), `entropy_nats`, `value_loss`; and `updates`.
    """
    device = next(policy.actor.parameters()).device
    numbers = (batch.advantage, batch.weight, batch.target)
    advantage, weight, target = (torch.from_numpy(np.asarray(a, np.float32)).to(device) for a in numbers)
    logits, values = policy.logits_and_values(batch.observation)
    log_policy = logits.log_softmax(-1)
    gain = (log_policy.gather(-1, torch.from_numpy(batch.action).to(device)[:, None])[:, 0] * advantage * weight).mean()
    spread = -(log_policy.exp() * log_policy).sum(-1).mean()
    error = (values - target).square().mean()
    take_step(policy, optimisers, -gain - entropy * spread + value * error, norm)
    updates = 1
    if critic_epochs > 1:
        for rows in minibatches(len(batch), minibatch, critic_epochs - 1, rng):
            _, values = policy.logits_and_values(batch.observation[rows])
            loss = value * (values - target[torch.from_numpy(rows).to(device)]).square().mean()
            optimisers[1].zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(policy.critic.parameters(), norm)
            optimisers[1].step()
            updates += 1
    policy.refresh()
    return {"kl_nats": 0.0, "entropy_nats": spread.item(), "value_loss": error.item(), "updates": float(updates)}
