from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.conformal.intervals import covers, cqr_interval, cqr_scores, lengths, union

ENDS = st.tuples(st.integers(-5, 5), st.integers(-5, 5))


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.floats(-3, 3)), min_size=1), st.floats(-2, 4))
def test_interval_holds_exactly_the_labels_with_small_scores(rows, threshold):
    y, lower, upper = np.array(rows).T
    lo, hi = cqr_interval(lower, upper, threshold)
    close = np.abs(cqr_scores(y, lower, upper) - threshold) < 1e-9
    assert ((covers(y, lo, hi) == (cqr_scores(y, lower, upper) <= threshold)) | close).all()
    assert (lengths(lo, hi) >= 0).all()


def test_crossing_ends_make_an_empty_set_and_infinite_thresholds_the_line():
    lo, hi = cqr_interval(np.zeros(2), np.ones(2), np.array([-1.0, np.inf]))
    assert lengths(lo, hi).tolist() == [0.0, np.inf]
    assert covers(np.array([0.5, 1e9]), lo, hi).tolist() == [False, True]


@given(st.lists(st.lists(ENDS, min_size=3, max_size=3), min_size=1, max_size=6))
def test_union_is_what_a_grid_of_points_says(rows):
    sets = []
    for k in range(3):
        lo = np.array([row[k][0] for row in rows], dtype=float)
        hi = np.array([row[k][1] for row in rows], dtype=float)
        sets.append((np.where(lo > hi, np.inf, lo), np.where(lo > hi, -np.inf, hi)))
    lo, hi = union(*sets)
    for y in np.arange(-5.5, 6.0, 0.25):
        here = np.full(len(rows), y)
        assert (covers(here, lo, hi) == np.logical_or.reduce([covers(here, *s) for s in sets])).all()
    # Integer ends: the measure is the number of unit cells whose midpoint is covered.
    cells = sum(covers(np.full(len(rows), m), lo, hi).astype(float) for m in np.arange(-4.5, 5.0))
    np.testing.assert_allclose(lengths(lo, hi), cells)
    filled = lo <= hi
    assert (hi[:, :-1][filled[:, 1:] & filled[:, :-1]] < lo[:, 1:][filled[:, 1:] & filled[:, :-1]]).all()  # sorted and apart


def test_union_of_nested_bands_is_the_widest():
    rng = np.random.default_rng(0)
    lower = rng.standard_normal(50)
    upper = lower + rng.random(50)
    lo, hi = union(*(cqr_interval(lower, upper, q) for q in (0.1, -0.2, 0.7)))
    np.testing.assert_allclose(lengths(lo, hi), lengths(*cqr_interval(lower, upper, 0.7)))


def test_nothing_to_unite_and_lengths_that_differ_are_refused():
    with pytest.raises(ValueError, match="sets is empty"):
        union()
    with pytest.raises(ValueError, match="lo of set 0 1, hi of set 0 1, lo of set 1 2, hi of set 1 2"):
        union((np.zeros(1), np.ones(1)), (np.zeros(2), np.ones(2)))
    with pytest.raises(ValueError, match=r"single intervals \(n,\), got"):
        union((np.zeros((2, 2)), np.ones((2, 2))))
    with pytest.raises(ValueError, match="y 1, lower 2, upper 2"):
        cqr_scores([0.0], [0.0, 1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="lower 2, upper 2, threshold 3"):
        cqr_interval(np.zeros(2), np.ones(2), np.ones(3))
    with pytest.raises(ValueError, match="threshold: 1 of 2 are NaN"):
        cqr_interval(np.zeros(2), np.ones(2), [0.0, np.nan])
    with pytest.raises(ValueError, match="y 3, lo 2, hi 2"):
        covers(np.zeros(3), np.zeros(2), np.ones(2))


def test_columns_are_rows_and_never_a_table():
    lo, hi = cqr_interval(np.zeros((2, 1)), np.ones((2, 1)), np.ones((2, 1)))
    assert lo.shape == hi.shape == (2,)
    assert covers(np.zeros((2, 1)), lo.tolist(), hi.tolist()).shape == (2,)


def test_a_crossing_interval_between_two_others_does_not_hide_their_overlap():
    lo, hi = union(*((np.array([a]), np.array([b])) for a, b in ((0.0, 10.0), (2.0, 1.0), (3.0, 4.0))))
    assert lengths(lo, hi).tolist() == [10.0]
