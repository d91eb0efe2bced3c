"""Returns of policies by running them: many policies and episodes in step, with fixed seeds, in the environment's own reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Policy = Callable[[np.ndarray], np.ndarray]
"""States (P, E, d) of P policies in E episodes -> actions (P, E)."""


def rollout_returns(make: Callable[[], Any], policy: Policy, n_policies: int, reset_seeds: Sequence[int]) -> np.ndarray:
    """Undiscounted returns of P policies over E episodes, shape (P, E).

    Episode e starts from `reset_seeds[e]` for every policy, so differences between policies are paired. `policy` is called
    once per step with the states of all of them; what it says for finished episodes is ignored.

    Args:
        make: makes a fresh environment with discrete actions and a time limit.
        policy: see `Policy`.
        n_policies: P >= 1.
        reset_seeds: E >= 1 seeds.

    Raises:
        ValueError: without policies or seeds, or for an action outside the space.

    Example:
        >>> from tasks.offline_rl.environments import control_task
        >>> left = lambda states: np.zeros(states.shape[:2], int)
        >>> rollout_returns(control_task("cartpole").make, left, 1, [0, 1]).shape
        (1, 2)
    """
    if n_policies < 1 or len(reset_seeds) < 1:
        raise ValueError(f"needs at least one policy and one reset seed, got {n_policies} and {len(reset_seeds)}")
    environments = [[make() for _ in reset_seeds] for _ in range(n_policies)]
    states = np.array([[env.reset(seed=int(s))[0] for env, s in zip(row, reset_seeds, strict=True)] for row in environments], float)
    n_actions = int(environments[0][0].action_space.n)
    returns = np.zeros(states.shape[:2])
    active = [(p, e) for p in range(n_policies) for e in range(len(reset_seeds))]
    while active:
        actions = policy(states)
        running = []
        for p, e in active:
            action = int(actions[p, e])
            if not 0 <= action < n_actions:
                raise ValueError(f"policy {p} chose action {action}, outside 0..{n_actions - 1}")
            state, reward, terminated, truncated, _ = environments[p][e].step(action)
            states[p, e] = state
            returns[p, e] += float(reward)
            if not (terminated or truncated):
                running.append((p, e))
        active = running
    for row in environments:
        for env in row:
            env.close()
    return returns


def random_policy(n_actions: int, rng: np.random.Generator) -> Policy:
    """Uniformly random actions: what a return of zero stands for in normalised returns."""
    return lambda states: rng.integers(n_actions, size=states.shape[:2])


def normalised_return(returns: np.ndarray, random: float, reference: float) -> np.ndarray:
    """0 for the random policy, 1 for the reference: (returns - random) / (reference - random).

    A reference that hardly differs from the random policy would blow this up, and one below it would turn better into worse; the
    denominator is at least 5 % of |random|.

    Raises:
        ValueError: if random is zero and the reference no better, or one of them is not finite: there is no unit then.

    Example:
        >>> normalised_return(np.array([-150.0]), random=-200.0, reference=-100.0).tolist()
        [0.5]
    """
    gap = max(reference - random, 0.05 * abs(random))
    if not (gap > 0 and np.isfinite(gap)):
        raise ValueError(f"no unit between the random policy's return {random} and the reference's {reference}")
    return (returns - random) / gap
