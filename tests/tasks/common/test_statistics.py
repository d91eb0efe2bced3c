from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tasks.common.statistics import bootstrap_interval, mean_interval, paired, pooled, standard_error, summarise

VALUES = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30)


@given(VALUES, st.floats(0.5, 0.99))
def test_interval_is_scipys(values, level):
    mean, lo, hi = mean_interval(values, level)
    spread = np.std(values, ddof=1)
    if spread > 1e-9:
        expected = stats.t.interval(level, len(values) - 1, loc=np.mean(values), scale=spread / math.sqrt(len(values)))
        np.testing.assert_allclose((lo, hi), expected, rtol=1e-9, atol=1e-9)
    assert lo <= mean <= hi


def test_golden_interval():
    # Mean 2, sd 1, se 1/sqrt(3), t(0.975, 2) = 4.302653.
    mean, lo, hi = mean_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert hi - 2 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert 2 - lo == pytest.approx(hi - 2)
    assert standard_error([1.0, 2.0, 3.0]) == pytest.approx(1 / math.sqrt(3))


def test_intervals_cover_as_often_as_they_say():
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((2000, 8))
    hits = [lo <= 0 <= hi for _, lo, hi in map(mean_interval, draws)]
    assert np.mean(hits) == pytest.approx(0.95, abs=0.015)


def test_one_value_has_no_spread():
    assert mean_interval([3.0]) == (3.0, -math.inf, math.inf)
    assert math.isnan(standard_error([3.0]))
    assert summarise("x", [3.0]) == {"x": 3.0, "x.n": 1.0}


@given(VALUES)
def test_summary_names_and_values(values):
    found = summarise("a.b", values)
    assert set(found) == {"a.b", "a.b.lo", "a.b.hi", "a.b.se", "a.b.n"}
    assert found["a.b.n"] == len(values)
    assert (found["a.b"], found["a.b.lo"], found["a.b.hi"]) == mean_interval(values)


@given(VALUES, st.floats(-5, 5))
def test_paired_differences_ignore_what_seeds_share(values, shift):
    x = np.array(values)
    found = paired("d", x + shift, x)
    assert found["d"] == pytest.approx(shift, abs=1e-9)
    assert found["d.se"] == pytest.approx(0.0, abs=1e-9)


def test_pooled_is_the_mean_over_groups_seed_by_seed():
    np.testing.assert_array_equal(pooled([[1.0, 2.0], [3.0, 6.0]]), [2.0, 4.0])


def test_bootstrap_agrees_with_the_t_interval_for_many_values():
    values = np.random.default_rng(1).exponential(size=400)
    lo, hi = bootstrap_interval(values, np.random.default_rng(0))
    _, t_lo, t_hi = mean_interval(values)
    assert lo == pytest.approx(t_lo, abs=0.02)
    assert hi == pytest.approx(t_hi, abs=0.02)
    assert (lo, hi) == bootstrap_interval(values, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_interval([1.0], 1.0), r"level must lie in \(0, 1\), got 1.0"),
        (lambda: mean_interval([]), "no values to summarise"),
        (lambda: summarise("loss", [1.0, math.nan, math.inf]), "loss: 2 of 3 values are not finite"),
        (lambda: paired("d", [1.0], [1.0, 2.0]), "d: paired values need the same seeds, got 1 and 2"),
        (lambda: pooled([[1.0], [1.0, 2.0]]), r"got lengths \[1, 2\]"),
    ],
)
def test_bad_values_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
