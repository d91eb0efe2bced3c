"""Policies as arrays: the same function as the network, kept on disk exactly."""

import doctest

import numpy as np
import pytest
import torch
from sparse_factory import episodes

from tasks.offline_rl import policies as module
from tasks.offline_rl.learning_data import learning_data
from tasks.offline_rl.policies import Policies, policies_of, read_policies, stack_policies, write_policies
from tasks.offline_rl.stacked import StackedMlp


@pytest.fixture
def made():
    parts = [learning_data(episodes([8, 6], [True, False], seed=s, box=2.0)) for s in (0, 1)]
    net = StackedMlp([torch.Generator().manual_seed(s) for s in (0, 1)], (3, 8, 2), squash=True)
    return parts, net, policies_of(net.weights(), parts)


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(module).failed == 0


def test_acting_is_the_network_in_the_units_of_the_environment(made):
    parts, net, policies = made
    obs = np.random.default_rng(0).normal(size=(2, 7, 3))
    unit = torch.stack([torch.as_tensor(p.standardise(x), dtype=torch.float32) for p, x in zip(parts, obs, strict=True)])
    np.testing.assert_allclose(policies.act(obs), 2 * net(unit).detach().numpy(), atol=1e-5)


def test_an_actor_with_a_spread_keeps_its_mean(made):
    parts, _, _ = made
    net = StackedMlp([torch.Generator().manual_seed(s) for s in (0, 1)], (3, 8, 4))
    policies = policies_of(net.weights(), parts)
    unit = torch.zeros(2, 1, 3)
    np.testing.assert_allclose(policies.mean_action(unit.numpy()), net(unit)[..., :2].tanh().detach().numpy(), atol=1e-6)


def test_they_come_back_exactly_and_can_be_picked_and_joined(made, tmp_path):
    _, _, policies = made
    write_policies(tmp_path / "p.safetensors", {"a/10": policies, "b/2": policies.take([1])})
    back = read_policies(tmp_path / "p.safetensors")
    assert sorted(back) == ["a/10", "b/2"]
    obs = np.random.default_rng(0).normal(size=(2, 4, 3))
    np.testing.assert_array_equal(back["a/10"].act(obs), policies.act(obs))
    joined = stack_policies([policies.take([1]), policies])
    np.testing.assert_allclose(joined.act(obs[[1, 0, 1]])[0], policies.act(obs)[1], atol=1e-6)


def test_mismatched_arrays_are_refused(made):
    _, _, policies = made
    with pytest.raises(ValueError, match="same leading axis"):
        Policies(policies.weights, policies.mean[:1], policies.scale, policies.low, policies.high)
    with pytest.raises(ValueError, match="the data differ"):
        Policies(policies.weights, policies.mean[:, :2], policies.scale, policies.low, policies.high)
    with pytest.raises(ValueError, match="no policies"):
        stack_policies([])
