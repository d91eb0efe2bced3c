from itertools import islice

import numpy as np
import pytest
from toy_corridor import Corridor, policy

from tasks.rl.fine_tuning import Arm, fine_tune, in_rounds, vine_batch
from tasks.rl.rollouts import roll_out
from tasks.rl.vines import grow_vines

ARMS = {
    "ppo": Arm(episodes=24, minibatch=64),
    "reinforce": Arm(update="reinforce", episodes=12, actor_rate=0.01),
    "poly": Arm(objective="polychromic", episodes=4, minibatch=64),
    "mean": Arm(objective="mean", episodes=4, minibatch=64, ucb=0.01),
    "single": Arm(objective="single", episodes=4, minibatch=64),
}


@pytest.mark.parametrize("name", ARMS)
def test_every_step_is_paid_for_and_all_arms_end_within_one_batch_of_the_budget(name):
    world, seen = Corridor(), []
    taken = fine_tune(policy(), world, 6, ARMS[name], 3000, np.random.default_rng(0), lambda n, told: seen.append(n))
    assert 3000 <= taken < 3000 + max(np.diff([0, *seen]))
    assert len(seen) == 1 or seen[-2] < 3000
    replayed = world.stepped - taken  # restored states are replayed, not sampled
    assert replayed >= 0
    assert (replayed == 0) == (ARMS[name].objective is None)


@pytest.mark.parametrize("name", ["ppo", "reinforce", "poly"])
def test_the_corridor_is_learned(name):
    p, world = policy(), Corridor()
    told = []
    fine_tune(
        p,
        world,
        6,
        ARMS[name].model_copy(update={"actor_rate": 0.01, "critic_rate": 0.01}),
        8000,
        np.random.default_rng(1),
        lambda n, t: told.append(t),
    )
    assert told[-1]["length"] < told[0]["length"] - 2


def test_the_run_is_a_function_of_its_generator():
    ends = []
    for seed in (0, 0, 1):
        p = policy()
        fine_tune(p, Corridor(), 6, ARMS["poly"], 800, np.random.default_rng(seed))
        ends.append(p.behaviour(np.arange(9)).copy())
    assert np.array_equal(ends[0], ends[1])
    assert not np.array_equal(ends[0], ends[2])


def test_configurations_come_in_turn():
    batches = list(islice(in_rounds(5, 3, np.random.default_rng(0)), 5))
    assert sorted(np.concatenate(batches)) == sorted([*range(5)] * 3)


def grown(arm, seed=0):
    world, p, rng = Corridor(), policy(), np.random.default_rng(seed)
    config = np.arange(6)
    episodes = roll_out(world, world.reset(config), config, p.behaviour, rng.random((20, 6)))
    vines = grow_vines(world, episodes, p.behaviour, 2, arm.vines, rng)
    return p, episodes, vines, vine_batch(p, episodes, vines, arm, np.random.default_rng(5))


@pytest.mark.parametrize("window", [0, 3, 100])
def test_the_window_gets_the_advantage_of_the_sets_and_all_other_steps_get_gae(window):
    arm = Arm(objective="polychromic", window=window)
    _, episodes, vines, (batch, found) = grown(arm)
    alive = vines.trajectories.alive
    inside = np.concatenate([np.zeros(episodes.steps, bool), (np.arange(len(alive))[:, None] <= window)[alive.nonzero()[0], 0]])
    shared = np.broadcast_to(found.advantage.reshape(-1), alive.shape)[alive]
    times = np.broadcast_to(found.weight.reshape(-1), alive.shape)[alive]
    at = inside[episodes.steps :]
    np.testing.assert_allclose(batch.advantage[inside], shared[at])
    np.testing.assert_allclose(batch.weight[inside], times[at])
    assert (batch.weight[~inside] == 1).all()
    assert batch.advantage[~inside].mean() == pytest.approx(0, abs=1e-9)
    assert batch.advantage[~inside].std() == pytest.approx(1, abs=1e-4)
    assert len(batch) == episodes.steps + vines.trajectories.steps


def test_without_any_diversity_the_window_is_silent_or_falls_back_to_gae():
    for fallback in ("none", "gae"):
        arm = Arm(objective="polychromic", fallback=fallback, window=100)
        world, p, rng = Corridor(length=30), policy(30), np.random.default_rng(0)
        world.place = lambda state: np.zeros(len(state.at), np.int64)  # one place: no diversity anywhere
        config = np.arange(6)
        episodes = roll_out(world, world.reset(config), config, p.behaviour, rng.random((20, 6)))
        vines = grow_vines(world, episodes, p.behaviour, 2, 8, rng)
        batch, found = vine_batch(p, episodes, vines, arm, rng)
        assert found.scale == 0
        assert bool(batch.advantage[episodes.steps :].any()) == (fallback == "gae")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective": "polychromic", "set_size": 9}, r"1..8 \(vines of a state\), got 9"),
        ({"objective": "polychromic", "sets": 0}, "sets"),
        ({"window": -1}, "window"),
        ({"objective": "mean", "update": "reinforce"}, "update 'ppo'"),
        ({"objective": "best"}, "objective"),
        ({"clip": 0.0}, "clip"),
    ],
)
def test_arms_that_make_no_sense_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Arm(**change)


def test_a_budget_below_one_is_refused():
    with pytest.raises(ValueError, match="budget"):
        fine_tune(policy(), Corridor(), 6, ARMS["ppo"], 0, np.random.default_rng(0))
