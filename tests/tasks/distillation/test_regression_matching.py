"""Distilled regression sets."""

import numpy as np
import pytest

from tasks.distillation.linear_models import least_squares
from tasks.distillation.quadratic import spectral_error
from tasks.distillation.regression_data import read_table, split_table
from tasks.distillation.regression_matching import RegressionMatchingParams
from tasks.distillation.regression_sets import read_sets

pytestmark = pytest.mark.xdist_group("distillation")


def test_the_stage_is_deterministic(smoke):
    (first, _, _), (second, _, _) = smoke
    assert first["train-supervised"] == second["train-supervised"]
    assert first["train-supervised"]


def test_models_trained_on_distilled_rows_are_those_of_the_training_part(smoke):
    metrics, _, folder = smoke[0]
    sets = read_sets(folder / "train-supervised" / "sets.parquet")
    train, _ = split_table(read_table(folder / "prepare-tables", "diabetes"), 0)
    exact, wrong = (sets["diabetes", 0, arm, 20] for arm in ("syn_k100", "syn_k5"))
    assert spectral_error(exact.rows, train) < 1e-6 < spectral_error(wrong.rows, train)
    np.testing.assert_allclose(least_squares(exact.rows), least_squares(train), atol=1e-4)
    assert exact.end < 1e-10 * exact.start
    assert metrics["train-supervised"]["syn_k5.spectral_error.boston"] > 0.1


def test_unknown_optimisers_are_refused():
    with pytest.raises(ValueError, match="gauss_newton"):
        RegressionMatchingParams(optimiser="sgd")
