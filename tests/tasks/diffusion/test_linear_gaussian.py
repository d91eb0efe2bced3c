"""Closed forms, an independent stiff solver, and a step-by-step simulation of the chains."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad, solve_ivp

from tasks.diffusion import linear_gaussian
from tasks.diffusion.linear_gaussian import (
    OrnsteinUhlenbeck,
    doob_coefficient,
    doob_drift,
    gaussian_kl,
    marginal_mean,
    marginal_variance,
    reverse_chain,
    sampler_marginals,
)

PROCESSES = [OrnsteinUhlenbeck(), OrnsteinUhlenbeck(lam=0.5, g=0.7), OrnsteinUhlenbeck(lam=2.0, g=0.5)]


def test_examples():
    assert doctest.testmod(linear_gaussian).failed == 0


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("sigma", [0.1, 0.3, 1.0])
def test_marginals_without_bridge_solve_their_ode(process, sigma):
    t, eps = np.linspace(0.05, 0.95, 7), 1e-5

    def kappa(time):
        return process.decay(time) ** 2 * sigma**2 + process.noise_variance(time)

    slope = (kappa(t + eps) - kappa(t - eps)) / (2 * eps)
    np.testing.assert_allclose(slope, -2 * process.lam * kappa(t) + process.g**2, atol=1e-8)
    np.testing.assert_allclose(marginal_variance(process, sigma, 20, doob=False), kappa(np.arange(21) / 20))


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("sigma", [0.1, 0.3, 1.0])
def test_bridge_variance_agrees_with_a_stiff_solver(process, sigma):
    def slope(t, kappa):
        c = doob_coefficient(process, sigma, t)
        return -2 * (process.lam + c) * kappa + process.g**2 + 2 * c * process.decay(t) * sigma**2

    times = np.arange(1, 11) / 10
    solved = solve_ivp(slope, (1e-5, 1.0), [sigma**2], method="Radau", t_eval=times, rtol=1e-8, atol=1e-10)
    ours = marginal_variance(process, sigma)[200::200]
    np.testing.assert_allclose(ours, solved.y[0], atol=2e-3)


@pytest.mark.parametrize("sigma", [0.1, 0.3, 1.0])
def test_bridge_variance_agrees_with_its_integral(sigma):
    # With s = q / a^2 and b = 2 lam / g^2 the ODE becomes linear in kappa / a^2 and integrates to
    # ((sigma^2 + s) / s)^2 int_0^s [u^2 / (sigma^2 + u)^2 + 2 sigma^4 u sqrt(1 + b u) / (sigma^2 + u)^3] du.
    process = OrnsteinUhlenbeck(lam=0.8, g=1.2)
    v, b = sigma**2, 2 * process.lam / process.g**2
    for t in (0.2, 0.6, 1.0):
        a2 = float(process.decay(t)) ** 2
        s = float(process.noise_variance(t)) / a2
        area, _ = quad(lambda u: u**2 / (v + u) ** 2 + 2 * v**2 * u * np.sqrt(1 + b * u) / (v + u) ** 3, 0, s)
        expected = a2 * ((v + s) / s) ** 2 * area
        assert marginal_variance(process, sigma)[round(2000 * t)] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("t", [0.2, 0.5, 1.0])
def test_mean_solves_its_ode_with_any_pull(t):
    process, eps = OrnsteinUhlenbeck(lam=0.9), 1e-5
    slope = (marginal_mean(process, 2.0, t + eps) - marginal_mean(process, 2.0, t - eps)) / (2 * eps)
    for c in (0.0, 1.0, float(doob_coefficient(process, 0.3, t))):
        m = marginal_mean(process, 2.0, t)
        assert slope == pytest.approx(-(process.lam + c) * m + c * process.decay(t) * 2.0, abs=1e-8)


@pytest.mark.parametrize("t", [0.1, 0.5, 1.0])
def test_doob_drift_is_the_gradient_of_the_posterior_of_the_start(t):
    process, sigma, mu = OrnsteinUhlenbeck(lam=0.7, g=1.1), 0.4, 0.5

    def log_posterior(u, start):  # p(U_0 | U_t) by Bayes' rule
        a, q = process.decay(t), process.noise_variance(t)
        prior = stats.norm.logpdf(start, mu, sigma)
        return prior + stats.norm.logpdf(u, a * start, q**0.5) - stats.norm.logpdf(u, a * mu, (a**2 * sigma**2 + q) ** 0.5)

    for u, start in ((0.3, 0.1), (-1.2, 0.9)):
        difference = (log_posterior(u + 1e-5, start) - log_posterior(u - 1e-5, start)) / 2e-5
        assert doob_drift(process, sigma, u, t, start, mu) == pytest.approx(difference, rel=1e-6, abs=1e-8)


@settings(deadline=None, max_examples=25)
@given(
    sigma=st.floats(0.05, 2.0),
    lam=st.floats(0.1, 3.0),
    g=st.floats(0.2, 2.0),
    steps=st.integers(1, 12),
    doob=st.booleans(),
)
def test_exact_chain_has_the_marginals_at_every_step(sigma, lam, g, steps, doob):
    process = OrnsteinUhlenbeck(lam, g)
    chain, at = reverse_chain(process, sigma, steps, doob), sampler_marginals(process, sigma, steps, doob)
    mean, variance = chain.start_mean, chain.start_variance
    for k in range(steps):
        mean, variance = chain.gain[k] * mean + chain.pull[k], chain.gain[k] ** 2 * variance + chain.spread[k] ** 2
        np.testing.assert_allclose([mean, variance], [at.decay[k + 1], at.kappa[k + 1]], rtol=1e-9)
    np.testing.assert_allclose([mean, variance, chain.end_mean, chain.end_variance], [1, sigma**2, 1, sigma**2], rtol=1e-9)
    np.testing.assert_allclose(chain.weight, chain.shift)  # nu: a shift of nu r costs nu r^2 / 2


def test_exact_step_without_bridge_is_the_conditional_of_the_forward_process():
    # P(U_s | U_t) of the forward process by Gaussian conditioning, for s < t.
    process, sigma = OrnsteinUhlenbeck(lam=0.6, g=0.9), 0.5
    chain = reverse_chain(process, sigma, 4, doob=False)
    kappa = marginal_variance(process, sigma, 4, doob=False)[::-1]
    for k in range(4):
        forward = process.decay(0.25)
        gain = forward * kappa[k + 1] / kappa[k]
        assert chain.gain[k] == pytest.approx(gain, rel=1e-5)
        assert chain.spread[k] ** 2 == pytest.approx(kappa[k + 1] - gain**2 * kappa[k], rel=1e-5)


@pytest.mark.parametrize("integrator", ["exact", "euler"])
def test_simulated_end_has_the_moments_that_are_claimed(integrator):
    process, rng, n = OrnsteinUhlenbeck(), np.random.default_rng(0), 200_000
    chain = reverse_chain(process, 0.3, 4, integrator=integrator)
    u = chain.start_mean * 2.0 + np.sqrt(chain.start_variance) * rng.standard_normal(n)
    for k in range(4):
        u = chain.gain[k] * u + chain.pull[k] * 2.0 + chain.spread[k] * rng.standard_normal(n)
    assert u.mean() == pytest.approx(2.0 * chain.end_mean, abs=0.005)
    assert u.var() == pytest.approx(chain.end_variance, rel=0.02)


@pytest.mark.parametrize("doob", [True, False])
def test_euler_ends_wider_than_it_should_and_converges(doob):
    chains = [reverse_chain(OrnsteinUhlenbeck(), 0.3, steps, doob, "euler") for steps in (4, 20, 500)]
    widths = [float(chain.end_variance) / 0.09 for chain in chains]
    assert chains[2].end_mean == pytest.approx(1.0, abs=0.01)
    assert widths[0] > 1.3
    assert widths[0] > widths[1] > widths[2]
    assert widths[2] == pytest.approx(1.0, abs=0.02)


def test_one_euler_step_by_hand():
    process = OrnsteinUhlenbeck()
    kappa = process.decay(1.0) ** 2 * 0.25 + process.noise_variance(1.0)
    chain = reverse_chain(process, 0.5, 1, doob=False, integrator="euler")
    assert chain.gain[0] == pytest.approx(1 + 1 - 1 / kappa)
    assert chain.pull[0] == pytest.approx(np.exp(-1) / kappa)
    assert chain.end_variance == pytest.approx((2 - 1 / kappa) ** 2 * kappa + 1)


def test_tables_of_several_sigmas_are_those_of_each():
    process, sigmas = OrnsteinUhlenbeck(), np.array([0.1, 0.7])
    both = sampler_marginals(process, sigmas, 5)
    for row, sigma in enumerate(sigmas):
        alone = sampler_marginals(process, sigma, 5)
        np.testing.assert_allclose(both.kappa[row], alone.kappa)
        np.testing.assert_allclose(both.information[row], alone.information)


@settings(deadline=None)
@given(st.floats(0.1, 3.0), st.floats(0.1, 3.0), st.floats(-2, 2))
def test_divergence_is_that_of_monte_carlo(vq, vp, distance):
    x = distance + np.sqrt(vq) * stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
    expected = (stats.norm.logpdf(x, distance, vq**0.5) - stats.norm.logpdf(x, 0, vp**0.5)).mean()
    assert gaussian_kl(distance**2, 1, vq, vp) == pytest.approx(expected, abs=0.02)
    assert gaussian_kl(distance**2, 5, vq, vp) >= 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: OrnsteinUhlenbeck(lam=0.0), "lam and g must be positive, got 0.0"),
        (lambda: OrnsteinUhlenbeck(g=-1.0), "got 1.0 and -1.0"),
        (lambda: reverse_chain(OrnsteinUhlenbeck(), 0.0, 3), "sigma must be positive, got 0.0"),
        (lambda: reverse_chain(OrnsteinUhlenbeck(), 0.3, 0), "K must be at least 1, got 0"),
        (lambda: reverse_chain(OrnsteinUhlenbeck(), 0.3, 3, integrator="heun"), "unknown integrator 'heun'"),
        (lambda: doob_coefficient(OrnsteinUhlenbeck(), 0.3, 0.0), "times must lie in"),
        (lambda: marginal_variance(OrnsteinUhlenbeck(), 0.3, 0), "steps must be at least 1, got 0"),
        (lambda: gaussian_kl(0.0, 1, 0.0, 1.0), "variances must be positive"),
    ],
)
def test_impossible_values_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("doob", [True, False])
def test_moving_the_end_costs_the_same_for_any_number_of_steps(doob):
    # A shift of the end by 1 is a sum of later gains times shifts; the cheapest corrections cost 1 / (2 sum of squared gains times nu).
    costs = []
    for steps in (1, 4, 20):
        chain = reverse_chain(OrnsteinUhlenbeck(), 0.3, steps, doob)
        after = np.array([np.prod(chain.gain[k + 1 :]) for k in range(steps)])
        costs.append(0.5 / (after**2 * chain.shift**2 / chain.weight).sum())
    np.testing.assert_allclose(costs, costs[0], rtol=2e-3)
    forgotten = 1 - np.exp(-sampler_marginals(OrnsteinUhlenbeck(), 0.3, 4, doob).information.sum())
    assert costs[0] == pytest.approx(0.5 / (0.09 * forgotten), rel=2e-3)
