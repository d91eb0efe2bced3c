"""One arm on one data set, whatever the method, and its scores on unseen trajectories."""

import doctest

import numpy as np
import pytest
from sparse_factory import episodes

from tasks.offline_rl import offline_arms as module
from tasks.offline_rl.awr import AwrConfig
from tasks.offline_rl.cloning import CloningConfig
from tasks.offline_rl.contrastive import ContrastiveConfig
from tasks.offline_rl.cql import CqlConfig
from tasks.offline_rl.iql import IqlConfig
from tasks.offline_rl.learning_data import learning_data
from tasks.offline_rl.offline_arms import held_out_scores, train_arm
from tasks.offline_rl.rebrac import ReBracConfig
from tasks.offline_rl.td3bc import Td3BcConfig
from tasks.offline_rl.value_arms import learner_of
from tasks.offline_rl.value_learning import ValueConfig

SMALL = {"updates": 3, "hidden": (6,), "checkpoints": 1}
VALUES = {"updates": 3, "hidden": (6,), "batch": 8}


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    "config",
    [
        ContrastiveConfig(**SMALL),
        CloningConfig(**SMALL),
        IqlConfig(**VALUES),
        Td3BcConfig(**VALUES),
        ReBracConfig(**VALUES),
        CqlConfig(**VALUES),
        AwrConfig(**VALUES),
    ],
    ids=lambda c: type(c).__name__,
)
def test_every_method_gives_a_policy_per_seed_inside_the_box(config):
    ready = learning_data(episodes([12, 9, 8], [True, False, True], box=2.0))
    policies = train_arm(config, ready, [(0,), (1,)])
    actions = policies.act(np.random.default_rng(0).normal(size=(2, 5, 3)))
    assert actions.shape == (2, 5, 2)
    assert np.abs(actions).max() <= 2
    assert not np.allclose(actions[0], actions[1])
    again = train_arm(config, ready, [(0,), (1,)])
    np.testing.assert_array_equal(again.weights[0], policies.weights[0])


def test_a_configuration_of_no_method_is_refused():
    with pytest.raises(TypeError, match="no learner for a ValueConfig"):
        learner_of(ValueConfig(), None)([], 1, 1)


def test_scores_are_those_written_out():
    data = episodes([12, 9], [True, False])
    policies = train_arm(CloningConfig(**SMALL), learning_data(data), [(0,)])
    positive, negative = data.take(np.array([0])), data.take(np.array([1]))
    (scores,) = held_out_scores(policies, positive, negative)
    mean = policies.act(positive.obs[None])[0]
    slow = np.mean([-((a - m) ** 2).sum() / (2 * 0.25) for a, m in zip(positive.action, mean, strict=True)])
    assert scores["log_prob_held_out"] == pytest.approx(slow, rel=1e-5)
    assert 0 <= scores["accuracy_action"] <= 1
    assert set(held_out_scores(policies, positive, None)[0]) == {"log_prob_held_out", "accuracy_action"}
