from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.tabular.splits import random_parts

SHARES = {"train": 0.5, "reference": 0.1, "calibration": 0.2, "test": 0.2}


@given(st.integers(10, 500), st.integers(0, 100), st.none() | st.integers(10, 300))
def test_parts_are_disjoint_exhaustive_and_of_their_shares(n, seed, at_most):
    parts = random_parts(n, SHARES, np.random.default_rng(seed), at_most)
    used = np.concatenate(list(parts.values()))
    assert len(set(used.tolist())) == used.size == min(n, at_most or n)
    assert used.min() >= 0
    assert used.max() < n
    for name, share in SHARES.items():
        assert abs(parts[name].size - share * used.size) <= 1
        assert (np.diff(parts[name]) > 0).all()


def test_a_split_repeats_with_its_generator_and_differs_without():
    first, second, third = (random_parts(100, SHARES, np.random.default_rng(s)) for s in (1, 1, 2))
    assert all((first[k] == second[k]).all() for k in SHARES)
    assert any((first[k] != third[k]).any() for k in SHARES)


def test_shares_below_one_leave_rows_out():
    parts = random_parts(100, {"a": 0.3, "b": 0.2}, np.random.default_rng(0))
    assert [p.size for p in parts.values()] == [30, 20]


@pytest.mark.parametrize(
    ("shares", "n", "message"),
    [
        ({"a": 0.7, "b": 0.7}, 10, "sum to at most 1"),
        ({"a": 0.0, "b": 0.5}, 10, "positive"),
        ({"a": 0.1, "b": 0.9}, 5, "part 'a' is empty"),
        ({}, 5, "shares must be positive"),
        ({"a": float("nan")}, 5, "shares must be positive"),
        ({"a": 0.5}, 0, "n_rows and at_most must be at least 1, got 0 and None"),
    ],
)
def test_impossible_shares_are_refused(shares, n, message):
    with pytest.raises(ValueError, match=message):
        random_parts(n, shares, np.random.default_rng(0))


@pytest.mark.parametrize("at_most", [0, -5])
def test_a_limit_below_one_row_is_refused(at_most):
    with pytest.raises(ValueError, match=f"got 10 and {at_most}"):
        random_parts(10, SHARES, np.random.default_rng(0), at_most)
