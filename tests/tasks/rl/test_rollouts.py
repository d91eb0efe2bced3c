import numpy as np
import pytest
from toy_corridor import Corridor, fair

from tasks.rl.rollouts import choose, replay, roll_out


def test_it_equals_one_agent_after_the_other():
    world, config = Corridor(), np.array([0, 1, 2, 0])
    uniforms = np.random.default_rng(0).random((20, 4))
    found = roll_out(world, world.reset(config), config, fair, uniforms)
    for i, c in enumerate(config):
        at, places, t = c % 3, {int(c % 3) * 3 // 9}, 0
        while t < 20:
            action = int(uniforms[t, i] >= 0.5)
            assert (found.observation[t, i], found.action[t, i]) == (at, action)
            at = min(max(at + 2 * action - 1, 0), 8)
            places.add(at * 3 // 9)
            t += 1
            if at == 8:
                break
        assert found.length[i] == t
        assert found.places[i] == sum(1 << p for p in places)
        assert found.returns[i] == (1 - 0.5 * t / 20 if at == 8 else 0.0)
    assert found.steps == world.stepped


def test_a_late_start_has_fewer_steps_left_and_a_lower_reward():
    world = Corridor()
    right = np.ones((20, 2)) - 1e-9
    found = roll_out(world, world.reset(np.array([0, 0])), np.zeros(2, int), fair, right, begin=np.array([0, 15]))
    assert found.length.tolist() == [8, 5]
    assert found.returns.tolist() == [1 - 0.5 * 8 / 20, 0.0]
    assert found.success.tolist() == [True, False]


def test_a_state_restored_by_replay_continues_as_the_episode_did():
    world, config = Corridor(), np.array([0, 1, 2])
    uniforms = np.random.default_rng(3).random((20, 3))
    episode = roll_out(world, world.reset(config), config, fair, uniforms)
    steps = np.minimum(episode.length // 2, 6)
    state = replay(world, config, episode.action, steps)
    tail = np.stack([np.pad(uniforms[s:, i], (0, s)) for i, s in enumerate(steps)], 1)
    again = roll_out(world, state, config, fair, tail, begin=steps)
    np.testing.assert_array_equal(again.returns, episode.returns)
    np.testing.assert_array_equal(again.length, episode.length - steps)


def test_actions_have_their_probabilities():
    p = np.tile([[0.2, 0.5, 0.3]], (30_000, 1))
    share = np.bincount(choose(p, np.random.default_rng(0).random(30_000))) / 30_000
    np.testing.assert_allclose(share, p[0], atol=0.01)


def test_too_few_uniforms_are_refused():
    world = Corridor()
    with pytest.raises(ValueError, match="may take 20 steps"):
        roll_out(world, world.reset(np.array([0])), np.array([0]), fair, np.zeros((5, 1)))
