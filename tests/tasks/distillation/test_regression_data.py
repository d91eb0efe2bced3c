"""Tables: shapes, splits, the official wine format, and what is refused."""

import doctest

import numpy as np
import pytest

from tasks.distillation import regression_data
from tasks.distillation.regression_data import WINE_COLUMNS, TableParams, load_regression_table, split_table


def wine_file(folder, colour="red", rows=12):
    header = ";".join(f'"{c}"' for c in WINE_COLUMNS)
    lines = [";".join(str(round(7.0 + 0.1 * i + j, 2)) for j in range(11)) + f";{3 + i % 5}" for i in range(rows)]
    path = folder / f"winequality-{colour}.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(regression_data).failed == 0


@pytest.mark.parametrize(
    ("name", "shape", "target"),
    [("boston", (506, 14), "medv"), ("concrete", (1030, 9), "compressive_strength"), ("diabetes", (442, 11), "target")],
)
def test_packaged_tables(name, shape, target):
    frame = load_regression_table(name)
    assert frame.shape == shape
    assert frame.columns[-1] == target


def test_official_wine_files_are_read(tmp_path):
    wine_file(tmp_path, "red")
    wine_file(tmp_path, "white", 20)
    assert load_regression_table("wine_red", str(tmp_path)).shape == (12, 12)
    white = load_regression_table("wine_white", str(tmp_path))
    assert white.shape == (20, 12)
    assert white["quality"].tolist()[:3] == [3.0, 4.0, 5.0]
    assert white["pH"][1] == pytest.approx(15.1)


def test_wine_that_is_missing_or_of_another_format_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"winequality-red\.csv is missing; download it from https"):
        load_regression_table("wine_red", str(tmp_path))
    path = wine_file(tmp_path)
    path.write_text(path.read_text().replace(";", ","))
    with pytest.raises(ValueError, match="separated by ';'"):
        load_regression_table("wine_red", str(tmp_path))


def test_holes_and_unknown_names_are_refused(tmp_path):
    path = wine_file(tmp_path)
    lines = path.read_text().splitlines()
    lines[3] = lines[3].replace("7.2;", ";", 1)
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match="missing or not finite"):
        load_regression_table("wine_red", str(tmp_path))
    with pytest.raises(KeyError, match="known: boston, concrete, diabetes, wine_red, wine_white"):
        load_regression_table("airfoil")
    with pytest.raises(ValueError, match="at least 1"):
        TableParams(tables=())


def test_splits_are_standardised_with_the_training_part_alone():
    rows = np.random.default_rng(0).gamma(2.0, size=(101, 3))
    rows[:, 1] = 7.0
    train, test = split_table(rows, 3)
    assert (len(train), len(test)) == (80, 21)
    np.testing.assert_allclose(train.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(train.std(0), [1, 0, 1], atol=1e-12)
    assert abs(test[:, 0].mean()) > 1e-6
    again, _ = split_table(rows, 3)
    np.testing.assert_array_equal(train, again)
    assert not np.array_equal(train, split_table(rows, 4)[0])
    with pytest.raises(ValueError, match="at least 5 rows"):
        split_table(rows[:4], 0)
