from collections import deque

import numpy as np
import pytest

from tasks.gridworld.demonstrations import bot_paths, distances, shortest_paths
from tasks.gridworld.layouts import read_layouts
from tasks.gridworld.static_worlds import StaticWorlds


def breadth_first(worlds, config):
    """Fewest actions from the start, by a queue."""
    start = int(worlds.reset(np.array([config])).row[0])
    queue, known = deque([(start, 0)]), {start}
    while queue:
        row, steps = queue.popleft()
        for nearby in map(int, worlds.following[config, row]):
            if worlds.reached[config, nearby]:
                return steps + 1
            if nearby not in known:
                known.add(nearby)
                queue.append((nearby, steps + 1))
    return None


@pytest.mark.parametrize("level", ["fourrooms", "goto"])
def test_distances_are_those_of_a_breadth_first_search(level):
    worlds = StaticWorlds(read_layouts(level, range(6)))
    found = distances(worlds)
    for config in range(6):
        assert found[config, worlds.reset(np.array([config])).row[0]] == (breadth_first(worlds, config) or found.max())


def test_shortest_paths_lead_to_the_goal_in_the_fewest_steps():
    worlds = StaticWorlds(read_layouts("fourrooms", range(8)))
    demos, distance = shortest_paths(worlds, np.random.default_rng(0)), distances(worlds)
    for config in range(8):
        own = demos.layout == config
        state = worlds.reset(np.array([config]))
        assert own.sum() == distance[config, state.row[0]]
        for view, action in zip(demos.view[own], demos.action[own], strict=True):
            np.testing.assert_array_equal(view, worlds.views[worlds.observe(state)[0]])
            state, success = worlds.step(state, np.array([action]))
        assert success[0]
    assert demos.given_up == 0


def test_the_bots_ways_replay_in_the_twin():
    layouts = read_layouts("goto", range(3))
    worlds, demos = StaticWorlds(layouts), bot_paths(layouts, 100)
    assert len(set(demos.layout)) == 3 - demos.given_up > 0
    for config in set(demos.layout.tolist()):
        state, own = worlds.reset(np.array([config])), demos.layout == config
        for view, action in zip(demos.view[own], demos.action[own], strict=True):
            np.testing.assert_array_equal(view, worlds.views[worlds.observe(state)[0]])
            state, success = worlds.step(state, np.array([action]))
        assert success[0]


def test_the_bot_needs_instructions():
    with pytest.raises(ValueError, match="take shortest_paths"):
        bot_paths(read_layouts("fourrooms", [0]), 100)
