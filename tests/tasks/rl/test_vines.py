import numpy as np
import pytest
from toy_corridor import Corridor, fair

from tasks.rl.rollouts import roll_out
from tasks.rl.vines import grow_vines, rollout_steps


def episodes(world, count=6, seed=0):
    config = np.arange(count)
    return roll_out(world, world.reset(config), config, fair, np.random.default_rng(seed).random((world.horizon, count)))


def test_rollout_steps_are_spread_over_the_episode_and_short_ones_have_none():
    assert rollout_steps(np.array([100, 10, 3, 2, 1]), 2).tolist() == [[33, 66], [3, 6], [1, 2], [-1, -1], [-1, -1]]
    with pytest.raises(ValueError, match="at least 1"):
        rollout_steps(np.array([5]), 0)


def test_vines_start_where_the_episode_was():
    world = Corridor()
    seeds = episodes(world)
    vines = grow_vines(world, seeds, fair, states=2, group_size=5, rng=np.random.default_rng(1))
    grown = vines.trajectories
    steps = rollout_steps(seeds.length, 2)
    assert len(grown.config) == 5 * 2 * 6 - 5 * vines.skipped
    group = 0
    for i in range(6):
        for step in steps[i]:
            own = slice(5 * group, 5 * group + 5)
            assert (grown.begin[own] == step).all()
            assert (grown.observation[0, own] == seeds.observation[step, i]).all()
            group += 1
    assert (grown.begin + grown.length <= world.horizon).all()


def test_vines_of_a_state_are_independent_of_each_other():
    world = Corridor()
    vines = grow_vines(world, episodes(world), fair, 1, 16, np.random.default_rng(2))
    assert all(len({tuple(a) for a in vines.trajectories.action[:4, 16 * g : 16 * g + 16].T}) > 3 for g in range(6))


def test_episodes_without_room_are_counted_and_give_nothing():
    world = Corridor(length=2)
    short = roll_out(
        world, world.reset(np.zeros(3, int)), np.zeros(3, int), lambda o: np.tile([[0.0, 1.0]], (len(o), 1)), np.full((20, 3), 0.5)
    )
    vines = grow_vines(world, short, fair, 2, 4, np.random.default_rng(0))
    assert vines.skipped == 6
    assert vines.trajectories.steps == 0
