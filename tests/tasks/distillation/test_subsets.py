"""Baseline subsets and the linear models that are trained on them."""

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression, Ridge

from tasks.distillation import subsets
from tasks.distillation.linear_models import least_squares, ridge, squared_error
from tasks.distillation.quadratic import second_moment
from tasks.distillation.subsets import leverage_rows, leverage_scores, random_rows, stratified_rows


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(subsets).failed == 0


def test_leverage_is_the_diagonal_of_the_hat_matrix():
    z = np.random.default_rng(0).standard_normal((20, 3))
    hat = z @ np.linalg.inv(z.T @ z) @ z.T
    np.testing.assert_allclose(leverage_scores(z), np.diag(hat), rtol=1e-10)
    duplicated = np.hstack([z, z[:, :1]])
    np.testing.assert_allclose(leverage_scores(duplicated).sum(), 3, rtol=1e-9)


def test_rescaled_leverage_rows_keep_the_second_moment_on_average():
    z = np.random.default_rng(0).standard_normal((50, 2)) * [1.0, 5.0]
    rng = np.random.default_rng(1)
    total = np.zeros((2, 2))
    for _ in range(3000):
        picked, factors = leverage_rows(z, 10, rng)
        total += second_moment(z[picked] * factors[:, None]) / 3000
    np.testing.assert_allclose(total, second_moment(z), rtol=0.05, atol=0.1)


@settings(max_examples=50, deadline=None)
@given(m=st.integers(1, 60), rare=st.integers(1, 20), seed=st.integers(0, 100))
def test_stratified_rows_have_size_and_shares(m, rare, seed):
    labels = np.array([0] * (60 - rare) + [1] * rare)
    picked = stratified_rows(labels, m, np.random.default_rng(seed))
    assert len(set(picked)) == m
    share = labels[picked].sum()
    assert abs(share - m * rare / 60) <= 1
    assert m < 2 or share >= 1


@pytest.mark.parametrize("m", [0, 11])
def test_impossible_sizes_are_refused(m):
    with pytest.raises(ValueError, match=r"must lie in 1\.\.10"):
        random_rows(10, m, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"must lie in 1\.\.10"):
        stratified_rows(np.zeros(10), m, np.random.default_rng(0))
    with pytest.raises(ValueError, match="at least 1"):
        leverage_rows(np.eye(3), 0, np.random.default_rng(0))


def test_rows_without_leverage_are_refused():
    with pytest.raises(ValueError, match="all rows are zero"):
        leverage_rows(np.zeros((3, 2)), 1, np.random.default_rng(0))
    with pytest.raises(ValueError, match="not finite"):
        leverage_rows(np.full((3, 2), np.nan), 1, np.random.default_rng(0))


def test_linear_models_agree_with_scikit_learn():
    rows = np.random.default_rng(0).standard_normal((30, 5))
    reference = LinearRegression(fit_intercept=False).fit(rows[:, :4], rows[:, 4])
    np.testing.assert_allclose(least_squares(rows), reference.coef_, rtol=1e-9)
    one = ridge(rows, np.random.default_rng(0), penalties=(0.1,))
    np.testing.assert_allclose(one, Ridge(alpha=0.1 * 30, fit_intercept=False).fit(rows[:, :4], rows[:, 4]).coef_, rtol=1e-9)
    assert squared_error(np.zeros(4), rows) == pytest.approx(np.mean(rows[:, 4] ** 2))


def test_ridge_chooses_a_large_penalty_for_noise():
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((20, 14))
    assert np.linalg.norm(ridge(noise, rng)) < 0.5 * np.linalg.norm(least_squares(noise))


def test_ridge_of_a_single_row_is_finite():
    assert np.isfinite(ridge(np.ones((1, 3)), np.random.default_rng(0))).all()
