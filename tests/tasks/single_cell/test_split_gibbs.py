from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.diffusion.ancestral import GammaTable, ReverseChain, tabulate_gamma
from tasks.single_cell.priors import FlatPrior, MixturePrior, gaussian_prior
from tasks.single_cell.split_gibbs import (
    Draws,
    GaussianLikelihood,
    GibbsParams,
    StudentTLikelihood,
    rho_schedule,
    run_chains,
)


def problem(seed=0, n=5, d=12, k=3):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), rng.standard_normal((d, k)), np.exp(rng.standard_normal(d)), rng.standard_normal((n, k))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


class AnalyticScore:
    """Reverse chains with the exact noise predictor of N(0, variance I): a prior without a network."""

    def __init__(self, variance, n_sub=16):
        def eps(u, abar):
            return (1 - abar) ** 0.5 * u / (abar * variance + 1 - abar)

        self.chain = ReverseChain(eps, lambda abar: np.asarray((1 - abar) / (abar * variance + 1 - abar)), n_sub, "analytic")

    def sample(self, z, rho, generator):
        return self.chain.sample(z, rho, generator)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.floats(0.05, 20))
def test_likelihood_step_against_a_direct_solve(seed, rho):
    x, v, noise, u = problem(seed)
    mean, covariance = GaussianLikelihood(x, v, noise).conditional(torch.as_tensor(u), rho)
    precision = v.T @ np.diag(1 / noise) @ v + np.eye(3) / rho**2
    for i in range(len(x)):
        slow = np.linalg.solve(precision, v.T @ np.diag(1 / noise) @ x[i] + u[i] / rho**2)
        np.testing.assert_allclose(mean[i], slow, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), rtol=1e-8, atol=1e-10)


def test_without_coupling_it_is_generalised_least_squares_and_with_all_of_it_u():
    x, v, noise, u = problem()
    likelihood = GaussianLikelihood(x, v, noise)
    weights = np.diag(1 / noise)
    gls = np.linalg.solve(v.T @ weights @ v, v.T @ weights @ x.T).T
    np.testing.assert_allclose(likelihood.conditional(torch.as_tensor(u), np.inf)[0], gls, rtol=1e-8)
    mean, covariance = likelihood.conditional(torch.as_tensor(u), 1e-6)
    np.testing.assert_allclose(mean, u, atol=1e-9)
    assert covariance.abs().max() < 1e-11


def test_draws_have_the_conditional_moments():
    x, v, noise, u = problem(n=1)
    likelihood = GaussianLikelihood(np.repeat(x, 100_000, axis=0), v, noise)
    z = likelihood.draw(torch.as_tensor(np.repeat(u, 100_000, axis=0)), 0.8, generator())
    mean, covariance = GaussianLikelihood(x, v, noise).conditional(torch.as_tensor(u), 0.8)
    sd = covariance.diagonal().sqrt().numpy()
    np.testing.assert_allclose(z.mean(0), mean[0], atol=5 * sd.max() / 100_000**0.5)
    np.testing.assert_allclose(np.cov(z.numpy(), rowvar=False), covariance, atol=0.02 * sd.max() ** 2)


def test_what_is_orthogonal_to_the_weighted_loadings_changes_nothing():
    x, v, noise, u = problem()
    w = np.random.default_rng(1).standard_normal(x.shape)
    a = v / noise[:, None]
    w -= w @ a @ np.linalg.solve(a.T @ a, a.T)  # V^T Sigma^-1 w = 0
    plain, moved = (GaussianLikelihood(y, v, noise).draw(torch.as_tensor(u), 1.0, generator()) for y in (x, x + 5 * w))
    torch.testing.assert_close(plain, moved, rtol=0, atol=1e-9)


def test_turning_the_basis_turns_the_result():
    x, v, noise, _ = problem(n=200)
    q = np.linalg.qr(np.random.default_rng(3).standard_normal((3, 3)))[0]
    covariance = np.diag([4.0, 1.0, 0.25])
    prior = MixturePrior(np.ones(1), np.zeros((1, 3)), covariance[None])
    turned = MixturePrior(np.ones(1), np.zeros((1, 3)), (q.T @ covariance @ q)[None])
    settings_ = GibbsParams(rho_start=1.0, iterations=400, burn_in=50)
    plain = run_chains(GaussianLikelihood(x, v, noise), prior, settings_, generator()).mean
    other = run_chains(GaussianLikelihood(x, v @ q, noise), turned, settings_, generator(1)).mean
    # The chains draw other numbers: their means agree up to their Monte Carlo error, their rotations do not.
    assert np.sqrt(np.square(other - plain @ q).mean()) < 0.12
    assert np.sqrt(np.square(other - plain).mean()) > 0.3


def test_turning_the_basis_turns_the_conditional_exactly():
    x, v, noise, u = problem()
    q = np.linalg.qr(np.random.default_rng(3).standard_normal((3, 3)))[0]
    plain, _ = GaussianLikelihood(x, v, noise).conditional(torch.as_tensor(u), 0.7)
    turned, _ = GaussianLikelihood(x, v @ q, noise).conditional(torch.as_tensor(u @ q), 0.7)
    np.testing.assert_allclose(turned, plain.numpy() @ q, atol=1e-10)


def test_unit_noise_and_orthonormal_loadings_need_the_latents_alone():
    rng = np.random.default_rng(0)
    v, x = np.linalg.qr(rng.standard_normal((30, 4)))[0], rng.standard_normal((20, 30))
    prior = gaussian_prior(rng.standard_normal((100, 4)))
    settings_ = GibbsParams(rho_start=0.7, iterations=10, burn_in=0)
    genes = run_chains(GaussianLikelihood(x, v, 1.0), prior, settings_, generator()).kept
    latents = run_chains(GaussianLikelihood(x @ v, np.eye(4), 1.0), prior, settings_, generator()).kept
    np.testing.assert_allclose(genes, latents, atol=1e-5)
    weighted = run_chains(GaussianLikelihood(x, v, np.exp(rng.standard_normal(30))), prior, settings_, generator()).kept
    assert np.abs(weighted - latents).max() > 0.1


def test_order_of_cells_does_not_matter():
    x, v, noise, _ = problem(n=6)
    order = np.array([4, 2, 0, 5, 1, 3])

    class Mean:
        """A prior step without chance: what is left of it is who sees whom."""

        def sample(self, z, rho, generator):
            return z / (1 + rho**2)

    class NoNoise(GaussianLikelihood):
        def draw(self, u, rho, generator):
            return self.conditional(u, rho)[0]

    settings_ = GibbsParams(iterations=5, burn_in=2, rho_start=0.8)
    plain = run_chains(NoNoise(x, v, noise), Mean(), settings_, generator()).mean
    permuted = run_chains(NoNoise(x[order], v, noise), Mean(), settings_, generator()).mean
    np.testing.assert_allclose(permuted, plain[order], rtol=1e-6)


@pytest.mark.parametrize(("v", "sigma2", "rho"), [(4.0, 1.0, 1.0), (1.0, 0.5, 2.0)])
def test_a_chain_with_the_analytic_score_has_the_known_law(v, sigma2, rho):
    x = 1.5
    cells = GaussianLikelihood(np.full((20_000, 1), x), np.ones((1, 1)), sigma2)
    draws = run_chains(cells, AnalyticScore(v), GibbsParams(rho_start=rho, iterations=30, burn_in=24), generator())
    noise = sigma2 + rho**2
    assert draws.kept.mean() == pytest.approx(v / (v + noise) * x, rel=0.02)
    assert draws.kept.var() == pytest.approx(v * noise / (v + noise), rel=0.02)


def test_a_chain_on_a_mixture_has_the_closed_form_mean():
    m, v, rho, x = 1.6, 0.7, 1.0, 0.5

    def eps(u, abar):
        total = abar * v + 1 - abar
        mean = abar**0.5 * m
        return (1 - abar) ** 0.5 * (u - mean * torch.tanh(u * mean / total)) / total

    rng = generator(1)
    rows = m * (2.0 * torch.randint(2, (40_000, 1), generator=rng) - 1) + v**0.5 * torch.randn(40_000, 1, generator=rng)
    table: GammaTable = tabulate_gamma(eps, rows, 0.01, 3.0, rng)
    chain = ReverseChain(eps, table.scalar(), 16, "analytic")
    truth = MixturePrior(np.full(2, 0.5), np.array([[m], [-m]]), np.full((2, 1, 1), v)).posterior_mean([[x]], 1.0 + rho**2)
    cells = GaussianLikelihood(np.full((10_000, 1), x), np.ones((1, 1)), 1.0)
    for prior in (chain, MixturePrior(np.full(2, 0.5), np.array([[m], [-m]]), np.full((2, 1, 1), v))):
        draws = run_chains(cells, prior, GibbsParams(rho_start=rho, iterations=40, burn_in=20), generator())
        assert draws.mean.mean() == pytest.approx(float(truth[0, 0]), abs=0.02)


def test_without_a_prior_the_chain_stays_with_the_measurement():
    x, v, noise, _ = problem(n=400)
    cells = GaussianLikelihood(x, v, noise)
    draws = run_chains(cells, FlatPrior(), GibbsParams(rho_start=0.5, iterations=400, burn_in=100), generator())
    gls = cells.conditional(torch.zeros(400, 3, dtype=torch.float64), np.inf)[0].numpy()
    assert np.abs((draws.mean - gls).mean(axis=0)).max() < 0.1


def test_schedules_by_hand():
    assert rho_schedule(GibbsParams(rho_start=5, rho_end=1, schedule="linear", iterations=5, burn_in=0)).tolist() == [5, 4, 3, 2, 1]
    falling = rho_schedule(GibbsParams(rho_start=5, rho_end=4, schedule="exponential", iterations=4, burn_in=0))
    np.testing.assert_allclose(falling, [5, 4.5, 4.05, 4.0])
    assert rho_schedule(GibbsParams(rho_start=5, rho_end=1, iterations=3, burn_in=0)).tolist() == [5, 5, 5]
    assert GibbsParams(rho_start=5, rho_end=1, schedule="linear").at(2.0).schedule == "constant"


def test_what_is_kept_and_where_chains_start():
    x, v, noise, _ = problem()
    cells = GaussianLikelihood(x, v, noise)
    params = GibbsParams(rho_start=1, iterations=7, burn_in=4, repeats=3)
    draws = run_chains(cells, FlatPrior(), params, generator())
    assert draws.kept.shape == (9, 5, 3)
    assert params.draws == 9
    np.testing.assert_array_equal(draws.kept[-3:], draws.last)
    np.testing.assert_allclose(draws.mean, draws.kept.mean(axis=0), rtol=1e-5)

    class Started(Exception):
        pass

    class Stop:
        def __init__(self):
            self.measurement = cells.measurement

        def draw(self, u, rho, generator):
            raise Started(u)

    starts = {}
    for init in ("measurement", "zero", "random"):
        with pytest.raises(Started) as stopped:
            run_chains(Stop(), FlatPrior(), GibbsParams(init=init), generator())
        starts[init] = stopped.value.args[0]
    torch.testing.assert_close(starts["measurement"][0], torch.as_tensor(x @ v))
    assert not starts["zero"].any()
    assert starts["random"].std() > 0


def test_a_seed_gives_the_same_draws():
    x, v, noise, _ = problem()
    runs: list[Draws] = [
        run_chains(GaussianLikelihood(x, v, noise), FlatPrior(), GibbsParams(iterations=5, burn_in=1), generator(s)) for s in (1, 1, 2)
    ]
    np.testing.assert_array_equal(runs[0].kept, runs[1].kept)
    assert not np.array_equal(runs[0].kept, runs[2].kept)


def test_student_t_slope_is_the_gradient_of_its_log_density():
    from scipy import stats

    x, v, noise, u = problem()
    likelihood = StudentTLikelihood(x, v, np.sqrt(noise), freedom=3.0)
    slope = likelihood.slope(torch.as_tensor(u)).numpy()
    for j in range(3):
        step = np.zeros(3)
        step[j] = 1e-4

        def density(z):
            return stats.t.logpdf(x - z @ v.T, 3.0, scale=np.sqrt(noise)).sum(axis=1)

        np.testing.assert_allclose(slope[:, j], (density(u + step) - density(u - step)) / 2e-4, rtol=2e-3, atol=2e-3)


def test_langevin_steps_find_the_conditional_mean_of_heavy_tails():
    from scipy import stats

    x, rho, n = 3.0, 1.0, 4000
    cells = StudentTLikelihood(np.full((n, 1), x), np.ones((1, 1)), 1.0, freedom=3.0, steps=200)
    z = cells.draw(torch.zeros(n, 1, dtype=torch.float64), rho, generator())
    grid = np.linspace(-8, 12, 4001)
    density = stats.t.pdf(x - grid, 3.0) * stats.norm.pdf(grid, 0, rho)
    mean = (grid * density).sum() / density.sum()
    assert z.mean().item() == pytest.approx(mean, abs=0.06)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"x": np.ones((2, 4))}, "must share d"), ({"noise": np.zeros(12)}, "positive"), ({"x": np.full((5, 12), np.nan)}, "60 bad entries")],
)
def test_impossible_likelihoods_are_refused(change, message):
    x, v, noise, _ = problem()
    given_ = {"x": x, "loadings": v, "noise": noise} | change
    with pytest.raises(ValueError, match=message):
        GaussianLikelihood(**given_)
    with pytest.raises(ValueError, match="rho must be positive"):
        GaussianLikelihood(x, v, noise).conditional(torch.zeros(5, 3), 0.0)
    with pytest.raises(ValueError, match="freedom must be positive"):
        StudentTLikelihood(x, v, freedom=0)


@pytest.mark.parametrize("bad", [{"rho_start": 0}, {"rho_end": -1}, {"iterations": 0}, {"iterations": 5, "burn_in": 5}, {"repeats": 0}])
def test_impossible_chains_are_refused(bad):
    with pytest.raises(ValidationError):
        GibbsParams(**bad)
