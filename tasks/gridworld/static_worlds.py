"""A batched twin of MiniGrid for levels that stay still: every state (x, y, direction) of every layout is a row of tables.

A step is a look-up, a saved state is a whole number, and thousands of agents move at once. Observations are numbers of distinct views,
so that a policy is evaluated once for each distinct view and never twice for the same one. The twin is only as good as its agreement with
minigrid: `tasks.gridworld.parity` compares the two state by state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.gridworld.layouts import Layouts, rooms_of
from tasks.gridworld.views import DIRECTIONS, DOOR, EMPTY, TARGET, VIEW, WALL, egocentric_views

LEFT, RIGHT, FORWARD = range(3)
ACTIONS = 3


@dataclass(frozen=True)
class Places:
    """Where N agents are: configuration (N,) and row (N,) of its tables."""

    config: np.ndarray
    row: np.ndarray

    def take(self, rows: np.ndarray) -> Places:
        """Some agents, any of them several times: what was saved is copied."""
        return Places(self.config[rows], self.row[rows])

    def __len__(self) -> int:
        return len(self.row)


class StaticWorlds:
    """L layouts as tables over their S = W * H * 4 states.

    Attributes:
        horizon: steps of an episode.
        actions: 3: left, right, forward.
        views: codes (U, 50) of the distinct observations: 49 cells and the direction.
        following: next state (L, S, 3).
        reached: whether arriving in a state (L, S) ends the episode with success.
        room: room (L, S) of a state.
        view: number (L, S) of a state's observation, -1 where no agent can stand.
    """

    actions = ACTIONS

    def __init__(self, layouts: Layouts, horizon: int = 100) -> None:
        if horizon < 1:
            raise ValueError(f"horizon must be at least 1, got {horizon}")
        self.layouts, self.horizon = layouts, horizon
        cells = layouts.cells
        _count, width, height = cells.shape
        x, y, direction = (a.ravel() for a in np.meshgrid(np.arange(width), np.arange(height), np.arange(4), indexing="ij"))
        self._height = height
        enters = (EMPTY, DOOR, TARGET) if layouts.level == "fourrooms" else (EMPTY, DOOR)
        free = np.isin(cells, enters)[:, x, y]  # (L, S)
        ahead = np.stack([x, y], 1) + DIRECTIONS[direction]
        inside = (ahead >= 0).all(1) & (ahead < (width, height)).all(1)
        front = np.where(inside[:, None], ahead, 0)
        facing = np.where(inside, cells[:, front[:, 0], front[:, 1]], WALL)  # (L, S)
        here = np.arange(len(x))
        step = np.where(np.isin(facing, enters), self.row_of(front[:, 0], front[:, 1], direction), here)
        turn = [np.broadcast_to(self.row_of(x, y, (direction + by) % 4), step.shape) for by in (-1, 1)]
        self.following = np.stack([*turn, step], -1).astype(np.int32)
        self.reached = free & ((cells[:, x, y] if layouts.level == "fourrooms" else facing) == TARGET)
        self.room = np.broadcast_to(rooms_of(layouts.level, width, height)[x, y].astype(np.int8), free.shape)
        layout, state = np.nonzero(free)
        seen = egocentric_views(cells, layout, np.stack([x[state], y[state]], 1), direction[state])
        codes = np.concatenate([seen.reshape(-1, VIEW * VIEW), direction[state, None].astype(np.uint8)], 1)
        packed = np.ascontiguousarray(codes).view(f"V{codes.shape[1]}").ravel()
        distinct, number = np.unique(packed, return_inverse=True)
        self.views = distinct.view(np.uint8).reshape(-1, codes.shape[1])
        self.view = np.full(free.shape, -1, np.int32)
        self.view[layout, state] = number
        self._known: dict[bytes, int] | None = None

    def row_of(self, x: np.ndarray, y: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """Number of a state in the tables."""
        return np.asarray((x * self._height + y) * 4 + direction)

    def coordinates(self, row: np.ndarray) -> np.ndarray:
        """x, y, direction (N, 3) of states (N,)."""
        return np.stack([row // (4 * self._height), row // 4 % self._height, row % 4], -1)

    def reset(self, config: np.ndarray) -> Places:
        """Agents at the starts of configurations (N,).

        Raises:
            ValueError: for a configuration that does not exist.
        """
        config = np.asarray(config, np.int64)
        if len(config) and not (config.min() >= 0 and config.max() < len(self.layouts)):
            raise ValueError(f"configurations must lie in 0..{len(self.layouts) - 1}, got {config.min()}..{config.max()}")
        return Places(config, self.row_of(*self.layouts.start[config].T))

    def observe(self, state: Places) -> np.ndarray:
        """Numbers (N,) of what the agents see."""
        return np.asarray(self.view[state.config, state.row])

    def place(self, state: Places) -> np.ndarray:
        """Rooms (N,) that the agents are in."""
        return np.asarray(self.room[state.config, state.row])

    def step(self, state: Places, action: np.ndarray) -> tuple[Places, np.ndarray]:
        """Next states, and whether (N,) they end the episode with success."""
        row = self.following[state.config, state.row, action]
        return Places(state.config, row), self.reached[state.config, row]

    def save(self, state: Places, rows: np.ndarray) -> Places:
        """Independent copies of states; nothing here moves in place."""
        return state.take(rows)

    def put(self, state: Places, rows: np.ndarray, part: Places) -> Places:
        """States with some rows replaced."""
        row = state.row.copy()
        row[rows] = part.row
        return Places(state.config, row)

    def number_of(self, codes: np.ndarray) -> np.ndarray:
        """Numbers (N,) of observations that come as codes (N, 50), for example from minigrid itself.

        Raises:
            KeyError: for an observation that no state of these layouts has.
        """
        if self._known is None:
            self._known = {row.tobytes(): i for i, row in enumerate(self.views)}
        try:
            return np.array([self._known[row.tobytes()] for row in np.ascontiguousarray(codes, np.uint8)], np.int64)
        except KeyError:
            raise KeyError("an observation that the twin does not know: it disagrees with the environment") from None


def one_hot_views(views: np.ndarray, kinds: int) -> np.ndarray:
    """Observations (U, 50) as network inputs (U, 49 * kinds + 4), float32: a one for the kind of each cell and for the direction.

    Raises:
        ValueError: for a code outside 0..kinds-1.
    """
    if views.size and views[:, :-1].max() >= kinds:
        raise ValueError(f"cell codes must lie below {kinds}, got {views[:, :-1].max()}")
    cells = (views[:, :-1, None] == np.arange(kinds)).reshape(len(views), -1)
    return np.concatenate([cells, views[:, -1:] == np.arange(4)], 1).astype(np.float32)
