"""Behaviour policies of the maze data sets: shortest-path waypoint controllers that want the wrong thing most of the time.

Every controller heads for a target cell; kinds differ in which target, and how often it changes. All episodes of a data set run in step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.offline_rl.episodes import Episodes
from tasks.offline_rl.point_maze import MazeSpec, PointMaze

GAIN, DAMPING, NOISE = 10.0, 1.0, 0.5


@dataclass(frozen=True)
class Behaviour:
    """One kind of episode.

    Attributes:
        share: of the episodes.
        every: steps after which a new target is drawn; None keeps the first.
        to_goal: probability that a target is the goal; else it is a random free cell.
        theta: with a number, actions are an Ornstein-Uhlenbeck process that reverts at this rate and no target matters.
    """

    share: float
    every: int | None
    to_goal: float
    theta: float | None = None


BEHAVIOURS: dict[str, dict[str, Behaviour]] = {
    "medium": {"wanderer": Behaviour(0.6, 45, 0.0), "seeker": Behaviour(0.4, 15, 0.6)},
    "umaze": {"wanderer": Behaviour(0.6, 45, 0.0), "seeker": Behaviour(0.4, 15, 0.6)},
    "goals": {"expert": Behaviour(0.25, None, 1.0), "wrong_goal": Behaviour(0.55, None, 0.0), "drifter": Behaviour(0.2, None, 0.0, 0.15)},
}


def waypoint_action(maze: PointMaze, states: np.ndarray, target: np.ndarray, final: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """clip(10 (waypoint - position) - velocity + noise, -1, 1): the waypoint is the next cell, or `final` in the target's own.

    Args:
        maze: where.
        states: (n, 4).
        target: index of the cell to reach, (n,).
        final: where to go inside it, (n, 2).
        noise: (n, 2).

    Example:
        >>> from tasks.offline_rl.point_maze import MAZES
        >>> maze = PointMaze(MAZES["umaze"])
        >>> rest = np.hstack([maze.centres[:1], np.zeros((1, 2))])
        >>> waypoint_action(maze, rest, np.zeros(1, int), maze.centres[:1], np.zeros((1, 2))).tolist()
        [[0.0, 0.0]]
    """
    here = maze.cell_of(states[:, :2])
    waypoint = np.where((here == target)[:, None], final, maze.centres[maze.next_cell[target, here]])
    return np.asarray(np.clip(GAIN * (waypoint - states[:, :2]) - DAMPING * states[:, 2:] + noise, -1, 1))


def collect_maze(
    spec: MazeSpec, behaviours: Mapping[str, Behaviour], count: int, rng: np.random.Generator, maze: PointMaze | None = None
) -> tuple[Episodes, np.ndarray]:
    """Run the behaviours until the goal or the horizon, sparse reward 1 at the goal.

    Args:
        spec: maze and task.
        behaviours: kinds and their shares, which sum to 1.
        count: episodes.
        rng: starts, targets and noise.
        maze: a simulator to use.

    Returns:
        the episodes in the order of kinds, and the kind of each, (count,) str.

    Raises:
        ValueError: for shares that do not sum to 1, or fewer episodes than kinds.

    Example:
        >>> from tasks.offline_rl.point_maze import MAZES
        >>> data, kinds = collect_maze(MAZES["umaze"], BEHAVIOURS["umaze"], 5, np.random.default_rng(0))
        >>> data.n_episodes, sorted(set(kinds.tolist()))
        (5, ['seeker', 'wanderer'])
    """
    maze = maze or PointMaze(spec)
    kinds = kinds_of(behaviours, count)
    states, goals = maze.starts(count, rng)
    goal_cell = maze.cell_of(goals)
    target, final, drift = goal_cell.copy(), goals.copy(), np.zeros((count, 2))
    drifting = np.array([behaviours[k].theta is not None for k in kinds])
    obs, actions, after, active, ends = [], [], [], np.ones(count, bool), np.full(count, spec.horizon)
    for t in range(spec.horizon):
        noise = rng.normal(size=(count, 2))
        for kind, behaviour in behaviours.items():
            who = kinds == kind
            if t == 0 or (behaviour.every and t % behaviour.every == 0):
                cells, to_goal = rng.integers(len(maze.cells), size=count), rng.random(count) < behaviour.to_goal
                target[who] = np.where(to_goal, goal_cell, cells)[who]
                final[who] = np.where(to_goal[:, None], goals, maze.centres[cells])[who]
            if behaviour.theta is not None:
                drift[who] += (-behaviour.theta * drift + 0.4 * noise)[who]
        action = waypoint_action(maze, states, target, final, NOISE * noise)
        action[drifting] = np.clip(drift[drifting], -1, 1)
        following = states.copy()
        following[active] = maze.step(states[active], action[active])
        obs.append(np.hstack([states, goals]))
        actions.append(action)
        after.append(np.hstack([following, goals]))
        arrived = active & maze.reached(following, goals)
        ends[arrived] = t + 1
        active &= ~arrived
        states = following
        if not active.any():
            break
    about = {"environment": spec.env_id, "horizon": spec.horizon, "goal_cell": list(spec.goal_cell) if spec.goal_cell else None}
    return as_episodes(np.stack(obs, 1), np.stack(actions, 1), np.stack(after, 1), ends, ~active, about), kinds


def kinds_of(behaviours: Mapping[str, Behaviour], count: int) -> np.ndarray:
    """Kind of each of `count` episodes, in blocks, (count,) str.

    Raises:
        ValueError: for shares that do not sum to 1, or fewer episodes than kinds.
    """
    total = sum(b.share for b in behaviours.values())
    if abs(total - 1) > 1e-9 or count < len(behaviours):
        raise ValueError(f"shares of the behaviours must sum to 1 and leave one episode to each, got {total} and {count} episodes")
    bounds = np.round(np.cumsum([b.share for b in behaviours.values()]) * count).astype(int)
    return np.repeat(list(behaviours), np.diff(np.r_[0, bounds]))


def as_episodes(
    obs: np.ndarray, actions: np.ndarray, after: np.ndarray, ends: np.ndarray, success: np.ndarray, about: Mapping[str, Any]
) -> Episodes:
    """Episodes that ran in step, cut where each ended.

    Args:
        obs: (count, T, d).
        actions: (count, T, a), in [-1, 1].
        after: observations that followed, (count, T, d).
        ends: number of steps of each, (count,).
        success: whether it ended at the goal, (count,).
        about: goes into the manifest.
    """
    steps = np.arange(obs.shape[1])
    taken, last = steps < ends[:, None], steps == ends[:, None] - 1  # (count, T)
    arrived = (last & success[:, None])[taken]
    return Episodes(
        obs[taken],
        actions[taken],
        arrived.astype(float),
        after[taken],
        terminated=arrived,
        truncated=(last & ~success[:, None])[taken],
        success=arrived,
        episode=np.repeat(np.arange(len(obs)), ends),
        low=-np.ones(actions.shape[2]),
        high=np.ones(actions.shape[2]),
        about=dict(about),
    )
