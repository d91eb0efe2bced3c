from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.diffusion.ancestral import GammaTable, ReverseChain, reverse_step, sub_grid, tabulate_gamma

DRAWS = 200_000


def gaussian(variance):
    """Exact noise predictor and gamma of N(0, diag(variance))."""
    v = torch.as_tensor(variance, dtype=torch.float32)

    def eps(u, abar):
        return (1 - abar) ** 0.5 * u / (abar * v + 1 - abar)

    return eps, lambda abar: (1 - abar) / (abar * np.asarray(variance, dtype=float) + 1 - abar)


def two_modes(u, abar, m=1.6, v=0.7):
    total = abar * v + 1 - abar
    mean = abar**0.5 * m
    return (1 - abar) ** 0.5 * (u - mean * torch.tanh(u * mean / total)) / total


@pytest.mark.parametrize("n_sub", [16, 64])
@pytest.mark.parametrize(("v", "rho"), [(4.0, 1.0), (1.0, 0.3), (0.5, 2.0), (4.0, 3.0)])
def test_analytic_variance_gives_the_exact_conditional_of_a_gaussian(v, rho, n_sub):
    eps, gamma = gaussian([v])
    chain = ReverseChain(eps, gamma, n_sub, "analytic")
    u = chain.sample(torch.full((DRAWS, 1), 2.0), rho, torch.Generator().manual_seed(0))
    assert u.mean().item() == pytest.approx(v / (v + rho**2) * 2.0, rel=0.02)
    assert u.var().item() == pytest.approx(v * rho**2 / (v + rho**2), rel=0.02)


def test_the_other_variances_lose_some_on_few_levels():
    eps, gamma = gaussian([4.0])
    truth = 0.8
    lost = {}
    for variance in ("analytic", "forward", "posterior"):
        for n_sub in (16, 64):
            u = ReverseChain(eps, gamma, n_sub, variance).sample(torch.full((DRAWS, 1), 2.0), 1.0, torch.Generator().manual_seed(0))
            lost[variance, n_sub] = 1 - u.var().item() / truth
    assert 0.20 < lost["posterior", 16] < 0.35
    assert 0.05 < lost["posterior", 64] < 0.12
    assert 0.04 < lost["forward", 16] < 0.14
    assert 0.015 < lost["forward", 64] < 0.05
    assert abs(lost["analytic", 16]) < 0.01


def test_diagonal_variance_is_exact_for_unequal_columns_where_one_number_is_not():
    v, rho = [4.0, 0.25], 1.0
    eps, gamma = gaussian(v)
    truth = np.array(v) * rho**2 / (np.array(v) + rho**2)
    errors = {}
    for variance in ("diagonal", "analytic"):
        u = ReverseChain(eps, gamma, 16, variance).sample(torch.zeros(DRAWS, 2), rho, torch.Generator().manual_seed(0))
        errors[variance] = np.abs(u.var(0).numpy() / truth - 1)
    assert errors["diagonal"].max() < 0.015
    assert 0.02 < errors["analytic"].max() < 0.12


def test_posterior_mean_of_a_mixture():
    m, v, rho, z = 1.6, 0.7, 1.2, 0.4
    chain = ReverseChain(two_modes, lambda abar: table(abar), 16, "analytic")
    rng = torch.Generator().manual_seed(0)
    sign = 2.0 * torch.randint(2, (50_000, 1), generator=rng) - 1
    table = tabulate_gamma(two_modes, m * sign + v**0.5 * torch.randn(50_000, 1, generator=rng), 0.01, 3.0, rng)
    u = chain.sample(torch.full((DRAWS, 1), z), rho, rng)
    total = v + rho**2
    weight = np.tanh(z * m / total)  # difference of the two responsibilities
    gain = v / total
    assert u.mean().item() == pytest.approx(gain * z + (1 - gain) * m * weight, abs=0.015)


def test_one_step_by_hand():
    step = reverse_step(0.25, 0.5, "posterior")
    # alpha = 1/2: (u - (1/2)/sqrt(3/4) eps) / sqrt(1/2), variance (1/2)(1/2)/(3/4) = 1/3
    assert step.keep == pytest.approx(2**0.5)
    assert step.remove == pytest.approx(0.5 / 0.75**0.5 * 2**0.5)
    assert float(step.spread) ** 2 == pytest.approx(1 / 3)
    assert float(reverse_step(0.25, 0.5, "forward").spread) ** 2 == pytest.approx(1 / 2)
    # c = sqrt(1/2)(1/2)/(3/4); + c^2 (3/4)/(1/4) (1 - 0.6)
    c = 0.5**0.5 * 0.5 / 0.75
    assert float(reverse_step(0.25, 0.5, "analytic", 0.6).spread) ** 2 == pytest.approx(1 / 3 + c**2 * 3 * 0.4)
    assert float(reverse_step(0.25, 0.5, "analytic", 1.7).spread) ** 2 == pytest.approx(1 / 3)


def test_the_last_step_removes_all_noise_unless_the_analytic_variance_knows_better():
    assert float(reverse_step(0.99, 1.0, "posterior").spread) == 0.0
    assert float(reverse_step(0.99, 1.0, "forward").spread) == 0.0
    assert float(reverse_step(0.99, 1.0, "analytic", 0.5).spread) ** 2 == pytest.approx(0.01 / 0.99 * 0.5)


@given(st.floats(0.05, 50), st.integers(2, 40))
def test_levels_start_at_rho_and_fall_evenly_in_log_ratio(rho, n_sub):
    abar = sub_grid(rho, n_sub)
    ratios = np.sqrt(1 / abar - 1)
    assert ratios[0] == pytest.approx(rho)
    assert ratios[-1] ** 2 == pytest.approx(min(1e-2, rho**2 / 100))
    np.testing.assert_allclose(np.diff(np.log(ratios), 2), 0, atol=1e-6)


def test_levels_stop_at_the_first_trained_one():
    assert np.sqrt(1 / sub_grid(0.3, 5, least=0.2)[-1] - 1) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("rho", "n_sub", "least", "message"), [(0.0, 4, 0.0, "above 0"), (0.1, 4, 0.2, "above 0.2"), (1.0, 0, 0.0, "n_sub")]
)
def test_impossible_grids_are_refused(rho, n_sub, least, message):
    with pytest.raises(ValueError, match=message):
        sub_grid(rho, n_sub, least)


def test_steps_must_go_towards_the_signal():
    with pytest.raises(ValueError, match="0 < abar_t < abar_s"):
        reverse_step(0.5, 0.5, "posterior")


def test_rho_beyond_the_trained_levels_is_refused():
    eps, gamma = gaussian([1.0])
    with pytest.raises(ValueError, match="at most 2, the last trained"):
        ReverseChain(eps, gamma, largest=2.0).steps(2.5)


def test_the_table_of_gamma_interpolates_the_closed_form():
    v = np.array([4.0, 0.5])
    eps, gamma = gaussian(v)
    rows = torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor(v).sqrt().float()
    table = tabulate_gamma(eps, rows, 0.02, 20.0, torch.Generator().manual_seed(1))
    for abar in (0.99, 0.7, 0.31, 0.05):
        np.testing.assert_allclose(table(abar), gamma(abar), rtol=0.04)
    assert table.scalar()(0.31) == pytest.approx(table(0.31).mean())
    assert GammaTable(np.array([0.0, 1.0]), np.array([2.0, 4.0]))(1 / (1 + np.exp(0.25))) == pytest.approx(2.5)


def test_a_generator_makes_it_repeatable_and_the_same_coefficients_are_kept():
    eps, gamma = gaussian([1.0, 2.0])
    chain = ReverseChain(eps, gamma, 4)
    a, b = (chain.sample(torch.ones(3, 2), 0.7, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(a, b)
    assert chain.steps(0.7) is chain.steps(0.7)
