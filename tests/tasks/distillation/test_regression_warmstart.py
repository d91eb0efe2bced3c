"""Baselines and regressors of the supervised part."""

import numpy as np
import pytest

from tasks.distillation.quadratic import spectral_error
from tasks.distillation.regression_data import read_table, split_table
from tasks.distillation.regression_sets import RegressionSet, read_sets, write_sets
from tasks.distillation.regression_warmstart import RegressionStartParams

pytestmark = pytest.mark.xdist_group("distillation")


def test_the_stage_is_deterministic(smoke):
    (first, _, _), (second, _, _) = smoke
    assert first["warmstart-supervised"] == second["warmstart-supervised"]
    assert first["warmstart-supervised"]


def test_baselines_are_rows_of_the_training_part(smoke):
    metrics, _, folder = smoke[0]
    sets = read_sets(folder / "warmstart-supervised" / "sets.parquet")
    train, _ = split_table(read_table(folder / "prepare-tables", "concrete"), 1)
    known = {row.tobytes() for row in train}
    assert all(row.tobytes() in known for arm in ("rand", "lev_unscaled") for row in sets["concrete", 1, arm, 50].rows)
    assert spectral_error(sets["concrete", 1, "root", 20].rows, train) < 1e-10
    assert metrics["warmstart-supervised"]["identifiable.boston_k100"] == 0
    assert metrics["warmstart-supervised"]["identifiable.boston_k115"] == 1


def test_regression_sets_survive_a_round_trip(tmp_path):
    rows = np.arange(6.0).reshape(2, 3)
    write_sets(tmp_path / "a.parquet", [RegressionSet("t", 1, "rand", 2, rows, 0.5, 0.25)])
    again = read_sets(tmp_path / "a.parquet")["t", 1, "rand", 2]
    np.testing.assert_array_equal(again.rows, rows)
    assert (again.start, again.end) == (0.5, 0.25)


def test_impossible_parameters_are_refused():
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        RegressionStartParams(trials=0)
    with pytest.raises(ValueError, match="at least 1"):
        RegressionStartParams(sizes=())
