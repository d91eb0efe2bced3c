"""The Bradley-Terry loss: closed forms, limits, invariances."""

import doctest
import math

import numpy as np
import pytest
import torch

from tasks.offline_rl import preference as module
from tasks.offline_rl.preference import gaussian_log_prob, preference_loss, segment_score


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(module).failed == 0


def test_with_one_step_and_lambda_one_it_is_binary_cross_entropy():
    positive, negative = torch.randn(2, 50, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    loss = preference_loss(segment_score(positive, 0.3), segment_score(negative, 0.3), 1.0)
    logit = 0.3 * (positive - negative)[:, 0]
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logit, torch.ones(50, dtype=torch.float64), reduction="none")
    torch.testing.assert_close(loss, expected)


def test_it_is_the_share_of_exponentials_of_the_paper():
    s_plus, s_minus, bias = 0.7, -0.4, 0.6
    share = math.exp(s_plus) / (math.exp(s_plus) + math.exp(bias * s_minus))
    assert preference_loss(torch.tensor([s_plus]), torch.tensor([s_minus]), bias).item() == pytest.approx(-math.log(share), rel=1e-6)


def test_a_small_bias_leaves_a_monotone_function_of_the_positives():
    scores = torch.linspace(-3, 3, 7)
    loss = preference_loss(scores, torch.full((7,), -5.0), 1e-9)
    torch.testing.assert_close(loss, torch.nn.functional.softplus(-scores), atol=1e-6, rtol=0)
    assert bool((loss.diff() < 0).all())


def test_equal_scores_give_log_two():
    assert preference_loss(torch.tensor(3.0), torch.tensor(3.0)).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("gamma", [1.0, 0.8])
def test_shifting_all_log_probabilities_moves_the_logit_by_the_biased_sum(gamma):
    positive, negative = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    alpha, shift = 0.4, 2.5

    def logit(bias, c):
        return (segment_score(positive + c, alpha, gamma) - bias * segment_score(negative + c, alpha, gamma)).item()

    weights = sum(gamma**t for t in range(6))
    for bias in (0.3, 1.0):
        assert logit(bias, shift) - logit(bias, 0.0) == pytest.approx(alpha * shift * weights * (1 - bias), abs=1e-9)


def test_huge_scores_stay_finite_and_gradients_match_differences():
    for size in (1e3, 1e6):
        s = torch.tensor([size, -size], requires_grad=True)
        loss = preference_loss(s, -s, 0.5)
        loss.sum().backward()
        assert bool(torch.isfinite(loss).all())
        assert bool(torch.isfinite(s.grad).all())
    scores = torch.randn(2, 5, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(2))
    assert torch.autograd.gradcheck(lambda s: preference_loss(s[0], s[1], 0.7), (scores,))


@pytest.mark.parametrize("alpha", [0.05, 1.0])
def test_the_minimiser_of_a_single_pair_extrapolates_away_from_the_failure(alpha):
    action, failure, bias = torch.tensor([0.2]), torch.tensor([0.5]), 0.5
    grid = torch.linspace(-1, 1, 4001)[:, None]
    good, bad = (gaussian_log_prob(grid, x.expand(4001, 1), 0.5)[:, None] for x in (action, failure))
    best = grid[preference_loss(segment_score(good, alpha), segment_score(bad, alpha), bias).argmin()].item()
    assert best == pytest.approx(((action - bias * failure) / (1 - bias)).item(), abs=1e-3)  # (0.2 - 0.25) / 0.5 = -0.1


def test_the_log_likelihood_is_the_gaussian_without_its_constant():
    mean, action = torch.zeros(1, 2), torch.tensor([[0.3, -0.4]])
    assert gaussian_log_prob(mean, action, 0.5).item() == pytest.approx(-(0.09 + 0.16) / 0.5)
    assert gaussian_log_prob(mean, action, 0.5**0.5).item() == pytest.approx(-0.25)


def test_scores_equal_the_sum_written_out():
    log_prob = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    slow = [sum(0.9**t * 0.2 * log_prob[i, t].item() for t in range(5)) for i in range(4)]
    np.testing.assert_allclose(segment_score(log_prob, 0.2, 0.9).numpy(), slow)


@pytest.mark.parametrize("bias", [0.0, -0.1, 1.5, torch.tensor([0.5, 1.2])])
def test_a_bias_outside_its_range_is_refused(bias):
    with pytest.raises(ValueError, match=r"lambda must lie in \(0, 1\]"):
        preference_loss(torch.zeros(2), torch.zeros(2), bias)


def test_other_bad_values_are_refused():
    with pytest.raises(ValueError, match="spread must be positive"):
        gaussian_log_prob(torch.zeros(1, 2), torch.zeros(1, 2), 0.0)
    with pytest.raises(ValueError, match="2 action coordinates, the data 3"):
        gaussian_log_prob(torch.zeros(1, 2), torch.zeros(1, 3), 1.0)
    with pytest.raises(ValueError, match="gamma"):
        segment_score(torch.zeros(1, 2), 1.0, 0.0)
