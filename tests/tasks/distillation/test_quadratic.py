"""Quadratic loss matching beside slow twins, closed forms, invariants, the threshold, and bad input."""

import doctest

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.distillation import quadratic
from tasks.distillation.quadratic import (
    coordinate_regressors,
    distil,
    escape_saddle,
    gaussian_regressors,
    is_identifiable,
    jacobian_gram,
    losses,
    null_direction,
    objective,
    regressor_products,
    second_moment,
    spectral_error,
    square_root_rows,
    threshold,
)


def table(n=60, q=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, q)) @ rng.standard_normal((q, q))


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(quadratic).failed == 0


def test_losses_equal_their_definition_row_by_row():
    rows, r = table(), gaussian_regressors(7, 4, np.random.default_rng(1))
    slow = [np.mean([float(np.dot(rj, z)) ** 2 for z in rows]) for rj in r]
    np.testing.assert_allclose(losses(rows, r), slow, rtol=1e-12)


def test_gradient_equals_autograd_and_finite_differences():
    rows, r = table(9), gaussian_regressors(5, 4, np.random.default_rng(1))
    targets = losses(table(40, seed=3), r)
    value, slope = objective(rows, r, targets)
    w = torch.tensor(rows, requires_grad=True)
    j = (((w @ torch.tensor(r).T) ** 2).mean(0) - torch.tensor(targets)).square().sum()
    j.backward()
    assert value == pytest.approx(float(j.detach()), rel=1e-12)
    np.testing.assert_allclose(slope, w.grad.numpy(), rtol=1e-10)
    bump = np.zeros_like(rows)
    bump[2, 1] = 1e-5
    difference = (objective(rows + bump, r, targets)[0] - objective(rows - bump, r, targets)[0]) / 2e-5
    assert slope[2, 1] == pytest.approx(difference, rel=1e-6)


def test_closed_form_gram_equals_the_explicit_jacobian():
    rows, r = table(6), gaussian_regressors(5, 4, np.random.default_rng(2))
    explicit = np.stack([(2 / len(rows)) * np.outer(rows @ rj, rj).ravel() for rj in r])
    np.testing.assert_allclose(jacobian_gram(rows, r), explicit @ explicit.T, rtol=1e-12)


@pytest.mark.parametrize("optimiser", ["gauss_newton", "lbfgs", "adam"])
def test_all_optimisers_find_the_same_second_moment(optimiser):
    rows = table()
    r = gaussian_regressors(threshold(4) + 6, 4, np.random.default_rng(1))
    found = distil(rows, rows[:8], r, optimiser)
    assert found.end < 1e-4 * found.start
    np.testing.assert_allclose(second_moment(found.rows), second_moment(rows), atol=5e-2 * np.abs(second_moment(rows)).max())


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), q=st.integers(2, 6))
def test_matching_is_exact_from_the_threshold_on(seed, q):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((50, q))
    found = distil(rows, rows[: q + 2], gaussian_regressors(threshold(q) + 2, q, rng))
    assert spectral_error(found.rows, rows) < 1e-5


@pytest.mark.parametrize("q", [2, 3, 4, 5, 6])
def test_threshold_and_lower_bound_by_linear_algebra(q):
    rng = np.random.default_rng(q)
    r = gaussian_regressors(threshold(q), q, rng)
    assert is_identifiable(r)
    assert not is_identifiable(r[:-1])
    hidden = null_direction(r[:-1])
    assert np.linalg.norm(hidden) == pytest.approx(1.0)
    np.testing.assert_allclose(hidden, hidden.T)
    np.testing.assert_allclose(np.einsum("kp,pq,kq->k", r[:-1], hidden, r[:-1]), 0, atol=1e-12)
    assert abs(r[-1] @ hidden @ r[-1]) > 1e-8
    with pytest.raises(ValueError, match="no null direction"):
        null_direction(r)


def test_products_turn_quadratic_forms_into_dot_products():
    r = gaussian_regressors(4, 3, np.random.default_rng(0))
    gram = regressor_products(r) @ regressor_products(r).T
    np.testing.assert_allclose(gram, (r @ r.T) ** 2, rtol=1e-12)


def test_two_sets_that_differ_in_the_null_direction_cannot_be_told_apart():
    rows, rng = table(), np.random.default_rng(5)
    few = gaussian_regressors(threshold(4) - 1, 4, rng)
    moment = second_moment(rows) + 0.01 * null_direction(few)
    twin = 2 * np.linalg.cholesky(moment).T  # 4 rows with that second moment
    np.testing.assert_allclose(losses(twin, few), losses(rows, few), rtol=1e-9)
    assert spectral_error(twin, rows) > 1e-3


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_invariances_of_the_loss(seed):
    rng = np.random.default_rng(seed)
    rows, r = rng.standard_normal((7, 3)), gaussian_regressors(4, 3, rng)
    turned = np.linalg.qr(rng.standard_normal((7, 7)))[0] @ rows
    np.testing.assert_allclose(losses(turned, r), losses(rows, r), rtol=1e-9)
    np.testing.assert_allclose(losses(rows[rng.permutation(7)], r), losses(rows, r), rtol=1e-9)
    np.testing.assert_allclose(losses(rows, 2 * r), 4 * losses(rows, r), rtol=1e-9)


def test_objective_is_zero_at_the_training_set_and_scales_with_the_fourth_power():
    rows, r = table(), gaussian_regressors(6, 4, np.random.default_rng(0))
    targets = losses(rows, r)
    value, slope = objective(rows, r, targets)
    assert value < 1e-20
    np.testing.assert_allclose(slope, 0, atol=1e-9)
    other = objective(rows[:5], r, targets)[0]
    assert objective(3 * rows[:5], r, 9 * targets)[0] == pytest.approx(81 * other, rel=1e-12)


def test_golden_case_in_one_dimension():
    """Rows 1 and 3 have A = 5; one synthetic row must become +-sqrt(5), and J at u = 1, r = 2 is (4 - 20)^2 = 256."""
    train, r = np.array([[1.0], [3.0]]), np.array([[2.0]])
    assert objective(np.array([[1.0]]), r, losses(train, r))[0] == pytest.approx(256.0)
    assert distil(train, np.array([[1.0]]), r).rows[0, 0] == pytest.approx(np.sqrt(5.0), rel=1e-9)


@pytest.mark.parametrize("m", [4, 5, 20])
def test_square_root_rows_are_exact(m):
    rows = table()
    assert square_root_rows(rows, m).shape == (m, 4)
    assert spectral_error(square_root_rows(rows, m), rows) < 1e-12


def test_too_few_square_root_rows_leave_the_next_eigenvalue():
    rows = table()
    eigenvalues = np.linalg.eigvalsh(second_moment(rows))[::-1]
    for m in (1, 2, 3):
        assert spectral_error(square_root_rows(rows, m), rows) == pytest.approx(eigenvalues[m], rel=1e-9)


def test_spectral_error_is_the_worst_loss_difference():
    rows, other = table(), table(10, seed=4)
    v = np.random.default_rng(0).standard_normal((2000, 4))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    gaps = np.abs(losses(rows, v) - losses(other, v))
    assert gaps.max() <= spectral_error(rows, other) + 1e-12
    assert gaps.max() > 0.9 * spectral_error(rows, other)


def test_a_saddle_point_is_left():
    """Rows without anything along the second axis are stationary there, however wrong; the escape gives them what is missing."""
    train = np.diag([2.0, 1.0])
    flat = np.array([[2.0, 0.0], [0.0, 0.0]])
    r = gaussian_regressors(8, 2, np.random.default_rng(0))
    error = losses(flat, r) - losses(train, r)
    better = escape_saddle(flat, r, error)
    assert objective(better, r, losses(train, r))[0] < 0.6 * objective(flat, r, losses(train, r))[0]
    assert spectral_error(distil(train, flat, r).rows, train) < 1e-9
    assert escape_saddle(train, r, np.zeros(8)) is None


def test_coordinate_regressors_never_identify_products():
    r = coordinate_regressors(200, 3, np.random.default_rng(0))
    assert not is_identifiable(r)
    rows = table(60, 3)
    assert spectral_error(distil(rows, rows[:6], r).rows, rows) > 1e-2


@pytest.mark.parametrize(("k", "q"), [(0, 3), (3, 0)])
@pytest.mark.parametrize("draw", [gaussian_regressors, coordinate_regressors])
def test_impossible_numbers_of_regressors_are_refused(draw, k, q):
    with pytest.raises(ValueError, match="at least one regressor"):
        draw(k, q, np.random.default_rng(0))


def test_bad_tables_are_refused():
    rows, r = table(), gaussian_regressors(3, 4, np.random.default_rng(0))
    broken = rows.copy()
    broken[0, 0] = np.nan
    with pytest.raises(ValueError, match="1 of 240 numbers are not finite"):
        distil(broken, rows[:5], r)
    with pytest.raises(ValueError, match="same columns"):
        distil(rows, rows[:5, :3], r)
    with pytest.raises(ValueError, match="n >= 1"):
        distil(rows, rows[:0], r)
    with pytest.raises(ValueError, match=r"target loss per regressor, got \(1,\) for 3"):
        objective(rows, r, np.ones(1))
    with pytest.raises(ValueError, match="got 'newton'"):
        distil(rows, rows[:5], r, "newton")
    with pytest.raises(ValueError, match="'gauss_newton' and 0"):
        distil(rows, rows[:5], r, max_iterations=0)
    with pytest.raises(ValueError, match="m = 0"):
        square_root_rows(rows, 0)


def test_too_few_rows_and_duplicate_columns_warn():
    rows, r = table(), gaussian_regressors(3, 4, np.random.default_rng(0))
    with pytest.warns(UserWarning, match="2 rows cannot have a second moment of rank 4"):
        distil(rows, rows[:2], r)
    rows[:, 3] = rows[:, 0]
    with pytest.warns(UserWarning, match="4 columns have rank 3"):
        distil(rows, rows[:5], r)
