from __future__ import annotations

import math

import pytest
import torch

from tasks.gaussian_process.likelihoods import Bernoulli, Gaussian, Softmax, make_likelihood


def test_gaussian_expectation_is_that_of_many_draws():
    likelihood = Gaussian(1, 0.3)
    mean, variance = torch.tensor([[[[0.4], [-1.0]]]]), torch.tensor([[[[0.5], [0.2]]]])
    y = torch.tensor([[1.0, 0.0]])
    noise = torch.randn(1, 200_000, 2, 1, generator=torch.Generator().manual_seed(0))
    draws = likelihood.log_density(mean + variance.sqrt() * noise, y).mean(1)
    torch.testing.assert_close(likelihood.expected(mean, variance, y, mean)[:, 0], draws, atol=0.02, rtol=0)


def test_gaussian_density_by_hand():
    value = Gaussian(1, 4.0).log_density(torch.zeros(1, 1, 1, 1), torch.full((1, 1), 2.0)).item()
    assert value == pytest.approx(-0.5 * math.log(2 * math.pi * 4) - 0.5)


def test_classes_have_probabilities_that_sum_to_one():
    f = torch.randn(1, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    total = sum(Softmax().log_density(f, torch.full((1, 3), c)).exp() for c in range(4))
    torch.testing.assert_close(total, torch.ones(1, 1, 3))
    both = sum(Bernoulli().log_density(f[..., :1], torch.full((1, 3), float(c))).exp() for c in (0, 1))
    torch.testing.assert_close(both, torch.ones(1, 1, 3))


@pytest.mark.parametrize("likelihood", [Softmax(), Bernoulli()])
def test_one_draw_is_the_density_at_that_draw(likelihood):
    mean, variance = torch.zeros(1, 2, 3, 2), torch.ones(1, 2, 3, 1)
    y, noise = torch.ones(1, 3), torch.randn(1, 2, 3, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(likelihood.expected(mean, variance, y, noise), likelihood.log_density(noise, y))


@pytest.mark.parametrize("label", [-1, 4])
def test_labels_outside_the_classes_are_refused(label):
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.3"):
        Softmax().log_density(torch.zeros(1, 1, 1, 4), torch.full((1, 1), label))


def test_labels_other_than_zero_and_one_are_refused():
    with pytest.raises(ValueError, match="labels must be 0 or 1"):
        Bernoulli().log_density(torch.zeros(1, 1, 1, 1), torch.full((1, 1), 2.0))


def test_unknown_name_and_noise_are_refused():
    with pytest.raises(ValueError, match="unknown likelihood 'poisson'"):
        make_likelihood("poisson", 1)
    with pytest.raises(ValueError, match="noise variance must be positive, got 0"):
        make_likelihood("gaussian", 1, 0.0)
