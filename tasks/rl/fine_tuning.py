"""Fine-tuning of a pretrained policy by one arm: which rollouts, which advantages, which update, under a budget of environment steps.

Every arm pays for every step that it takes, in seed episodes and in vines. The polychromic arm reads from top to bottom like the
paper's pseudo-code: seed episodes, rollout states, vines, sets, advantages, PPO.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from tasks.common.node import Params
from tasks.rl.gae import advantages_and_returns
from tasks.rl.networks import Policy
from tasks.rl.ppo import Batch, ppo_update
from tasks.rl.reinforce import reinforce_update
from tasks.rl.rollouts import Trajectories, World, roll_out
from tasks.rl.set_advantages import Diversity, Objective, SetAdvantages, set_advantages
from tasks.rl.vines import Vines, grow_vines
from tasks.rl.visit_counts import VisitCounts


class Arm(Params):
    """One way of fine-tuning.

    Attributes:
        update: `ppo` or `reinforce`.
        objective: of the sets of vines; None takes whole episodes and no sets.
        episodes: seed episodes E in a batch.
        states: rollout states p in each episode.
        vines: N continuations from each state.
        set_size: n of them in a set.
        sets: M sets at each state.
        window: steps 0..W of a vine that get the advantage of its sets.
        diversity: see `tasks.rl.set_advantages`.
        bonus: of the objective `additive`.
        fallback: give the window's steps GAE when no set of a batch differs from another.
        gamma: discount.
        lam: of GAE; `reinforce` takes 1.
        actor_rate: learning rate of the actor's Adam.
        critic_rate: of the critic's.
        clip: eps of PPO.
        kl: beta of the KL to the behaviour policy.
        entropy: bonus.
        ucb: weight of the visit-count bonus in the rewards that GAE sees.
        epochs: passes over a batch.
        minibatch: steps per update.
        norm: largest gradient norm.
        critic_epochs: passes of `reinforce`'s critic.
    """

    update: Literal["ppo", "reinforce"] = "ppo"
    objective: Objective | None = None
    episodes: int = Field(16, ge=1)
    states: int = Field(2, ge=1)
    vines: int = Field(8, ge=1)
    set_size: int = Field(4, ge=1)
    sets: int = Field(4, ge=1)
    window: int = Field(5, ge=0)
    diversity: Diversity = "share"
    bonus: float = Field(0.5, ge=0.0)
    fallback: Literal["none", "gae"] = "none"
    gamma: float = Field(1.0, ge=0.0, le=1.0)
    lam: float = Field(0.95, ge=0.0, le=1.0)
    actor_rate: float = Field(3e-4, gt=0.0)
    critic_rate: float = Field(1e-3, gt=0.0)
    clip: float = Field(0.2, gt=0.0)
    kl: float = Field(0.01, ge=0.0)
    entropy: float = Field(0.0, ge=0.0)
    ucb: float = Field(0.0, ge=0.0)
    epochs: int = Field(2, ge=1)
    minibatch: int = Field(1024, ge=1)
    norm: float = Field(0.5, gt=0.0)
    critic_epochs: int = Field(1, ge=1)

    @model_validator(mode="after")
    def _fits(self) -> Arm:
        if self.objective is not None and self.set_size > self.vines:
            raise ValueError(f"set_size must lie in 1..{self.vines} (vines of a state), got {self.set_size}")
        if self.objective is not None and self.update == "reinforce":
            raise ValueError("sets of vines are built for update 'ppo', got 'reinforce'")
        return self


def fine_tune(
    policy: Policy,
    world: World,
    configs: int,
    arm: Arm,
    budget: int,
    rng: np.random.Generator,
    look: Callable[[int, dict[str, float]], None] | None = None,
) -> int:
    """Train until the arm has taken `budget` environment steps; the last batch may go beyond.

    Args:
        policy: pretrained; is trained in place.
        world: environment with configurations 0..configs-1, each equally likely.
        configs: how many.
        arm: the way.
        budget: environment steps, seed episodes and vines alike.
        rng: of everything random.
        look: called after every batch with the steps taken so far and the diagnostics of the batch.

    Returns:
        the environment steps that were taken.

    Raises:
        ValueError: for a budget or a number of configurations below 1.
    """
    if min(budget, configs) < 1:
        raise ValueError(f"budget and configs must be at least 1, got {budget} and {configs}")
    optimisers = (
        torch.optim.Adam(policy.actor.parameters(), lr=arm.actor_rate, eps=1e-5, fused=True),
        torch.optim.Adam(policy.critic.parameters(), lr=arm.critic_rate, eps=1e-5, fused=True),
    )
    counts = VisitCounts(world.actions) if arm.ucb else None
    taken = 0
    for config in in_rounds(configs, arm.episodes, rng):
        episodes = roll_out(world, world.reset(config), config, policy.behaviour, rng.random((world.horizon, arm.episodes)))
        told: dict[str, float] = {"success": float(episodes.success.mean()), "length": float(episodes.length.mean())}
        if arm.objective is None:
            batch, used = episode_batch(policy, episodes, arm, counts), episodes.steps
        else:
            vines = grow_vines(world, episodes, policy.behaviour, arm.states, arm.vines, rng)
            batch, found = vine_batch(policy, episodes, vines, arm, rng, counts)
            used = episodes.steps + vines.trajectories.steps
            told |= {"silent_share": found.silent_share, "skipped": float(vines.skipped), "score": float(found.score.mean())}
        told |= update(policy, optimisers, batch, arm, rng)
        taken += used
        if look is not None:
            look(taken, told)
        if taken >= budget:
            break
    return taken


def in_rounds(configs: int, episodes: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Configurations of every batch, without end: random orders of all of them, one after the other, so that none is forgotten."""
    queue = np.empty(0, np.int64)
    while True:
        while len(queue) < episodes:
            queue = np.concatenate([queue, rng.permutation(configs)])
        yield queue[:episodes]
        queue = queue[episodes:]


def update(
    policy: Policy, optimisers: tuple[torch.optim.Adam, torch.optim.Adam], batch: Batch, arm: Arm, rng: np.random.Generator
) -> dict[str, float]:
    """The arm's update on a batch."""
    if arm.update == "reinforce":
        return reinforce_update(
            policy, optimisers, batch, rng, entropy=arm.entropy, norm=arm.norm, critic_epochs=arm.critic_epochs, minibatch=arm.minibatch
        )
    return ppo_update(
        policy,
        optimisers,
        batch,
        rng,
        clip=arm.clip,
        kl=arm.kl,
        entropy=arm.entropy,
        epochs=arm.epochs,
        minibatch=arm.minibatch,
        norm=arm.norm,
    )


def episode_batch(policy: Policy, episodes: Trajectories, arm: Arm, counts: VisitCounts | None = None) -> Batch:
    """Whole episodes with standardised GAE (or Monte-Carlo) advantages."""
    alive = episodes.alive
    advantage, target = estimate(policy, episodes, arm, counts)
    return Batch(*taken_steps(episodes), standardised(advantage[alive]), np.ones(episodes.steps), target[alive])


def vine_batch(
    policy: Policy, episodes: Trajectories, vines: Vines, arm: Arm, rng: np.random.Generator, counts: VisitCounts | None = None
) -> tuple[Batch, SetAdvantages]:
    """Seed episodes and vines as one batch: set advantages in the vines' first steps, GAE in all others.

    The two kinds of advantage are brought to one scale apart from each other: GAE is standardised, set advantages are divided by
    their standard deviation and not shifted, being centred at every rollout state already.
    """
    grown = vines.trajectories
    found = set_advantages(
        vines.by_group(grown.returns),
        vines.by_group(grown.places),
        rng,
        set_size=arm.set_size,
        sets=arm.sets,
        objective=arm.objective or "polychromic",
        diversity=arm.diversity,
        bonus=arm.bonus,
    )
    parts = [estimate(policy, t, arm, counts) for t in (episodes, grown)]
    use_gae = arm.fallback == "gae" and found.scale <= 1e-12
    window = (np.arange(len(grown.alive)) <= arm.window)[:, None] & grown.alive & (not use_gae)
    by_set = np.concatenate([np.zeros(episodes.steps, bool), window[grown.alive]])
    advantage = np.concatenate([a[t.alive] for (a, _), t in zip(parts, (episodes, grown), strict=True)])
    target = np.concatenate([r[t.alive] for (_, r), t in zip(parts, (episodes, grown), strict=True)])
    weight = np.ones(len(advantage))
    advantage[~by_set] = standardised(advantage[~by_set])
    shared, times = (np.broadcast_to(a.reshape(-1), grown.alive.shape) for a in (found.advantage, found.weight))
    advantage[by_set], weight[by_set] = shared[window], times[window]
    observation, action, probability = map(np.concatenate, zip(taken_steps(episodes), taken_steps(grown), strict=True))
    return Batch(observation, action, probability, advantage, weight, target), found


def estimate(policy: Policy, trajectories: Trajectories, arm: Arm, counts: VisitCounts | None) -> tuple[np.ndarray, np.ndarray]:
    """GAE advantages and returns (T, N), with the exploration bonus in the rewards if there is one.

    Success and the horizon both end an episode for good, so that the value after the last step is 0.
    """
    alive = trajectories.alive
    value = np.zeros(alive.shape)
    value[alive] = policy.appraise(trajectories.observation[alive])
    reward = trajectories.reward
    if counts is not None:
        reward = reward.copy()
        reward[alive] += arm.ucb * counts.visit(trajectories.observation[alive], trajectories.action[alive])
    lam = 1.0 if arm.update == "reinforce" else arm.lam
    return advantages_and_returns(reward, value, alive, arm.gamma, lam, last_value=0.0)


def taken_steps(trajectories: Trajectories) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observations, actions and behaviour probabilities of the steps that were taken, flat."""
    alive = trajectories.alive
    return trajectories.observation[alive], trajectories.action[alive], trajectories.probability[alive]


def standardised(advantage: np.ndarray) -> np.ndarray:
    """Mean 0 and standard deviation 1."""
    return np.asarray((advantage - advantage.mean()) / (advantage.std() + 1e-8))
