import numpy as np
import pytest

from tasks.gridworld.layouts import load_layouts, make_level, moved_starts, read_layouts, reset, rooms_of, write_layouts
from tasks.gridworld.views import DOOR, EMPTY, OBJECT, TARGET, WALL


def test_a_layout_holds_what_the_environment_holds(tmp_path):
    layouts = read_layouts("fourrooms", [3, 8])
    env = make_level("fourrooms")
    for i, seed in enumerate([3, 8]):
        reset(env, seed)
        for x in range(19):
            for y in range(19):
                kind = getattr(env.grid.get(x, y), "type", None)
                assert layouts.cells[i, x, y] == {None: EMPTY, "wall": WALL, "goal": TARGET}[kind]
        assert layouts.start[i].tolist() == [*env.agent_pos, env.agent_dir]
    write_layouts(tmp_path / "a.npz", layouts)
    again = load_layouts(tmp_path / "a.npz")
    assert again.level == "fourrooms"
    for name in ("cells", "start", "seed"):
        np.testing.assert_array_equal(getattr(again, name), getattr(layouts, name))


def test_objects_that_fit_the_instruction_are_targets():
    layouts = read_layouts("goto", [5])
    env = make_level("goto")
    reset(env, 5)
    fits = {tuple(map(int, p)) for p in env.instrs.desc.obj_poss}
    assert {tuple(map(int, p)) for p in np.argwhere(layouts.cells[0] == TARGET)} == fits
    assert (layouts.cells[0] == DOOR).sum() > 3
    assert (layouts.cells[0] == OBJECT).sum() + len(fits) == 18


@pytest.mark.parametrize(("level", "size", "rooms"), [("fourrooms", 19, 4), ("goto", 22, 9)])
def test_rooms_are_the_levels_rooms_and_every_cell_has_one(level, size, rooms):
    found = rooms_of(level, size, size)
    assert set(found.ravel()) == set(range(rooms))
    pitch = 9 if level == "fourrooms" else 7
    side = int(rooms**0.5)
    for x in range(size):
        for y in range(size):
            assert found[x, y] == min(x // pitch, side - 1) + side * min(y // pitch, side - 1)


def test_moved_starts_are_free_and_elsewhere():
    layouts = read_layouts("fourrooms", range(12))
    moved = moved_starts(layouts, np.random.default_rng(0))
    room = rooms_of("fourrooms", 19, 19)
    for i in range(12):
        x, y, direction = moved.start[i]
        assert layouts.cells[i, x, y] == EMPTY
        assert room[x, y] != room[tuple(layouts.start[i][:2])]
        assert 0 <= direction < 4
    np.testing.assert_array_equal(moved.cells, layouts.cells)
    np.testing.assert_array_equal(moved.start, moved_starts(layouts, np.random.default_rng(0)).start)


def test_unknown_levels_and_no_seeds_are_refused():
    with pytest.raises(ValueError, match="unknown level 'maze'; known: fourrooms, goto"):
        make_level("maze")
    with pytest.raises(ValueError, match="seeds is empty"):
        read_layouts("fourrooms", [])
