"""Many episodes of one MuJoCo task in step: one native call per time step for all policies and starts.

A task says how states move and what counts as success; the functions here know nothing about mazes or arms. Episodes are independent
and start from given states, so that differences between policies are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Act = Callable[[np.ndarray], np.ndarray]
"""Observations (P, E, d) of P policies in E episodes -> actions (P, E, a) in the task's box."""


class BatchTask(Protocol):
    """A goal-reaching task with a sparse reward."""

    @property
    def horizon(self) -> int:
        """Steps after which an episode is cut."""
        ...

    def starts(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """First states (count, s) and goals (count, g)."""
        ...

    def new_goals(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Goals (count, g) that replace reached ones."""
        ...

    def step(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """States (n, s) after actions (n, a)."""
        ...

    def observe(self, states: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """Observations (..., d)."""
        ...

    def reached(self, states: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """Whether the goal is reached, (...,) bool."""
        ...


def simulate(model: Any, scratch: Any, states: np.ndarray, controls: np.ndarray, steps: int = 1) -> np.ndarray:
    """States (positions and velocities, (n, nq + nv)) after holding controls (n, nu) for some physics steps.

    Args:
        model: a MuJoCo model.
        scratch: its `MjData`, made once; nothing of it is read.
        states: (n, nq + nv).
        controls: (n, nu), inside their range.
        steps: physics steps.
    """
    from mujoco import rollout

    full = np.zeros((len(states), 1 + states.shape[1]))  # the first number is the time
    full[:, 1:] = states
    held = np.ascontiguousarray(np.repeat(controls.astype(float)[:, None, :], steps, axis=1))
    after, _ = rollout.rollout(model, [scratch], full, held)
    return np.asarray(after[:, -1, 1:])


@dataclass(frozen=True)
class BatchRuns:
    """What P policies did in E episodes.

    Attributes:
        success: reached the goal, (P, E) bool.
        steps: until then, or the horizon, (P, E) int.
        paths: states, (P, E, horizon + 1, s), NaN after the end; empty unless asked for.
    """

    success: np.ndarray
    steps: np.ndarray
    paths: np.ndarray

    def discounted(self, gamma: float) -> np.ndarray:
        """Discounted return of the sparse reward, (P, E)."""
        return np.where(self.success, gamma ** (self.steps - 1.0), 0.0)


def run_policies(
    task: BatchTask, act: Act, states: np.ndarray, goals: np.ndarray, horizon: int | None = None, keep_paths: bool = False
) -> BatchRuns:
    """Run P policies from given states until the goal or the horizon.

    Args:
        task: what moves.
        act: see `Act`; what it says for finished episodes is ignored.
        states: first states, (P, E, s).
        goals: (P, E, g).
        horizon: steps; the task's own if None.
        keep_paths: whether to return the states on the way.

    Example:
        >>> from tasks.offline_rl.point_maze import MAZES, PointMaze
        >>> maze = PointMaze(MAZES["umaze"])
        >>> states, goals = maze.starts(3, np.random.default_rng(0))
        >>> stay = lambda obs: np.zeros((*obs.shape[:2], 2))
        >>> run_policies(maze, stay, states[None], goals[None]).steps.tolist()
        [[150, 150, 150]]
    """
    p, e, _ = states.shape
    horizon = horizon or task.horizon
    now = states.copy()
    success, steps, active = np.zeros((p, e), bool), np.full((p, e), horizon), np.ones((p, e), bool)
    paths = np.full((p, e, horizon + 1, states.shape[2]) if keep_paths else (p, e, 0, states.shape[2]), np.nan)
    if keep_paths:
        paths[:, :, 0] = now
    for t in range(1, horizon + 1):
        actions = act(task.observe(now, goals))
        now[active] = task.step(now[active], actions[active])
        if keep_paths:
            paths[active, t] = now[active]
        arrived = active & task.reached(now, goals)
        success |= arrived
        steps[arrived] = t
        active &= ~arrived
        if not active.any():
            break
    return BatchRuns(success, steps, paths)


def count_successes(
    task: BatchTask, act: Act, states: np.ndarray, goals: np.ndarray, steps: int, rngs: Sequence[Sequence[np.random.Generator]]
) -> np.ndarray:
    """Goals reached in `steps` steps when every reached goal is replaced by a new one (the Maze2D measure), (P, E).

    Args:
        task: what moves.
        act: see `Act`.
        states: (P, E, s).
        goals: (P, E, g).
        steps: in all.
        rngs: of the goals, P rows of one generator per episode.
    """
    now, target = states.copy(), goals.copy()
    later = np.stack([[task.new_goals(steps, rng) for rng in row] for row in rngs])  # (P, E, steps, g)
    count, used = np.zeros(now.shape[:2], int), np.zeros(now.shape[:2], int)
    for _ in range(steps):
        actions = act(task.observe(now, target))
        flat = task.step(now.reshape(-1, now.shape[-1]), actions.reshape(-1, actions.shape[-1]))
        now = flat.reshape(now.shape)
        arrived = task.reached(now, target)
        count += arrived
        for p, e in zip(*np.nonzero(arrived), strict=True):
            while used[p, e] < steps and task.reached(now[p, e], target[p, e]):
                target[p, e] = later[p, e, used[p, e]]
                used[p, e] += 1
    return count
