"""Value-based learners: each reaches the table's optimal values on a chain that is fully covered, and each formula is written out."""

import doctest
from copy import deepcopy

import numpy as np
import pytest
import torch
from sparse_factory import chain, episodes, optimal_values

from tasks.offline_rl import awr, cql, iql, rebrac, td3bc, value_learning
from tasks.offline_rl.awr import Awr, AwrConfig, returns_to_go
from tasks.offline_rl.cql import Cql, CqlConfig
from tasks.offline_rl.iql import Iql, IqlConfig, expectile_loss
from tasks.offline_rl.learning_data import DataStack, learning_data
from tasks.offline_rl.policies import policies_of
from tasks.offline_rl.rebrac import ReBracConfig
from tasks.offline_rl.rebrac import rebrac as make_rebrac
from tasks.offline_rl.td3bc import Td3Bc, Td3BcConfig
from tasks.offline_rl.value_arms import learner_of
from tasks.offline_rl.value_learning import TwinCritics, train_values, transitions

SIZES = {"gamma": 0.9, "hidden": (32,), "batch": 128, "rate": 3e-3, "target_rate": 0.05}


@pytest.mark.parametrize("module", [awr, cql, iql, rebrac, td3bc, value_learning], ids=lambda m: m.__name__.split(".")[-1])
def test_examples_in_the_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0


@pytest.fixture(scope="module")
def stack():
    return DataStack([learning_data(chain())])


def batch_of(stack, size=16, seed=0):
    rows = torch.randint(stack.sizes[0], (1, size), generator=torch.Generator().manual_seed(seed))
    return transitions(stack, rows)


@pytest.mark.parametrize(
    ("config", "tolerance"),
    [
        (IqlConfig(expectile=0.95, updates=900, **SIZES), 0.12),
        (Td3BcConfig(alpha=20.0, updates=1200, **SIZES), 0.12),
        (ReBracConfig(actor_penalty=0.05, critic_penalty=0.0, updates=1200, **SIZES), 0.12),
        (CqlConfig(alpha=0.01, temperature=0.0, updates=900, **SIZES), 0.12),
    ],
    ids=["iql", "td3bc", "rebrac", "cql"],
)
def test_values_on_the_chain_are_the_optimal_ones_and_the_policy_steps_right(stack, config, tolerance):
    kept = {}

    def make(generators, d, a):
        kept["learner"] = learner_of(config, stack)(generators, d, a)
        return kept["learner"]

    found = train_values(stack, [0], [(0,)], config, make)
    states = np.eye(5)[None, :4]
    ready = stack.parts[0]
    with torch.no_grad():
        values = kept["learner"].value(torch.as_tensor(ready.standardise(states), dtype=torch.float32))[0].numpy()
    np.testing.assert_allclose(values, optimal_values(), atol=tolerance)
    actions = policies_of(found.weights[config.updates], [ready]).act(states)[0]
    assert (actions > 0).all()


def test_the_table_of_the_chain_is_its_closed_form():
    np.testing.assert_allclose(optimal_values(), [0.9**3, 0.9**2, 0.9, 1.0])


def test_awr_values_are_the_mean_recorded_returns(stack):
    config = AwrConfig(updates=500, **SIZES)
    found = train_values(stack, [0], [(0,)], config, learner_of(config, stack))
    # One-step episodes: the return is 1 where the action steps right from the last state, half of the time.
    reached = chain().reward[chain().obs[:, 3] == 1].mean()
    assert found.expected[500][0].mean() == pytest.approx(reached, abs=0.1)
    torch.testing.assert_close(returns_to_go(stack, 0.9), stack.reward)


def test_iql_losses_are_those_of_the_paper(stack):
    config = IqlConfig(expectile=0.8, beta=3.0, hidden=(8,))
    learner = Iql([torch.Generator().manual_seed(0)], 5, 1, config)
    batch = batch_of(stack)
    with torch.no_grad():
        q = learner.target_critics(batch.obs, batch.action).amin(0)
        v, ahead = learner.values(batch.obs)[..., 0], learner.values(batch.next_obs)[..., 0]
        q_both, mu = learner.critics(batch.obs, batch.action), learner.actor(batch.obs)
        slow = 0.0
        for i in range(16):
            u = (q - v)[0, i]
            slow = slow + abs(0.8 - float(u < 0)) * u**2
            y = batch.reward[0, i] + 0.99 * batch.continuation[0, i] * ahead[0, i]
            slow = slow + sum((q_both[j, 0, i] - y) ** 2 for j in (0, 1))
            slow = slow + min(torch.exp(3 * u), torch.tensor(100.0)) * (mu[0, i] - batch.action[0, i]).square().sum()
    torch.testing.assert_close(learner.loss(batch, 0), slow / 16, atol=1e-5, rtol=1e-4)
    assert expectile_loss(torch.tensor([2.0]), 0.5).item() == 2.0


def test_td3bc_updates_its_actor_every_second_step_and_only_through_the_action(stack):
    learner = Td3Bc([torch.Generator().manual_seed(0)], 5, 1, Td3BcConfig(hidden=(8,)))
    learner.loss(batch_of(stack), 1).backward()
    assert all(t.grad is None for t in learner.actor.parameters())
    critics_alone = [t.grad.clone() for t in learner.critics.parameters()]
    other = Td3Bc([torch.Generator().manual_seed(0)], 5, 1, Td3BcConfig(hidden=(8,)))
    other.loss(batch_of(stack), 0).backward()
    assert all(t.grad.abs().sum() > 0 for t in other.actor.parameters())
    for alone, both in zip(critics_alone, other.critics.parameters(), strict=True):
        torch.testing.assert_close(alone, both.grad)


def test_td3bc_targets_bootstrap_through_truncation_but_not_through_success(stack):
    config = Td3BcConfig(hidden=(8,), noise=0.0, delay=5)
    learner = Td3Bc([torch.Generator().manual_seed(0)], 5, 1, config)
    batch = batch_of(stack, 40)
    assert {0.0, 1.0} == set(batch.continuation[0].tolist())
    with torch.no_grad():
        ahead = learner.target_critics(batch.next_obs, learner.target_actor(batch.next_obs)).amin(0)
        y = torch.where(batch.continuation > 0, batch.reward + 0.99 * ahead, batch.reward)
        slow = (learner.critics(batch.obs, batch.action) - y).square().mean(-1).sum()
    torch.testing.assert_close(learner.loss(batch, 1), slow)


def test_rebrac_subtracts_the_distance_to_the_recorded_next_action():
    stack = DataStack([learning_data(episodes([12, 9], [True, False]))])
    options = {"hidden": (8,), "actor_penalty": 0.5, "noise": 0.0}
    plain, strict = (make_rebrac([torch.Generator().manual_seed(0)], 3, 2, ReBracConfig(critic_penalty=p, **options)) for p in (0.0, 0.7))
    # beta_1 |pi - a|^2 - Q and mean over two coordinates - alpha Q have one minimum where alpha = 1 / (2 beta_1).
    assert plain.config.alpha == 1.0
    batch = batch_of(stack)
    with torch.no_grad():
        away = (plain.target_actor(batch.next_obs) - batch.next_action).square().sum(-1) * batch.has_next
        q = plain.critics(batch.obs, batch.action)
        base = plain.target_critics(batch.next_obs, plain.target_actor(batch.next_obs)).amin(0)
        y = batch.reward + 0.99 * batch.continuation * (base - 0.7 * away)
        slow = (q - y).square().mean(-1).sum()
    torch.testing.assert_close(strict.loss(batch, 1), slow)


def test_cql_densities_integrate_to_one_and_its_soft_maximum_is_the_integral(stack):
    learner = Cql([torch.Generator().manual_seed(0)], 5, 1, CqlConfig(hidden=(8,), samples=4000))
    obs = stack.obs[:1][None]
    with torch.no_grad():
        action, log_density = learner.sample(obs, 4000)
        # 1/p(a) averaged over samples is the length of the box that the policy covers, here nearly all of [-1, 1].
        assert log_density.neg().exp().mean().item() == pytest.approx(2.0, rel=0.1)
        assert action.abs().max().item() <= 1
        grid = torch.linspace(-1, 1, 2001)[None, :, None]
        q = learner.critics(obs.expand(1, 2001, 5), grid)
        exact = torch.log(q.exp().mean(-1) * 2)
        torch.testing.assert_close(learner._soft_maximum(obs)[..., 0], exact, atol=0.05, rtol=0)


def test_cql_pushes_down_what_is_not_recorded(stack):
    batch = batch_of(stack, 64)
    penalties = []
    for alpha in (0.0, 1.0):
        learner = Cql([torch.Generator().manual_seed(0)], 5, 1, CqlConfig(hidden=(8,), alpha=alpha))
        penalties.append(learner.loss(batch, 0))
    assert penalties[1].item() != pytest.approx(penalties[0].item())


def test_awr_weighs_by_the_advantage(stack):
    config = AwrConfig(hidden=(8,), temperature=0.5, largest_weight=3.0)
    learner = Awr([torch.Generator().manual_seed(0)], 5, 1, config, returns_to_go(stack, 0.99))
    batch = batch_of(stack)
    with torch.no_grad():
        r, v, mu = stack.reward[batch.rows], learner.values(batch.obs)[..., 0], learner.actor(batch.obs)
        w = torch.minimum(torch.exp((r - v) / 0.5), torch.tensor(3.0))
        slow = (r - v).square().mean() + (w * (mu - batch.action).square().sum(-1)).mean()
    torch.testing.assert_close(learner.loss(batch, 0), slow)


def test_twin_critics_differ_and_the_smaller_judges():
    critics = TwinCritics([torch.Generator().manual_seed(0)], (4, 8))
    obs, action = torch.randn(1, 6, 3), torch.zeros(1, 6, 1, requires_grad=True)
    q = critics(obs, action)
    assert q.shape == (2, 1, 6)
    assert not torch.allclose(q[0], q[1])
    torch.testing.assert_close(critics.judge(obs, action, both=True), q.amin(0))
    torch.testing.assert_close(critics.judge(obs, action), q[0])
    critics.judge(obs, action).sum().backward()
    assert all(t.grad is None for t in critics.parameters())
    assert action.grad.abs().sum() > 0


def test_learners_of_a_stack_are_those_trained_alone_and_iterates_are_kept():
    parts = [learning_data(episodes([12, 9], [True, False], seed=s)) for s in (0, 1)]
    for config in (
        Td3BcConfig(hidden=(6,), updates=6, checkpoints=(2,), batch=8),
        IqlConfig(hidden=(6,), updates=6, checkpoints=(2,), batch=8),
    ):
        both = DataStack(parts)
        together = train_values(both, [0, 1], [(0,), (1,)], config, learner_of(config, both))
        alone = DataStack(parts[1:])
        single = train_values(alone, [0], [(1,)], config, learner_of(config, alone))
        assert sorted(together.weights) == sorted(together.expected) == [2, 6]
        assert [len(v) for v in together.expected[6]] == [1, 1]
        np.testing.assert_allclose(together.expected[6][1], single.expected[6][0], atol=1e-5)
        for a, b in zip(together.weights[6], single.weights[6], strict=True):
            torch.testing.assert_close(a[1], b[0], atol=5e-6, rtol=1e-3)


def test_targets_follow_slowly(stack):
    learner = Td3Bc([torch.Generator().manual_seed(0)], 5, 1, Td3BcConfig(hidden=(8,), target_rate=0.1))
    before = deepcopy(learner.target_critics.net.weights())
    with torch.no_grad():
        for t in learner.critics.parameters():
            t.add_(1.0)
    learner.follow(1)
    torch.testing.assert_close(learner.target_critics.net.weights()[0], before[0])
    learner.follow(2)
    torch.testing.assert_close(learner.target_critics.net.weights()[0], before[0] + 0.1)


@pytest.mark.parametrize(("field", "value"), [("gamma", 1.0), ("target_rate", 0.0), ("batch", 0), ("updates", 0)])
def test_impossible_settings_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        Td3BcConfig(**{field: value})
    with pytest.raises(ValueError, match="expectile"):
        IqlConfig(expectile=1.0)
