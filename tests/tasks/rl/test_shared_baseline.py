from __future__ import annotations

import doctest

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.rl import shared_baseline
from tasks.rl.shared_baseline import group_advantages, policy_loss


@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), min_size=1, max_size=4), st.booleans())
def test_advantages_sum_to_zero_in_every_group(rewards, normalise):
    advantages = group_advantages(torch.tensor(rewards, dtype=torch.float64), normalise)
    assert advantages.sum(1).abs().max() < 1e-9 * (1 + max(abs(r) for row in rewards for r in row))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reward", [683.4640284577797, 0.1, -1e6])
def test_equal_rewards_have_no_advantage_whatever_their_mean_is_rounded_to(reward, dtype):
    assert group_advantages(torch.full((1, 3), reward, dtype=dtype), normalise=True).tolist() == [[0, 0, 0]]


def test_normalised_advantages_have_unit_spread_and_groups_without_spread_stay_zero():
    advantages = group_advantages(torch.tensor([[1.0, 2.0, 6.0], [3.0, 3.0, 3.0]]), normalise=True)
    assert advantages[0].std().item() == pytest.approx(1)
    assert advantages[1].tolist() == [0, 0, 0]


def test_the_gradient_is_that_of_the_expected_reward_when_all_outcomes_are_listed():
    """With every outcome once, weighted by its probability, -loss has the gradient of E[R]: d/dx sum p R = sum p R dlog p."""
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    rewards = torch.tensor([1.0, 4.0, -2.0], dtype=torch.float64)
    p = logits.softmax(0)
    (wanted,) = torch.autograd.grad((p * rewards).sum(), logits, retain_graph=True)
    counts = p.detach() * 3  # importance of each outcome in a mean over three
    baseline = (p.detach() * rewards).sum()
    loss = policy_loss(logits.log_softmax(0)[None], (counts * (rewards - baseline))[None])
    (got,) = torch.autograd.grad(-loss, logits)
    assert torch.allclose(got, wanted, atol=1e-12)


def test_advantages_are_constants_and_entropy_lowers_the_loss():
    log_p = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    advantages = torch.tensor([[1.0, -1.0]], requires_grad=True)
    policy_loss(log_p, advantages, torch.tensor([0.7]), 0.5).backward()
    assert advantages.grad is None
    assert policy_loss(log_p, advantages, torch.tensor([0.7]), 0.5).item() == pytest.approx(policy_loss(log_p, advantages).item() - 0.35)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: group_advantages(torch.zeros(3)), r"shape \(B, S\)"),
        (lambda: group_advantages(torch.zeros(3, 1)), "S >= 2"),
        (lambda: group_advantages(torch.tensor([[1.0, torch.inf]])), "1 of 2 rewards are not finite"),
        (lambda: policy_loss(torch.zeros(1, 2), torch.zeros(1, 3)), "one shape"),
        (lambda: policy_loss(torch.zeros(1, 2), torch.zeros(1, 2), None, -1.0), "at least 0, got -1"),
        (lambda: policy_loss(torch.zeros(1, 2), torch.zeros(1, 2), None, 0.1), "no entropy"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_examples():
    assert doctest.testmod(shared_baseline).failed == 0
