"""Vines (Schulman et al., 2015): several independent continuations from states inside an episode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.rl.rollouts import Behaviour, Trajectories, World, replay, roll_out


@dataclass(frozen=True)
class Vines:
    """Vines of G rollout states.

    Attributes:
        trajectories: G * N of them, the N vines of a state beside each other.
        group_size: N.
        skipped: rollout states that were left out, their episode being too short.
    """

    trajectories: Trajectories
    group_size: int
    skipped: int

    def by_group(self, values: np.ndarray) -> np.ndarray:
        """Per-vine values (G * N,) as (G, N)."""
        return np.asarray(values.reshape(-1, self.group_size))


def rollout_steps(length: np.ndarray, states: int) -> np.ndarray:
    """Steps floor((k + 1) L / (p + 1)), k = 0..p-1, of p rollout states in episodes of lengths L (E,); (E, p).

    Episodes with L <= p have no p different steps inside; theirs are -1.

    Raises:
        ValueError: for p < 1.

    Example:
        >>> rollout_steps(np.array([9, 2]), 2).tolist()
        [[3, 6], [-1, -1]]
    """
    if states < 1:
        raise ValueError(f"states must be at least 1, got {states}")
    steps = (np.arange(states) + 1) * length[:, None] // (states + 1)
    return np.where(length[:, None] > states, steps, -1)


def grow_vines(world: World, episodes: Trajectories, behaviour: Behaviour, states: int, group_size: int, rng: np.random.Generator) -> Vines:
    """Run N independent continuations from each of p states of every episode.

    Args:
        world: the environment.
        episodes: seed episodes (E), started at their configurations' starts.
        behaviour: the policy, fixed.
        states: p.
        group_size: N.
        rng: the uniforms of the vines.
    """
    steps = rollout_steps(episodes.length, states)
    episode, column = np.nonzero(steps >= 0)
    begin = steps[episode, column]
    config = episodes.config[episode]
    state = replay(world, config, episodes.action[:, episode], begin)
    each = np.repeat(np.arange(len(episode)), group_size)
    uniforms = rng.random((int(world.horizon - begin.min(initial=world.horizon)), len(each)))
    found = roll_out(world, world.save(state, each), config[each], behaviour, uniforms, begin[each])
    return Vines(found, group_size, int((steps < 0).sum()))
