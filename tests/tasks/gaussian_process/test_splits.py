from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tasks.common.formats import write_json
from tasks.gaussian_process.splits import MANIFEST, describe, load_split, save_split, standardised_split

RNG = np.random.default_rng(0)
X, Y = RNG.normal(3.0, 2.0, (30, 4)), RNG.normal(size=30)
TRAIN, TEST = np.arange(20), np.arange(20, 30)


def test_only_training_rows_decide_how_everything_is_scaled():
    split = standardised_split(X, Y, TRAIN, TEST, "regression")
    np.testing.assert_allclose(split.x_test, (X[TEST] - X[TRAIN].mean(0)) / X[TRAIN].std(0))
    np.testing.assert_allclose((split.x_train.mean(0), split.x_train.std(0)), ([0] * 4, [1] * 4), atol=1e-12)
    assert (split.y_mean, split.y_sd) == (Y[TRAIN].mean(), Y[TRAIN].std())
    moved = X.copy()
    moved[TEST] += 1000.0
    again = standardised_split(moved, Y, TRAIN, TEST, "regression", components=2)
    np.testing.assert_array_equal(again.x_train, standardised_split(X, Y, TRAIN, TEST, "regression", components=2).x_train)


@given(hnp.arrays(float, (6, 2), elements=st.floats(-1e6, 1e6)), hnp.arrays(float, 6, elements=st.floats(-1e6, 1e6), unique=True))
def test_original_units_come_back_and_features_stay_finite(x, y):
    train, test = np.arange(4), np.arange(4, 6)
    split = standardised_split(x, y, train, test, "regression")
    np.testing.assert_allclose(split.in_original_units(split.y_test), y[test], rtol=1e-6, atol=1e-6 * np.abs(y).max())
    assert np.isfinite(split.x_train).all()
    assert np.isfinite(split.x_test).all()


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6 / 3])
def test_a_feature_that_is_constant_in_training_says_nothing(value):
    x = X.copy()
    x[TRAIN, 1] = value
    split = standardised_split(x, Y, TRAIN, TEST, "regression")
    np.testing.assert_array_equal(split.x_train[:, 1], 0.0)
    np.testing.assert_array_equal(split.x_test[:, 1], 0.0)


def test_components_are_the_eigenvectors_of_the_training_covariance():
    split = standardised_split(X, Y, TRAIN, TEST, "regression", components=2)
    values, vectors = np.linalg.eigh(np.cov(X[TRAIN].T))
    scores = (X[TEST] - X[TRAIN].mean(0)) @ vectors[:, ::-1][:, :2] / np.sqrt(values[::-1][:2] * 19 / 20)
    np.testing.assert_allclose(np.abs(split.x_test), np.abs(scores), atol=1e-8)


@pytest.mark.parametrize("fixed", [False, True])
def test_what_is_written_is_read_back_exactly(tmp_path, fixed):
    labels = (np.arange(30) % 3).astype(float)
    made = {
        "r": standardised_split(X, Y, TRAIN, TEST, "regression"),
        "c": standardised_split(X, labels, TRAIN, TEST, "classification", 3),
    }
    for name, split in made.items():
        save_split(tmp_path, name, 0, split)
    write_json(tmp_path / MANIFEST, {"splits": {name: describe([split], fixed=fixed) for name, split in made.items()}})
    for name, split in made.items():
        read = load_split(tmp_path, name, 0)
        for field in ("x_train", "y_train", "x_test", "y_test", "y_mean", "y_sd", "task", "classes"):
            np.testing.assert_array_equal(getattr(read, field), getattr(split, field))
            assert np.asarray(getattr(read, field)).dtype == np.asarray(getattr(split, field)).dtype
    if fixed:  # sets with the owners' test rows have one split for every seed
        np.testing.assert_array_equal(load_split(tmp_path, "r", 7).x_train, made["r"].x_train)
    else:
        with pytest.raises(ValueError, match=r"seed must lie in 0..0 for data set 'r', got 7"):
            load_split(tmp_path, "r", 7)
    with pytest.raises(KeyError, match="data set 'boston' was not prepared; prepared: c, r"):
        load_split(tmp_path, "boston", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X[:, 0]}, r"x must be \(n, d\) and y \(n,\), got \(30,\)"),
        ({"test": TRAIN[:3]}, "parts must be disjoint and not empty, got 20 training and 3 test rows"),
        ({"test": TEST[:0]}, "parts must be disjoint and not empty"),
        ({"y": np.where(np.arange(30) == 2, np.nan, Y)}, "finite numbers, 1 are not"),
        ({"y": np.ones(30)}, "all 20 training targets are equal to 1.0"),
        ({"components": 5}, r"components must be at most 4 with training features \(20, 4\), got 5"),
        ({"task": "ranking"}, "unknown task 'ranking'"),
        ({"task": "classification", "classes": 2, "y": np.arange(30) % 3}, r"labels must be whole numbers in 0..1, got 0 to 2"),
        ({"task": "classification", "classes": 2, "y": np.full(30, 0.5)}, "labels must be whole numbers"),
    ],
)
def test_impossible_splits_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        standardised_split(**{"x": X, "y": Y, "train": TRAIN, "test": TEST, "task": "regression"} | change)
