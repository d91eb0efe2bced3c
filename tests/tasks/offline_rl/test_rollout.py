"""Rollouts in step against one episode at a time."""

import doctest

import numpy as np
import pytest

from tasks.offline_rl import rollout
from tasks.offline_rl.environments import control_task
from tasks.offline_rl.rollout import normalised_return, random_policy, rollout_returns


@pytest.mark.parametrize("module", [rollout])
def test_examples_in_the_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0


def test_rollouts_in_step_equal_one_episode_at_a_time():
    task = control_task("cartpole")
    weights = np.random.default_rng(0).standard_normal((3, 4))

    def policy(states):
        return (np.einsum("ped,pd->pe", states, weights) > 0).astype(int)

    together = rollout_returns(task.make, policy, 3, [5, 6])
    for p in range(3):
        for e, seed in enumerate((5, 6)):
            env = task.make()
            state, _ = env.reset(seed=seed)
            total, over = 0.0, False
            while not over:
                state, reward, terminated, truncated, _ = env.step(int(state @ weights[p] > 0))
                total, over = total + reward, terminated or truncated
            assert together[p, e] == total


def test_rollouts_refuse_what_makes_no_sense():
    make = control_task("cartpole").make
    with pytest.raises(ValueError, match="at least one policy"):
        rollout_returns(make, random_policy(2, np.random.default_rng(0)), 0, [1])
    with pytest.raises(ValueError, match="chose action 5"):
        rollout_returns(make, lambda s: np.full(s.shape[:2], 5), 1, [1])


def test_normalised_returns_do_not_blow_up_without_a_gap():
    assert normalised_return(np.array([-200.0]), -200.0, -200.0) == 0
    assert np.isfinite(normalised_return(np.array([-190.0]), -200.0, -199.9)).all()


def test_a_reference_below_the_random_policy_does_not_turn_better_into_worse():
    good, bad = normalised_return(np.array([100.0, 10.0]), random=20.0, reference=9.0)
    assert good > 0 > bad
    for random, reference in ((0.0, -1.0), (float("nan"), 1.0), (-1.0, float("inf"))):
        with pytest.raises(ValueError, match="no unit"):
            normalised_return(np.array([1.0]), random, reference)
