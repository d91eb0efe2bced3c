from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.single_cell.synthetic import SETUPS, latent_posterior_mean, simulate


def posterior_mean_by_grid(x, v, sd, means, latent_sd, weights):
    """The definition: sum u p(x | u) p(u) over a fine grid of u in two dimensions."""
    axis = np.linspace(-12, 12, 481)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    prior = sum(w * np.exp(-0.5 * ((grid - m) ** 2).sum(1) / latent_sd**2) for w, m in zip(weights, means, strict=True))
    log_likelihood = -0.5 * (((x - grid @ v.T) / sd) ** 2).sum(1)
    p = prior * np.exp(log_likelihood - log_likelihood.max())
    return (p[:, None] * grid).sum(0) / p.sum()


def test_posterior_mean_is_the_integral():
    rng = np.random.default_rng(0)
    v = rng.standard_normal((5, 2))  # neither orthonormal nor isotropic noise
    sd = rng.uniform(0.5, 4.0, 5)
    means, weights = np.array([[2.0, -1.0], [-3.0, 1.0]]), np.array([0.3, 0.7])
    x = rng.standard_normal((4, 5)) * 2
    ours = latent_posterior_mean(x, v, sd, means, 1.3, weights)
    slow = [posterior_mean_by_grid(row, v, sd, means, 1.3, weights) for row in x]
    np.testing.assert_allclose(ours, slow, atol=1e-6)


def test_posterior_mean_in_one_dimension_has_the_textbook_form():
    # One gene, one class N(0, S^2): S^2 / (S^2 + sd^2) x. Two classes at +-m seen at x = 0: by symmetry 0.
    assert latent_posterior_mean([[3.0]], [[1.0]], 2.0, [[0.0]], 1.0)[0, 0] == pytest.approx(3 / 5)
    assert latent_posterior_mean([[0.0]], [[1.0]], 1.0, [[4.0], [-4.0]], 1.0)[0, 0] == pytest.approx(0.0, abs=1e-12)
    # Far on one side the other class is gone: (x / sd^2 + m / S^2) / (1 / sd^2 + 1 / S^2) = (10 + 4) / 2.
    assert latent_posterior_mean([[10.0]], [[1.0]], 1.0, [[4.0], [-4.0]], 1.0)[0, 0] == pytest.approx(7.0)


def test_posterior_mean_refuses_zero_noise():
    with pytest.raises(ValueError, match=r"must be positive, got a smallest of 0.0 and 1.0"):
        latent_posterior_mean([[1.0]], [[1.0]], 0.0, [[0.0]], 1.0)


@pytest.mark.parametrize("setup", [1, 2, 5])
def test_nothing_beats_the_oracle_on_average(setup):
    cohort = simulate(setup, 10, 500, seed=1, genes=60, latents=4)
    truth = cohort.latents_target

    def error(estimate):
        return ((estimate - truth) ** 2).mean()

    weight = 1 / cohort.noise_sd_target**2
    v = cohort.loadings
    least_squares = np.linalg.solve((v.T * weight) @ v, (v.T * weight) @ cohort.target.T).T
    assert error(cohort.oracle_target()) < error(least_squares)
    assert error(cohort.oracle_target()) < error(0.8 * least_squares)


def test_setups_one_to_four_share_the_reference_and_only_targets_differ():
    cohorts = {s: simulate(s, 40, 30, seed=5, genes=20, latents=3) for s in SETUPS}
    for s in (2, 3, 4):
        np.testing.assert_array_equal(cohorts[s].reference, cohorts[1].reference)
        assert (cohorts[s].target != cohorts[1].target).any()
    assert (cohorts[5].reference != cohorts[1].reference).any()
    for s in SETUPS:
        np.testing.assert_array_equal(cohorts[s].labels_target, cohorts[1].labels_target)
        np.testing.assert_array_equal(cohorts[s].loadings, cohorts[1].loadings)
    other = simulate(1, 40, 30, seed=6, genes=20, latents=3)
    assert (other.reference != cohorts[1].reference).any()


def test_reference_and_target_are_different_draws_and_a_seed_repeats_itself():
    cohort = simulate(1, 30, 30, seed=0, genes=20, latents=3)
    assert (cohort.reference != cohort.target).all()
    np.testing.assert_array_equal(simulate(1, 30, 30, seed=0, genes=20, latents=3).target, cohort.target)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(sorted(SETUPS)))
def test_geometry(seed, setup):
    cohort = simulate(setup, 5, 5, seed=seed, genes=30, latents=4, radius=6.0)
    np.testing.assert_allclose(cohort.loadings.T @ cohort.loadings, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(cohort.class_means, axis=1), 6.0)
    np.testing.assert_allclose(cohort.signal_target, cohort.latents_target @ cohort.loadings.T, atol=1e-5)
    assert cohort.reference.dtype == np.float32


@pytest.mark.parametrize(("setup", "sd"), [(1, 1.0), (2, 3.0), (4, 3.0)])
def test_noise_has_the_stated_level(setup, sd):
    cohort = simulate(setup, 500, 2000, seed=0, genes=50, latents=3)
    noise = cohort.target - cohort.signal_target
    assert noise.std() == pytest.approx(sd, rel=0.01)
    np.testing.assert_array_equal(cohort.noise_sd_target, sd)
    reference_noise = cohort.reference - cohort.latents_reference @ cohort.loadings.T
    assert reference_noise.std() == pytest.approx(1.0, rel=0.02)


def test_heavy_tailed_noise_is_student_t_with_three_degrees_of_freedom():
    from scipy import stats

    cohort = simulate(3, 5, 1000, seed=0, genes=40, latents=3)
    noise = (cohort.target - cohort.signal_target).reshape(-1)
    assert stats.kstest(noise[:20_000], stats.t(3).cdf).pvalue > 0.01
    assert stats.kstest(noise[:20_000], stats.norm.cdf).pvalue < 1e-6
    np.testing.assert_allclose(cohort.noise_sd_target, np.sqrt(3))


def test_latents_have_unit_variance_around_their_class_and_heavy_tails_in_setup_four():
    from scipy import stats

    xi = {}
    for setup in (1, 4):
        cohort = simulate(setup, 5, 20_000, seed=0, genes=6, latents=3)
        xi[setup] = ((cohort.latents_target - cohort.class_means[cohort.labels_target]) / 2.0).reshape(-1)
    assert stats.kstest(xi[1], stats.norm.cdf).pvalue > 0.01
    assert stats.kstest(xi[4] * np.sqrt(2), stats.t(4).cdf).pvalue > 0.01
    assert xi[4].std() == pytest.approx(1.0, abs=0.05)


def test_gene_wise_noise_is_log_normal_and_the_same_in_reference_and_target():
    cohort = simulate(5, 500, 500, seed=0, genes=2000, latents=3)
    np.testing.assert_array_equal(cohort.noise_sd_reference, cohort.noise_sd_target)
    logs = np.log(cohort.noise_sd_target)
    assert logs.mean() == pytest.approx(0.0, abs=0.07)
    assert logs.std() == pytest.approx(1.0, abs=0.05)
    measured = (cohort.target - cohort.signal_target).std(axis=0)
    np.testing.assert_allclose(measured, cohort.noise_sd_target, rtol=0.2)


def test_classes_are_balanced():
    labels = simulate(1, 4000, 2, seed=0, genes=5, latents=2).labels_reference
    assert set(labels) == {0, 1}
    assert labels.mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"setup": 6}, r"setup must be one of \[1, 2, 3, 4, 5\], got 6"),
        ({"n_reference": 1}, "n_reference must be at least 2, got 1"),
        ({"n_target": 0}, "n_target must be at least 2, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"latents": 11}, r"latents must lie in 1..genes = 10, got 11"),
        ({"latents": 0}, "latents must lie in"),
        ({"latent_sd": 0.0}, "need latent_sd > 0"),
        ({"noise_sd": -1.0}, "noise_sd >= 0, got 2.0 and -1.0"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    good = {"setup": 1, "n_reference": 10, "n_target": 10, "seed": 0, "genes": 10, "latents": 3}
    with pytest.raises(ValueError, match=message):
        simulate(**(good | change))
