"""The arm in step against the gymnasium environment, and its scripted behaviour."""

import doctest

import numpy as np

from tasks.offline_rl import reacher as module
from tasks.offline_rl.episodes import check_sparse
from tasks.offline_rl.reacher import BEHAVIOURS, Reacher, collect_reacher, joints_for
from tasks.offline_rl.rollout_continuous import make_environment


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(module).failed == 0


def test_steps_and_observations_are_those_of_the_environment():
    env, arm = make_environment("Reacher-v5").unwrapped, Reacher()
    observation, _ = env.reset(seed=0)
    state = np.r_[env.data.qpos, env.data.qvel][None]
    rng = np.random.default_rng(0)
    for _ in range(40):
        action = rng.uniform(-1, 1, 2)
        observation, *_ = env.step(action)
        state = arm.step(state, action[None])
        np.testing.assert_allclose(arm.observe(state, state[:, 2:4])[0, :8], observation[:8], atol=1e-4)
        # The environment reads the tip at the last stage of its integrator, which differs where a joint meets its limit.
        np.testing.assert_allclose(arm.observe(state, state[:, 2:4])[0, 8:], observation[8:], atol=5e-3)


def test_inverse_kinematics_put_the_tip_on_the_target():
    arm = Reacher()
    _, goals = arm.starts(200, np.random.default_rng(0))
    assert np.linalg.norm(goals, axis=1).max() <= 0.2
    goals = goals[np.linalg.norm(goals, axis=1) > 0.02]
    states = np.hstack([joints_for(goals), np.zeros((len(goals), 6))])
    np.testing.assert_allclose(arm.tip(states), goals, atol=1e-9)
    assert arm.reached(states, goals).all()


def test_experts_reach_and_the_rest_mostly_does_not():
    data, kinds = collect_reacher(BEHAVIOURS, 100, np.random.default_rng(0))
    check_sparse(data)
    won = data.returns > 0
    assert won[kinds == "expert"].mean() > 0.9
    assert won[kinds != "expert"].mean() < 0.4
    again, _ = collect_reacher(BEHAVIOURS, 100, np.random.default_rng(0))
    assert again.digest() == data.digest()
