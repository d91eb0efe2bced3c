"""MiniGrid's egocentric view for many agents at once: what lies in the 7 x 7 cells ahead, and which of them are hidden by walls.

Cells are small whole numbers (`UNSEEN` and so on); the geometry and the visibility rule are those of `minigrid`, which the tests hold
this module against. Nothing here knows about rewards or policies.
"""

from __future__ import annotations

import numpy as np

UNSEEN, EMPTY, WALL, TARGET, DOOR, OBJECT = range(6)
VIEW = 7
DIRECTIONS = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])
"""Unit steps (x, y) of the directions right, down, left, up."""


def egocentric_views(cells: np.ndarray, layout: np.ndarray, position: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """What N agents see.

    Args:
        cells: codes of L layouts (L, W, H), first coordinate x; no cell is `UNSEEN`.
        layout: which layout each agent is in (N,).
        position: (N, 2), x and y.
        direction: (N,), 0..3.

    Returns:
        codes (N, 7, 7) uint8, indexed as minigrid's image: [column from left, row from far]; the agent stands at [3, 6], and its own
        cell reads `EMPTY`.

    Example:
        >>> cells = np.full((1, 5, 5), WALL, np.uint8)
        >>> cells[0, 1:4, 1:4] = EMPTY
        >>> view = egocentric_views(cells, np.array([0]), np.array([[1, 2]]), np.array([0]))
        >>> view[0, 3].tolist()  # straight ahead, far to near: hidden, wall, two free cells, the agent's own
        [0, 0, 0, 2, 1, 1, 1]
    """
    forward = DIRECTIONS[direction]  # (N, 2)
    right = np.stack([-forward[:, 1], forward[:, 0]], 1)
    across, ahead = np.meshgrid(np.arange(VIEW) - VIEW // 2, VIEW - 1 - np.arange(VIEW), indexing="ij")  # (7, 7)
    where = position[:, None, None] + forward[:, None, None] * ahead[..., None] + right[:, None, None] * across[..., None]
    x, y = where[..., 0], where[..., 1]
    inside = (x >= 0) & (x < cells.shape[1]) & (y >= 0) & (y < cells.shape[2])
    seen = cells[layout[:, None, None], np.where(inside, x, 0), np.where(inside, y, 0)]
    codes = np.where(inside, seen, WALL).astype(np.uint8)
    codes[~visible(codes != WALL)] = UNSEEN
    codes[:, VIEW // 2, VIEW - 1] = EMPTY
    return codes


def visible(transparent: np.ndarray) -> np.ndarray:
    """Cells (N, 7, 7) that light from the agent's cell reaches, by minigrid's sweep from the agent's row away from it.

    Args:
        transparent: whether one can look through a cell (N, 7, 7).
    """
    n = transparent.shape[0]
    lit = np.zeros((VIEW, VIEW, n), bool)  # agents last: every step works on whole rows
    clear = np.ascontiguousarray(transparent.transpose(1, 2, 0))
    lit[VIEW // 2, VIEW - 1] = True
    for j in reversed(range(VIEW)):
        for columns, step in ((range(VIEW - 1), 1), (reversed(range(1, VIEW)), -1)):
            for i in columns:
                passes = lit[i, j] & clear[i, j]
                lit[i + step, j] |= passes
                if j > 0:
                    lit[i + step, j - 1] |= passes
                    lit[i, j - 1] |= passes
    return np.ascontiguousarray(lit.transpose(2, 0, 1))
