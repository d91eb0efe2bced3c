import numpy as np
import pytest

from tasks.gridworld.layouts import moved_starts, read_layouts
from tasks.gridworld.real_worlds import RealWorlds, count_mismatches
from tasks.gridworld.static_worlds import StaticWorlds
from tasks.rl.attempts import attempt


def walker(seen):
    return np.tile(np.float32([[0.2, 0.2, 0.6]]), (len(seen), 1))


@pytest.mark.parametrize("level", ["fourrooms", "goto"])
def test_the_same_numbers_give_the_same_episodes_in_minigrid(level):
    layouts = moved_starts(read_layouts(level, range(4)), np.random.default_rng(0))
    twin = StaticWorlds(layouts)
    config, uniforms = np.array([0, 1, 2, 3, 0, 0]), np.random.default_rng(1).random((100, 6))
    ours, real = (attempt(world, walker, config, uniforms) for world in (twin, RealWorlds(twin)))
    for name in ("returns", "places", "length"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(real, name))
    np.testing.assert_array_equal(np.where(ours.alive, ours.observation, 0), np.where(real.alive, real.observation, 0))


def test_comparison_of_all_states_finds_nothing_in_the_twin_and_something_in_a_wrong_one():
    twin = StaticWorlds(read_layouts("fourrooms", [0]))
    compared, differing = count_mismatches(twin, np.array([0]))
    assert compared > 3000
    assert differing == 0
    twin.following[0, np.flatnonzero(twin.view[0] >= 0)[0], 1] = 0
    twin.reached[0, np.flatnonzero(twin.view[0] >= 0)[40]] ^= True
    assert count_mismatches(twin, np.array([0]))[1] > 0


def test_states_of_real_environments_are_not_saved():
    real = RealWorlds(StaticWorlds(read_layouts("fourrooms", [0])))
    state = real.reset(np.array([0]))
    for call in (lambda: real.save(state, np.array([0])), lambda: real.put(state, np.array([0]), state)):
        with pytest.raises(NotImplementedError, match="twin"):
            call()
