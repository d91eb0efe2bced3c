"""Rollouts of a fixed policy in many environments at once, and the copies of one state from which vines start.

A world moves N agents in step; its states can be taken apart by rows, put together again and saved. Randomness is an array of uniforms,
one per step and agent, so that a rollout is a function of where it starts and of these numbers. Time is kept here and not by
the world: an agent that starts at step t of an episode has horizon - t steps left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Behaviour = Callable[[np.ndarray], np.ndarray]
"""Observations (N, ...) -> action probabilities (N, A)."""


class World(Protocol):
    """What a rollout needs of an environment."""

    @property
    def horizon(self) -> int:
        """Steps of an episode."""
        ...

    @property
    def actions(self) -> int:
        """Number A of actions."""
        ...

    def reset(self, config: np.ndarray) -> Any:
        """States at the starts of configurations (N,)."""
        ...

    def observe(self, state: Any) -> np.ndarray:
        """Observations (N, ...)."""
        ...

    def place(self, state: Any) -> np.ndarray:
        """Small whole number (N,) of the place that an agent is in: what tells one way of behaving from another."""
        ...

    def step(self, state: Any, action: np.ndarray) -> tuple[Any, np.ndarray]:
        """Next states, and whether (N,) they end the episode with success."""
        ...

    def save(self, state: Any, rows: np.ndarray) -> Any:
        """Independent copies of some states, any of them several times."""
        ...

    def put(self, state: Any, rows: np.ndarray, part: Any) -> Any:
        """States with some rows replaced."""
        ...


@dataclass(frozen=True)
class Trajectories:
    """N trajectories of at most T steps, padded.

    Attributes:
        observation: (T, N, ...).
        action: (T, N).
        probability: the policy's, of every action (T, N, A).
        reward: (T, N), 1 - 0.5 t / H at the step t that succeeds, else 0.
        alive: whether the step was taken (T, N).
        config: configuration (N,).
        begin: step of the episode at which the trajectory starts (N,).
        places: set of places visited from the start on (N,), a bit each.
    """

    observation: np.ndarray
    action: np.ndarray
    probability: np.ndarray
    reward: np.ndarray
    alive: np.ndarray
    config: np.ndarray
    begin: np.ndarray
    places: np.ndarray

    @property
    def length(self) -> np.ndarray:
        """Steps taken (N,)."""
        return np.asarray(self.alive.sum(0))

    @property
    def returns(self) -> np.ndarray:
        """Undiscounted returns (N,), in [0, 1]."""
        return np.asarray(self.reward.sum(0))

    @property
    def success(self) -> np.ndarray:
        """Whether the task was solved (N,)."""
        return self.returns > 0

    @property
    def steps(self) -> int:
        """Environment steps in all of them."""
        return int(self.alive.sum())


def roll_out(
    world: World,
    state: Any,
    config: np.ndarray,
    behaviour: Behaviour,
    uniforms: np.ndarray,
    begin: np.ndarray | None = None,
) -> Trajectories:
    """Run a policy from given states to success or to the horizon.

    Args:
        world: the environment.
        state: N states; a world of real environments moves them.
        config: their configurations (N,), kept for whoever reads the result.
        behaviour: the policy, fixed.
        uniforms: numbers in [0, 1) that choose actions (>= longest rollout, N).
        begin: step of the episode (N,) at which each state is; 0 when absent.

    Raises:
        ValueError: if there are too few uniforms.
    """
    n = len(config)
    begin = np.zeros(n, np.int64) if begin is None else np.asarray(begin, np.int64)
    longest = int(world.horizon - begin.min()) if n else 0
    if len(uniforms) < longest:
        raise ValueError(f"uniforms has {len(uniforms)} rows, but a rollout may take {longest} steps")
    first = world.observe(state)
    observation = np.zeros((longest, *first.shape), first.dtype)
    action = np.zeros((longest, n), np.int64)
    probability = np.full((longest, n, world.actions), 1.0 / world.actions, np.float32)
    reward, alive = np.zeros((longest, n)), np.zeros((longest, n), bool)
    places = 1 << world.place(state).astype(np.int64)
    rows = np.flatnonzero(begin < world.horizon)
    state = state.take(rows)
    for t in range(longest):
        seen = world.observe(state)
        chances = behaviour(seen)
        chosen = choose(chances, uniforms[t, rows])
        state, success = world.step(state, chosen)
        observation[t, rows], action[t, rows], probability[t, rows], alive[t, rows] = seen, chosen, chances, True
        places[rows] |= 1 << world.place(state).astype(np.int64)
        reward[t, rows] = np.where(success, 1 - 0.5 * (begin[rows] + t + 1) / world.horizon, 0.0)
        going = ~success & (begin[rows] + t + 1 < world.horizon)
        rows, state = rows[going], state.take(np.flatnonzero(going))
        if not len(rows):
            break
    return Trajectories(observation, action, probability, reward, alive, np.asarray(config), begin, places)


def choose(probability: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Action (N,) whose stretch of the cumulative probabilities (N, A) holds the uniform number (N,).

    Example:
        >>> choose(np.array([[0.2, 0.8], [0.2, 0.8]]), np.array([0.1, 0.3])).tolist()
        [0, 1]
    """
    edges = np.cumsum(probability[:, :-1], 1)
    return np.asarray((uniform[:, None] >= edges).sum(1))


def replay(world: World, config: np.ndarray, action: np.ndarray, steps: np.ndarray) -> Any:
    """States after the first `steps` (K,) of the action sequences (T, K) from the starts of configurations (K,).

    Rollout states are restored in this way, so that a world needs no snapshots while it runs. These are no new samples: the steps were
    counted when they were first taken.
    """
    state = world.reset(config)
    for t in range(int(steps.max(initial=0))):
        rows = np.flatnonzero(t < steps)
        part, _ = world.step(state.take(rows), action[t, rows])
        state = world.put(state, rows, part)
    return state
