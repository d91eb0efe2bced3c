import numpy as np
import pytest

from tasks.gridworld.layouts import cells_of, codes_of, make_level, reset, target_of
from tasks.gridworld.views import EMPTY, UNSEEN, WALL, egocentric_views, visible


@pytest.mark.parametrize("level", ["fourrooms", "goto"])
def test_views_are_minigrids_own(level):
    env = make_level(level)
    rng = np.random.default_rng(0)
    for seed in range(4):
        reset(env, seed)
        cells, target = cells_of(env)[None], target_of(env)
        free = np.argwhere(cells[0] == EMPTY)
        for x, y in free[rng.choice(len(free), 12, replace=False)]:
            for direction in range(4):
                env.agent_pos, env.agent_dir = (int(x), int(y)), direction
                ours = egocentric_views(cells, np.array([0]), np.array([[x, y]]), np.array([direction]))[0]
                np.testing.assert_array_equal(ours, codes_of(env.gen_obs()["image"], target))


def test_walls_hide_what_is_behind_them():
    clear = np.ones((1, 7, 7), bool)
    assert visible(clear).all()
    clear[0, :, 4] = False  # a wall across the view, two cells ahead
    seen = visible(clear)[0]
    assert seen[:, 4].all()
    assert not seen[:, :4].any()


def test_beyond_the_grid_there_is_wall_and_the_own_cell_reads_empty():
    cells = np.full((1, 3, 3), WALL, np.uint8)
    cells[0, 1, 1] = EMPTY
    view = egocentric_views(cells, np.array([0]), np.array([[1, 1]]), np.array([3]))[0]
    assert view[3, 6] == EMPTY
    assert view[3, 5] == WALL
    assert (view[3, :5] == UNSEEN).all()
