from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from tasks.gaussian_process.exact import ExactGP, rbf

RNG = np.random.default_rng(0)
X, Y, NEW = RNG.normal(size=(12, 3)), RNG.normal(size=12), RNG.normal(size=(5, 3))
SCALES, VARIANCE, NOISE = np.array([0.7, 1.5, 3.0]), 1.7, 0.2
GP = ExactGP(X, Y, SCALES, VARIANCE, NOISE)


def test_kernel_is_its_double_loop():
    for i in range(12):
        for j in range(5):
            expected = VARIANCE * np.exp(-0.5 * sum(((X[i, d] - NEW[j, d]) / SCALES[d]) ** 2 for d in range(3)))
            assert rbf(X, NEW, SCALES, VARIANCE)[i, j] == pytest.approx(expected)


def test_evidence_and_posterior_are_scikit_learns():
    kernel = ConstantKernel(VARIANCE) * RBF(SCALES) + WhiteKernel(NOISE)
    other = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(X, Y)
    assert GP.log_marginal_likelihood() == pytest.approx(other.log_marginal_likelihood_value_)
    mean, covariance = other.predict(NEW, return_cov=True)
    ours = GP.posterior(NEW)
    np.testing.assert_allclose(ours[0], mean, atol=1e-10)
    np.testing.assert_allclose(ours[1], covariance - NOISE * np.eye(5), atol=1e-10)  # theirs is of noisy targets


def test_evidence_is_the_density_of_the_targets():
    covariance = rbf(X, X, SCALES, VARIANCE) + NOISE * np.eye(12)
    assert GP.log_marginal_likelihood() == pytest.approx(stats.multivariate_normal(np.zeros(12), covariance).logpdf(Y))


def test_one_row_in_closed_form():
    # k = 2, noise = 1, y = 3: mean 2/3 * 3 = 2, variance 2 - 4/3 = 2/3.
    mean, covariance = ExactGP(np.zeros((1, 1)), np.array([3.0]), np.ones(1), 2.0, 1.0).posterior(np.zeros((1, 1)))
    assert (mean[0], covariance[0, 0]) == pytest.approx((2.0, 2 / 3))


def test_far_away_the_prior_returns():
    mean, covariance = GP.posterior(np.full((1, 3), 100.0))
    assert (mean[0], covariance[0, 0]) == pytest.approx((0.0, VARIANCE))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise": 0.0}, "noise must be positive, got 0.0"),
        ({"y": Y[:-1]}, r"x must be finite \(n, d\) and y finite \(n,\), got \(12, 3\) and \(11,\)"),
        ({"y": np.full(12, np.nan)}, "y finite"),
    ],
)
def test_impossible_models_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ExactGP(**{"x": X, "y": Y, "lengthscales": SCALES, "variance": VARIANCE, "noise": NOISE} | change)


def test_impossible_kernels_are_refused():
    with pytest.raises(ValueError, match="lengthscales and variance must be positive"):
        rbf(X, X, 0.0, 1.0)
    with pytest.raises(ValueError, match=r"inputs must be \(n, d\) and \(m, d\), got \(12, 3\) and \(5, 2\)"):
        rbf(X, NEW[:, :2], 1.0, 1.0)
