"""The twin against minigrid, step by step."""

import numpy as np
import pytest

from tasks.gridworld.demonstrations import distances, view_codes
from tasks.gridworld.layouts import make_level, read_layouts, reset, target_of
from tasks.gridworld.static_worlds import FORWARD, StaticWorlds, one_hot_views
from tasks.gridworld.views import DOOR, EMPTY
from tasks.rl.rollouts import replay, roll_out


@pytest.fixture(scope="module")
def worlds():
    return {level: StaticWorlds(read_layouts(level, range(20))) for level in ("fourrooms", "goto")}


@pytest.mark.parametrize("level", ["fourrooms", "goto"])
def test_random_walks_agree_with_minigrid(worlds, level):
    """20 configurations, 100 steps each: view, position, direction, termination and its time."""
    twin, env = worlds[level], make_level(level)
    rng = np.random.default_rng(0)
    bumped = compared = 0
    for config in range(20):
        shown, state, target = reset(env, config), twin.reset(np.array([config])), None
        target = target_of(env)
        for _ in range(100):
            np.testing.assert_array_equal(view_codes(shown, target), twin.views[twin.observe(state)[0]])
            action = int(rng.choice(3, p=[0.15, 0.15, 0.7]))
            before = state.row.copy()
            shown, reward, terminated, _, _ = env.step(action)
            state, success = twin.step(state, np.array([action]))
            bumped += action == FORWARD and (before == state.row).all()
            compared += 1
            assert twin.coordinates(state.row)[0].tolist() == [*env.agent_pos, env.agent_dir]
            assert bool(success[0]) == (terminated and reward > 0)
            if terminated:
                break
    assert compared > 1000
    assert bumped > 50


@pytest.mark.parametrize("level", ["fourrooms", "goto"])
def test_the_shortest_way_through_doors_succeeds_in_minigrid_at_the_same_step(worlds, level):
    twin, env = worlds[level], make_level(level)
    distance, through_doors, solved = distances(twin), 0, 0
    for config in range(20):
        state = twin.reset(np.array([config]))
        left = int(distance[config, state.row[0]])
        if left > 100:
            continue
        reset(env, config)
        for step in range(left):
            nearer = [
                a
                for a in range(3)
                if distance[config, twin.following[config, state.row[0], a]] == left - step - 1
                or (twin.reached[config, twin.following[config, state.row[0], a]] and left - step == 1)
            ]
            state, success = twin.step(state, np.array([nearer[0]]))
            _, reward, terminated, _, _ = env.step(nearer[0])
            x, y, _ = twin.coordinates(state.row)[0]
            through_doors += twin.layouts.cells[config, x, y] == DOOR or (level == "fourrooms" and (x == 9) ^ (y == 9))
            assert bool(success[0]) == terminated == (step == left - 1)
        assert reward > 0
        solved += 1
    assert solved >= 15
    assert through_doors >= 10


def test_a_vine_from_a_saved_state_repeats_the_tail_of_its_episode(worlds):
    twin = worlds["fourrooms"]
    config = np.arange(8)
    uniforms = np.random.default_rng(1).random((100, 8))
    behaviour = lambda seen: np.tile(np.float32([[0.2, 0.2, 0.6]]), (len(seen), 1))  # noqa: E731
    episode = roll_out(twin, twin.reset(config), config, behaviour, uniforms)
    steps = episode.length // 3
    saved = twin.save(replay(twin, config, episode.action, steps), np.arange(8))
    tail = np.stack([np.pad(uniforms[s:, i], (0, s)) for i, s in enumerate(steps)], 1)
    vine = roll_out(twin, saved, config, behaviour, tail, begin=steps)
    np.testing.assert_array_equal(vine.returns, episode.returns)
    for i, s in enumerate(steps):
        np.testing.assert_array_equal(vine.observation[: vine.length[i], i], episode.observation[s : episode.length[i], i])


def test_one_hot_views_say_each_cell_and_the_direction():
    views = np.zeros((2, 50), np.uint8)
    views[0, 7], views[0, 49], views[1, 49] = EMPTY, 2, 3
    inputs = one_hot_views(views, 4)
    assert inputs.shape == (2, 200)
    assert (inputs.sum(1) == 50).all()
    assert inputs[0, 7 * 4 + EMPTY] == inputs[0, 196 + 2] == inputs[1, 199] == 1
    with pytest.raises(ValueError, match="below 4, got 9"):
        one_hot_views(np.full((1, 50), 9, np.uint8), 4)


def test_what_does_not_exist_is_refused(worlds):
    with pytest.raises(ValueError, match=r"0..19, got 20..20"):
        worlds["fourrooms"].reset(np.array([20]))
    with pytest.raises(KeyError, match="does not know"):
        worlds["fourrooms"].number_of(np.full((1, 50), 3, np.uint8))
    with pytest.raises(ValueError, match="horizon"):
        StaticWorlds(worlds["fourrooms"].layouts, 0)
