"""The schema of transitions."""

import doctest
from dataclasses import replace

import numpy as np
import pytest

from tasks.offline_rl import transitions
from tasks.offline_rl.collect import collect_transitions
from tasks.offline_rl.environments import control_task
from tasks.offline_rl.transitions import Standardiser, read_transitions, write_transitions


@pytest.mark.parametrize("module", [transitions])
def test_examples_in_the_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0


def test_transitions_survive_a_round_trip(tmp_path):
    data = collect_transitions(control_task("acrobot"), 60, np.random.default_rng(0))
    write_transitions(tmp_path / "a.parquet", data)
    again = read_transitions(tmp_path / "a.parquet")
    for column in vars(data):
        np.testing.assert_array_equal(getattr(again, column), getattr(data, column))


def test_a_table_without_the_schema_is_refused(tmp_path):
    import pandas as pd

    pd.DataFrame({"obs": [[1.0]]}).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(ValueError, match="lacks the columns"):
        read_transitions(tmp_path / "b.parquet")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": np.zeros((3, 2))}, "must both be"),
        ({"reward": np.zeros(3)}, r"reward must have shape \(4,\)"),
        ({"reward": np.array([0, np.nan, 0, 0])}, "not finite"),
        ({"action": np.array([0, -1, 0, 0])}, "indices >= 0"),
        ({"action": np.array([0, 0.5, 0, 0])}, "indices >= 0"),
        ({"episode": np.array([1, 0, 0, 0])}, "must not decrease"),
    ],
)
def test_bad_transitions_are_refused(change, message):
    flags = np.zeros(4, bool)
    good = transitions.Transitions(np.zeros((4, 2)), np.zeros(4, int), np.zeros(4), np.zeros((4, 2)), flags, flags, np.zeros(4, int))
    with pytest.raises(ValueError, match=message):
        replace(good, **change)


def test_standardiser_leaves_constant_columns_alone():
    rows = np.array([[1.0, 5.0], [3.0, 5.0]])
    np.testing.assert_allclose(Standardiser.of(rows)(rows), [[-1, 0], [1, 0]])
