from __future__ import annotations

import numpy as np
import pytest

from tasks.conformal import models


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.random((1500, 3))
    return x, 2 * x[:, 0] + rng.standard_normal(1500) * 0.3, rng.random(1500) < 0.8 * x[:, 1]


def test_tree_quantiles_hold_the_share_between_them(rows):
    x, y, _ = rows
    lower, upper = models.tree_quantiles(x, y, 0.2, seed=0)(x)
    assert ((lower <= y) & (y <= upper)).mean() == pytest.approx(0.8, abs=0.05)


def test_linear_quantiles_are_least_squares_plus_residual_quantiles(rows):
    x, y, _ = rows
    from sklearn.linear_model import LinearRegression

    fitted = LinearRegression().fit(x, y)
    low, high = np.quantile(y - fitted.predict(x), [0.05, 0.95])
    lower, upper = models.linear_quantiles(x, y, 0.1)(x[:7])
    np.testing.assert_allclose(lower, fitted.predict(x[:7]) + low)
    np.testing.assert_allclose(upper, fitted.predict(x[:7]) + high)


def test_mean_models_learn_and_trees_repeat_with_their_seed(rows):
    x, y, _ = rows
    assert np.corrcoef(models.tree_mean(x, y, 3)(x), 2 * x[:, 0])[0, 1] > 0.95
    np.testing.assert_array_equal(models.tree_mean(x, y, 3)(x), models.tree_mean(x, y, 3)(x))


@pytest.mark.parametrize("fit", [lambda x, m: models.tree_mask(x, m, 0), models.linear_mask])
def test_mask_models_give_probabilities_and_survive_masks_without_variety(rows, fit):
    x, _, masked = rows
    p = fit(x, masked)(x)
    assert ((p >= 0) & (p <= 1)).all()
    assert np.corrcoef(p, x[:, 1])[0, 1] > 0.8
    assert fit(x, np.zeros(len(x), bool))(x[:2]).tolist() == [0.0, 0.0]
    assert fit(x, np.ones(len(x), bool))(x[:2]).tolist() == [1.0, 1.0]
    assert fit(x, np.arange(len(x)) == 3)(x[:2]).max() < 0.1  # a single corrupted row
