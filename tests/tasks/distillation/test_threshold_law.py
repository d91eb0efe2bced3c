"""Sweeps over the number of regressors."""

import doctest

import numpy as np
import pandas as pd
import pytest

from tasks.distillation import threshold_law
from tasks.distillation.quadratic import threshold
from tasks.distillation.threshold_law import smallest_sufficient

pytestmark = pytest.mark.xdist_group("distillation")


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(threshold_law).failed == 0


def test_the_stage_is_deterministic(smoke):
    (first, _, _), (second, _, _) = smoke
    assert first["train-sweep"] == second["train-sweep"]
    assert first["train-sweep"]


def test_the_smallest_sufficient_k_is_the_threshold(smoke):
    law = pd.read_parquet(smoke[0][2] / "train-sweep" / "law.parquet")
    assert (law.k_star - law.q * (law.q + 1) / 2).abs().max() <= 2


def test_bisection_agrees_with_trying_every_k():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((40, 3))
    found = smallest_sufficient(rows, rows[:5], np.random.default_rng(0), 1e-3)
    assert found == threshold(3)


def test_too_few_rows_have_no_sufficient_number_of_regressors():
    rows = np.random.default_rng(0).standard_normal((50, 4))
    with (
        pytest.warns(UserWarning, match="will not match exactly"),
        pytest.raises(ValueError, match="use at least q rows"),
    ):
        smallest_sufficient(rows, rows[:2], np.random.default_rng(0), 1e-3)


def test_as_many_rows_as_coordinates_are_enough_and_one_fewer_is_not(smoke):
    metrics = smoke[0][0]["train-sweep"]
    for table in ("boston", "concrete", "diabetes"):
        assert metrics[f"enough_rows.spectral_error.{table}"] < 1e-6
        assert metrics[f"too_few_rows.spectral_error.{table}"] > 1e-3
