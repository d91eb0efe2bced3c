"""Layouts of MiniGrid's FourRooms and of BabyAI's GoTo with open doors, read from the real environments: walls, targets, starts.

A configuration is what `env.reset(seed=...)` makes. Both levels are still while the agent turns and walks: nothing moves, no door closes.
So a layout is an array of cells, and whoever simulates it needs no environment any more.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tasks.common.assets import AssetMissing
from tasks.gridworld.views import DOOR, EMPTY, OBJECT, TARGET, WALL

Level = Literal["fourrooms", "goto"]
LEVELS: dict[str, str] = {"fourrooms": "MiniGrid-FourRooms-v0", "goto": "BabyAI-GoToOpen-v0"}


@dataclass(frozen=True)
class Layouts:
    """L configurations of one level.

    Attributes:
        level: `fourrooms` (enter the goal) or `goto` (stand before a named object, looking at it).
        cells: codes (L, W, H) of `tasks.gridworld.views`, x first.
        start: x, y, direction (L, 3).
        seed: seed (L,) of the reset that makes the configuration.
    """

    level: Level
    cells: np.ndarray
    start: np.ndarray
    seed: np.ndarray

    def __len__(self) -> int:
        return len(self.cells)

    def take(self, rows: np.ndarray | slice) -> Layouts:
        """Some of the configurations."""
        return replace(self, cells=self.cells[rows], start=self.start[rows], seed=self.seed[rows])


def make_level(level: str, max_steps: int = 100) -> Any:
    """The real environment behind a level, without gymnasium's wrappers.

    Raises:
        ValueError: for an unknown level.
        AssetMissing: if minigrid is not installed.
    """
    if level not in LEVELS:
        raise ValueError(f"unknown level {level!r}; known: {', '.join(LEVELS)}")
    return make_minigrid(LEVELS[level], max_steps)


def make_minigrid(env_id: str, max_steps: int) -> Any:
    """Any environment that minigrid registers, without wrappers, with a time limit of its own.

    Raises:
        AssetMissing: if minigrid is not installed.
    """
    import gymnasium

    try:
        import minigrid  # noqa: F401  registers the environments
    except ImportError:
        raise AssetMissing("minigrid", "pip install 'iclr2026-flows[rl]'") from None
    return gymnasium.make(env_id, max_steps=max_steps, disable_env_checker=True).unwrapped


def read_layouts(level: Level, seeds: Sequence[int]) -> Layouts:
    """Reset the real environment with each seed and read what is there.

    Raises:
        ValueError: for an unknown level, or without seeds.

    Example:
        >>> layouts = read_layouts("fourrooms", range(2))
        >>> layouts.cells.shape, int((layouts.cells == TARGET).sum())
        ((2, 19, 19), 2)
    """
    if not len(seeds):
        raise ValueError("seeds is empty; give at least one configuration")
    env = make_level(level)
    cells, start = [], []
    for seed in seeds:
        reset(env, int(seed))
        cells.append(cells_of(env))
        start.append([*map(int, env.agent_pos), int(env.agent_dir)])
    return Layouts(level, np.stack(cells), np.array(start, np.int64), np.asarray(seeds, np.int64))


def reset(env: Any, seed: int) -> dict[str, Any]:
    """First observation of a configuration; minigrid's remarks about rejected draws are kept off the terminal."""
    with redirect_stdout(io.StringIO()):
        observation, _ = env.reset(seed=seed)
    return dict(observation)


def cells_of(env: Any) -> np.ndarray:
    """Codes (W, H) of a real environment's grid."""
    return codes_of(env.grid.encode(), target_of(env))


def target_of(env: Any) -> tuple[int, int | None]:
    """Type and colour index of what is to be reached; FourRooms' goal has one colour."""
    from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX

    if not hasattr(env, "instrs"):
        return OBJECT_TO_IDX["goal"], None
    described = env.instrs.desc
    return OBJECT_TO_IDX[described.type], COLOR_TO_IDX[described.color]


def codes_of(encoded: np.ndarray, target: tuple[int, int | None]) -> np.ndarray:
    """Cell codes of minigrid's (type, colour, state) triples (..., 3), unseen cells included."""
    from minigrid.core.constants import OBJECT_TO_IDX

    table = np.full(len(OBJECT_TO_IDX), OBJECT, np.uint8)
    table[[OBJECT_TO_IDX[name] for name in ("unseen", "empty", "wall", "door")]] = (0, EMPTY, WALL, DOOR)
    codes = np.asarray(table[encoded[..., 0]])
    matches = encoded[..., 0] == target[0]
    if target[1] is not None:
        matches &= encoded[..., 1] == target[1]
    codes[matches] = TARGET
    return codes


def rooms_of(level: str, width: int, height: int) -> np.ndarray:
    """Room number (W, H) of every cell; a doorway belongs to the room on its right or below."""
    pitch = {"fourrooms": 9, "goto": 7}[level]
    columns, rows = ((size - 2) // pitch for size in (width, height))
    x, y = np.meshgrid(np.arange(width), np.arange(height), indexing="ij")
    return np.asarray(np.minimum(x // pitch, columns) + (columns + 1) * np.minimum(y // pitch, rows))


def moved_starts(layouts: Layouts, rng: np.random.Generator) -> Layouts:
    """The same layouts with the agent in a free cell of another room, in a random direction."""
    room = rooms_of(layouts.level, *layouts.cells.shape[1:])
    start = layouts.start.copy()
    for i, (x, y, _) in enumerate(layouts.start):
        free = np.argwhere((layouts.cells[i] == EMPTY) & (room != room[x, y]))
        start[i] = [*free[rng.integers(len(free))], rng.integers(4)]
    return replace(layouts, start=start)


def write_layouts(path: Path, layouts: Layouts) -> None:
    """Write as a small NPZ."""
    np.savez_compressed(path, level=np.array(layouts.level), cells=layouts.cells, start=layouts.start, seed=layouts.seed)


def load_layouts(path: Path) -> Layouts:
    """What `write_layouts` wrote."""
    with np.load(path) as kept:
        return Layouts(str(kept["level"]), kept["cells"], kept["start"], kept["seed"])  # type: ignore[arg-type]
