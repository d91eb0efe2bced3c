import numpy as np
import pytest
import torch
from toy_corridor import policy

from tasks.rl.ppo import Batch, clipped_surrogate, minibatches, ppo_update


def a_batch(p, count=40, seed=0):
    rng = np.random.default_rng(seed)
    seen, action = rng.integers(0, 9, count), rng.integers(0, 2, count)
    return Batch(seen, action, p.behaviour(seen), rng.normal(size=count), rng.integers(0, 3, count).astype(float), rng.random(count))


def test_at_the_behaviour_policy_the_ratio_is_one_and_the_gradient_is_the_policy_gradient():
    p = policy()
    b = a_batch(p)
    action, weight, advantage = (torch.from_numpy(np.asarray(x)) for x in (b.action, b.weight, b.advantage))
    log_policy = p.logits(b.observation).log_softmax(-1)
    found = clipped_surrogate(log_policy, action, torch.from_numpy(b.probability), advantage, weight)
    assert found.clipped.item() == 0
    assert found.kl.item() == pytest.approx(0, abs=1e-6)
    ours = torch.autograd.grad(found.gain, list(p.actor.parameters()), retain_graph=True)
    plain = (log_policy.gather(1, action[:, None])[:, 0] * weight * advantage).mean()
    for a, b_ in zip(ours, torch.autograd.grad(plain, list(p.actor.parameters())), strict=True):
        torch.testing.assert_close(a, b_, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("now", "advantage", "value"),
    [(0.9, 1.0, 1.2), (0.9, -1.0, -1.8), (0.1, 1.0, 0.2), (0.1, -1.0, -0.8)],  # behaviour 0.5: ratios 1.8 and 0.2, clipped at 1.2 and 0.8
)
def test_the_clip_takes_the_lower_of_both(now, advantage, value):
    log_policy = torch.tensor([[now, 1 - now]]).log()
    found = clipped_surrogate(log_policy, torch.tensor([0]), torch.tensor([[0.5, 0.5]]), torch.tensor([advantage]))
    assert found.gain.item() == pytest.approx(value)


def test_the_kl_and_the_entropy_are_those_of_categorical_distributions():
    q, p = torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([[0.3, 0.3, 0.4]])
    found = clipped_surrogate(p.log(), torch.tensor([0]), q, torch.tensor([1.0]))
    ours, other = (torch.distributions.Categorical(probs=x) for x in (q, p))
    assert found.kl.item() == pytest.approx(torch.distributions.kl_divergence(ours, other).item(), rel=1e-5)
    assert found.entropy.item() == pytest.approx(other.entropy().item(), rel=1e-5)


def test_an_update_makes_rewarded_actions_likelier_and_leaves_steps_without_weight():
    p = policy()
    seen, action = np.repeat([1, 2], 50), np.tile([0, 1], 50)
    advantage = np.where(action == 1, 1.0, -1.0)
    before = p.behaviour(np.array([1, 2])).copy()
    optimisers = tuple(torch.optim.Adam(n.parameters(), lr=0.01) for n in (p.actor, p.critic))
    weight = (seen == 1).astype(float)
    batch = Batch(seen, action, p.behaviour(seen), advantage, weight, np.ones(100))
    told = ppo_update(p, optimisers, batch, np.random.default_rng(0), epochs=4, minibatch=25)
    after = p.behaviour(np.array([1, 2]))
    assert after[0, 1] > before[0, 1] + 0.01
    assert told["updates"] == 16
    assert told["kl_nats"] >= 0


def test_minibatches_are_epochs_of_all_rows():
    parts = list(minibatches(10, 4, 2, np.random.default_rng(0)))
    assert [len(x) for x in parts] == [4, 3, 3, 4, 3, 3]
    assert sorted(np.concatenate(parts[:3])) == list(range(10))
    with pytest.raises(ValueError, match="at least 1"):
        next(minibatches(0, 4, 1, np.random.default_rng(0)))


def test_a_loss_that_is_not_finite_stops_training():
    p = policy()
    b = a_batch(p)
    b.advantage[0], b.weight[0] = np.nan, 1.0
    optimisers = tuple(torch.optim.Adam(n.parameters()) for n in (p.actor, p.critic))
    with pytest.raises(FloatingPointError, match="learning rates"):
        ppo_update(p, optimisers, b, np.random.default_rng(0))


def test_a_clip_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="clip must be positive, got 0"):
        clipped_surrogate(torch.zeros(1, 2), torch.tensor([0]), torch.ones(1, 2) / 2, torch.ones(1), clip=0)
