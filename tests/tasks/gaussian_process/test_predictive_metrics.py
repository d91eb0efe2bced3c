from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk

from tasks.gaussian_process import predictive_metrics as pm

RNG = np.random.default_rng(0)
MEANS, VARIANCES = RNG.normal(size=(2, 5, 7)), RNG.uniform(0.2, 2.0, (2, 5, 7))  # (R, S, N)
Y, SD = RNG.normal(size=(2, 7)), np.array([2.0, 0.5])
LOGITS, LABELS = RNG.normal(size=(2, 5, 7, 3)), RNG.integers(0, 3, (2, 7))


def test_rmse_is_that_of_the_rows_in_original_units():
    p = MEANS.mean(1)
    for r in range(2):
        squares = [(SD[r] * p[r, i] - SD[r] * Y[r, i]) ** 2 for i in range(7)]
        assert pm.rmse(p, Y, SD)[r] == pytest.approx((sum(squares) / 7) ** 0.5)


def test_mixture_nll_is_the_loop_over_rows_and_components_in_original_units():
    found = pm.mixture_nll(MEANS, VARIANCES, Y, SD)
    for r in range(2):
        total = 0.0
        for i in range(7):
            density = [stats.norm.pdf(SD[r] * Y[r, i], SD[r] * MEANS[r, s, i], SD[r] * VARIANCES[r, s, i] ** 0.5) for s in range(5)]
            total -= np.log(sum(density) / 5)
        assert found[r] == pytest.approx(total / 7, rel=1e-12)


def test_mixture_nll_survives_targets_whose_density_underflows():
    nll = pm.mixture_nll([[0.0]], [[1.0]], [100.0])
    assert nll == pytest.approx(5000 + 0.5 * np.log(2 * np.pi))


def test_moments_and_coverage_agree_with_samples_of_the_mixture():
    # Golden: 200,000 draws per row; components are chosen first, then a Gaussian is drawn, as the definition says.
    rng = np.random.default_rng(1)
    chosen = rng.integers(0, 5, (200_000, 7))
    columns = np.arange(7)
    draws = MEANS[0][chosen, columns] + np.sqrt(VARIANCES[0][chosen, columns]) * rng.standard_normal((200_000, 7))
    np.testing.assert_allclose(pm.mixture_mean(MEANS)[0], draws.mean(0), atol=0.02)
    np.testing.assert_allclose(pm.mixture_variance(MEANS, VARIANCES)[0], draws.var(0), rtol=0.02)
    lo, hi = np.quantile(draws, [0.25, 0.75], axis=0)
    y = np.linspace(-1.5, 1.5, 7)
    inside = (lo <= y) & (y <= hi)
    assert 0 < inside.sum() < 7
    assert pm.mixture_coverage(MEANS[0], VARIANCES[0], y, level=0.5) == pytest.approx(inside.mean())
    np.testing.assert_allclose(pm.mixture_quantiles(MEANS[0], VARIANCES[0], [0.25, 0.75]), [lo, hi], atol=0.03)
    np.testing.assert_allclose(pm.mixture_levels(MEANS[0], VARIANCES[0], y), (draws <= y).mean(0), atol=0.01)


def test_a_right_predictive_distribution_covers_at_its_level_and_has_the_entropy_of_the_noise():
    y = np.random.default_rng(2).standard_normal(50_000)
    m, v = np.zeros((3, y.size)), np.ones((3, y.size))
    assert pm.mixture_coverage(m, v, y) == pytest.approx(0.95, abs=0.004)
    assert pm.mixture_coverage(m, v / 4, y) == pytest.approx(2 * stats.norm.cdf(0.98) - 1, abs=0.01)
    assert pm.mixture_nll(m, v, y) == pytest.approx(0.5 * np.log(2 * np.pi * np.e), abs=0.02)


def test_quantiles_invert_the_cumulative_probability():
    levels = [0.025, 0.5, 0.975]
    for level, q in zip(levels, pm.mixture_quantiles(MEANS, VARIANCES, levels), strict=True):
        np.testing.assert_allclose(pm.mixture_levels(MEANS, VARIANCES, q), level, atol=1e-9)


def test_class_metrics_are_those_of_the_loop_and_of_scikit_learn():
    p = pm.class_probabilities(LOGITS)
    np.testing.assert_allclose(p.sum(-1), 1.0)
    for r in range(2):
        loop = np.mean([np.exp(LOGITS[r, s]) / np.exp(LOGITS[r, s]).sum(-1, keepdims=True) for s in range(5)], axis=0)
        np.testing.assert_allclose(p[r], loop)
        assert pm.categorical_log_likelihood(LOGITS, LABELS)[r] == pytest.approx(-sk.log_loss(LABELS[r], loop, labels=[0, 1, 2]))
        assert pm.accuracy(p, LABELS)[r] == pytest.approx(sk.accuracy_score(LABELS[r], loop.argmax(-1)))


def test_auc_is_the_share_of_ordered_pairs_with_ties_halved():
    rng = np.random.default_rng(3)
    scores, labels = rng.integers(0, 6, (3, 40)) / 5, rng.integers(0, 2, (3, 40))  # many ties
    for r in range(3):
        pairs = [(a > b) + 0.5 * (a == b) for a in scores[r][labels[r] == 1] for b in scores[r][labels[r] == 0]]
        assert pm.auc(scores, labels)[r] == pytest.approx(np.mean(pairs))
        assert pm.auc(scores, labels)[r] == pytest.approx(sk.roc_auc_score(labels[r], scores[r]))


def test_leading_axes_are_independent():
    for f, args in ((pm.rmse, (MEANS[:, 0], Y)), (pm.mixture_nll, (MEANS, VARIANCES, Y)), (pm.mixture_coverage, (MEANS, VARIANCES, Y))):
        np.testing.assert_array_equal(f(*args), [f(*(a[r] for a in args)) for r in range(2)])


BAD = np.array([[np.nan, 0.0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pm.rmse([], []), "need an array with rows"),
        (lambda: pm.rmse([0.0], [0.0, 1.0]), "must have the same rows"),
        (lambda: pm.rmse([0.0], [0.0], y_sd=0.0), "y_sd must be positive, got 0.0"),
        (lambda: pm.mixture_nll(BAD, [[1.0, 1.0]], [0.0, 0.0]), "means: 1 of 2 values are not finite"),
        (lambda: pm.mixture_nll([[0.0]], [[0.0]], [0.0]), "variances must be positive, the smallest is 0.0"),
        (lambda: pm.mixture_nll([0.0], [1.0], [0.0]), r"must both be \(..., S, N\), got \(1,\)"),
        (lambda: pm.mixture_nll([[0.0]], [[1.0, 1.0]], [0.0]), "must both be"),
        (lambda: pm.mixture_coverage([[0.0]], [[1.0]], [0.0], level=1.0), r"level must lie in \(0, 1\), got 1.0"),
        (lambda: pm.mixture_quantiles([[0.0]], [[1.0]], [0.0]), r"levels must lie in \(0, 1\)"),
        (lambda: pm.accuracy([[0.5, 0.5]], [2]), r"labels must be whole numbers in 0..1, got 2 to 2"),
        (lambda: pm.accuracy([[0.5, 0.5]], [0, 1]), "probabilities must be"),
        (lambda: pm.categorical_log_likelihood(np.zeros((1, 1, 2)), [-1]), "labels must be whole numbers in 0..1, got -1"),
        (lambda: pm.auc([0.1, 0.2], [1, 1]), "rows of both classes"),
        (lambda: pm.auc([0.1, 0.2], [1, 2]), "labels must be 0 or 1"),
    ],
)
def test_impossible_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
