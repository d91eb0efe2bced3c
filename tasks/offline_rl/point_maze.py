"""PointMaze of gymnasium-robotics, many episodes in step: the same MuJoCo model, one native call per time step for all of them.

A state is (x, y, vx, vy). The environment's own rules are kept: actions and velocities are clipped, the goal counts as reached within
0.45, starts and goals are cell centres with uniform noise. The gymnasium environment is the slow twin that the tests compare with.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tasks.offline_rl.batch_rollout import simulate
from tasks.offline_rl.rollout_continuous import make_environment

REACHED = 0.45
NOISE = 0.25
FASTEST = 5.0


@dataclass(frozen=True)
class MazeSpec:
    """A maze and its task.

    Attributes:
        env_id: gymnasium's name.
        horizon: steps after which an episode is cut.
        goal_cell: (row, column) of the goal, or None for a random one in every episode.
        distance: fewest cells between start and goal.
    """

    env_id: str
    horizon: int
    goal_cell: tuple[int, int] | None
    distance: int = 3


MAZES = {
    "medium": MazeSpec("PointMaze_Medium-v3", 200, (6, 6)),
    "goals": MazeSpec("PointMaze_Medium-v3", 200, None),
    "umaze": MazeSpec("PointMaze_UMaze-v3", 150, (3, 1)),
}


class PointMaze:
    """One maze, simulated for any number of episodes at once.

    Args:
        spec: which maze.

    Raises:
        AssetMissing: if mujoco or gymnasium-robotics is not installed.

    Example:
        >>> maze = PointMaze(MAZES["umaze"])
        >>> states, goals = maze.starts(2, np.random.default_rng(0))
        >>> maze.step(states, np.ones((2, 2))).shape
        (2, 4)
    """

    def __init__(self, spec: MazeSpec) -> None:
        import mujoco

        self.spec = spec
        self._env = make_maze(spec)
        self.model = self._env.unwrapped.model
        self._scratch = mujoco.MjData(self.model)
        self._maze = self._env.unwrapped.maze

    @cached_property
    def cells(self) -> np.ndarray:
        """Free cells (row, column), (n, 2)."""
        grid = self._maze.maze_map
        return np.array([(i, j) for i, row in enumerate(grid) for j, cell in enumerate(row) if cell != 1])

    @cached_property
    def walls(self) -> np.ndarray:
        """Centres of the walls, (m, 2)."""
        grid = self._maze.maze_map
        return np.array([self.centre((i, j)) for i, row in enumerate(grid) for j, cell in enumerate(row) if cell == 1])

    def centre(self, cell: Any) -> np.ndarray:
        """(x, y) of the middle of a cell."""
        return np.asarray(self._maze.cell_rowcol_to_xy(np.asarray(cell)), float)

    @cached_property
    def centres(self) -> np.ndarray:
        """Middles of the free cells, (n, 2)."""
        return np.array([self.centre(c) for c in self.cells])

    def cell_of(self, positions: np.ndarray) -> np.ndarray:
        """Index of the nearest free cell's middle, (...,) of positions (..., 2)."""
        return np.asarray(np.square(positions[..., None, :] - self.centres).sum(-1).argmin(-1))

    @cached_property
    def distances(self) -> np.ndarray:
        """Cells on the shortest path between free cells, (n, n), by breadth-first search."""
        index = {tuple(c): i for i, c in enumerate(self.cells.tolist())}
        out = np.full((len(index), len(index)), -1)
        for source in range(len(index)):
            out[source, source] = 0
            queue = deque([source])
            while queue:
                i = queue.popleft()
                row, column = self.cells[i]
                for step in ((0, 1), (1, 0), (0, -1), (-1, 0)):
                    j = index.get((int(row) + step[0], int(column) + step[1]))
                    if j is not None and out[source, j] < 0:
                        out[source, j] = out[source, i] + 1
                        queue.append(j)
        return out

    @cached_property
    def next_cell(self) -> np.ndarray:
        """Next cell on a shortest path, (n, n): `[target, here]`; of several, the one with the lowest index."""
        out = np.empty_like(self.distances)
        for target in range(len(out)):
            for here in range(len(out)):
                row, column = self.cells[here]
                near = [j for j, (r, c) in enumerate(self.cells) if abs(r - row) + abs(c - column) == 1]
                closer = [j for j in near if self.distances[target, j] < self.distances[target, here]]
                out[target, here] = closer[0] if closer else here
        return out

    def starts(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """First states (count, 4), at rest, and goals (count, 2), as the environment draws them, at least `spec.distance` cells apart."""
        if self.spec.goal_cell is None:
            goal = rng.integers(len(self.cells), size=count)
        else:
            goal = np.full(count, self.cell_of(self.centre(self.spec.goal_cell)))
        far = self.distances >= self.spec.distance
        keys = np.where(far[goal], rng.random((count, len(self.cells))), -1.0)
        start = keys.argmax(1)
        at, to = (self.centres[c] + rng.uniform(-NOISE, NOISE, (count, 2)) for c in (start, goal))
        return np.hstack([at, np.zeros((count, 2))]), to

    def step(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """States (n, 4) one time step after actions (n, 2)."""
        bounded = np.hstack([states[:, :2], np.clip(states[:, 2:], -FASTEST, FASTEST)])
        return simulate(self.model, self._scratch, bounded, np.clip(actions, -1.0, 1.0))

    def observe(self, states: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """What a policy sees: (x, y, vx, vy, goal), (..., 6)."""
        return np.concatenate([states, goals], -1)

    def new_goals(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Random goals (count, 2) anywhere in the maze."""
        return np.asarray(self.centres[rng.integers(len(self.cells), size=count)] + rng.uniform(-NOISE, NOISE, (count, 2)))

    @property
    def horizon(self) -> int:
        """Steps after which an episode is cut."""
        return self.spec.horizon

    def reached(self, states: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """Whether the goal is within reach, (...,)."""
        return np.asarray(np.linalg.norm(states[..., :2] - goals, axis=-1) <= REACHED)


def make_maze(spec: MazeSpec, continuing: bool = False) -> Any:
    """The gymnasium environment of a maze.

    Raises:
        AssetMissing: if mujoco or gymnasium-robotics is not installed.
    """
    return make_environment(spec.env_id, continuing_task=continuing, reset_target=continuing, max_episode_steps=spec.horizon)
