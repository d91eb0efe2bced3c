from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.conformal.quantiles import check_lengths, check_mask, conformal_quantile, conformal_rank, weighted_quantile

SCORES = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, 7.0, math.inf]), min_size=1, max_size=25)
WEIGHTS = st.integers(0, 6)


def weighted_by_definition(scores, weights, test_weight, level: Fraction) -> float:
    """In exact arithmetic: the smallest score whose cumulated mass reaches the level."""
    total = sum(weights) + test_weight
    for s in sorted(set(scores)):
        if Fraction(sum(w for x, w in zip(scores, weights, strict=True) if x <= s), total) >= level:
            return s
    return math.inf


@given(SCORES, st.data(), st.integers(0, 6), st.integers(1, 19))
def test_weighted_quantile_is_the_definition_in_exact_arithmetic(scores, data, test_weight, twentieths):
    weights = data.draw(st.lists(WEIGHTS, min_size=len(scores), max_size=len(scores)))
    if sum(weights) + test_weight == 0:
        weights[0] = 1
    expected = weighted_by_definition(scores, weights, test_weight, Fraction(twentieths, 20))
    assert weighted_quantile(scores, weights, test_weight, twentieths / 20)[0] == expected


@given(SCORES, st.integers(1, 19))
def test_equal_weights_give_the_plain_rule(scores, twentieths):
    plain = conformal_quantile(scores, 1 - twentieths / 20)
    assert weighted_quantile(scores, np.full(len(scores), 0.3), 0.3, twentieths / 20)[0] == plain


@given(SCORES, st.integers(1, 999))
def test_plain_rule_is_sorting_and_counting(scores, thousandths):
    rank = math.ceil((len(scores) + 1) * (1 - Fraction(thousandths, 1000)))
    expected = sorted(scores)[rank - 1] if rank <= len(scores) else math.inf
    assert conformal_quantile(scores, thousandths / 1000) == expected


@given(SCORES, st.data(), st.floats(0.01, 1e3))
def test_weighted_quantile_invariants(scores, data, factor):
    weights = np.array(data.draw(st.lists(st.floats(0.01, 5), min_size=len(scores), max_size=len(scores))))
    tests = np.array([0.0, 0.5, 1.0, 10.0])
    found = weighted_quantile(scores, weights, tests, 0.8)
    assert (found[1:] >= found[:-1]).all()  # non-decreasing in the test weight
    assert (weighted_quantile(scores, weights, tests, 0.9) >= found).all()  # and in the level
    whole = np.ceil(weights)
    order = data.draw(st.permutations(range(len(scores))))
    shuffled = weighted_quantile(np.array(scores)[order], whole[order], tests, 0.8)
    assert (shuffled == weighted_quantile(scores, whole, tests, 0.8)).all()
    scaled = weighted_quantile(scores, factor * weights, factor * tests, 0.8)
    mass = np.cumsum(weights[np.argsort(scores, kind="stable")])
    exact_hit = np.abs(mass[:, None] / (mass[-1] + tests) - 0.8).min() < 1e-9
    assert exact_hit or (scaled == found).all()


def test_rank_of_exact_hits_is_not_lost_to_rounding():
    # (n + 1)(1 - alpha) = 9 exactly, though 10 * (1 - 0.1) is 9.000000000000002 for other ways of rounding.
    assert [conformal_rank(n, 0.1) for n in (9, 19, 29, 99, 999)] == [9, 18, 27, 90, 900]


def test_ranks_stay_exact_for_many_rows_and_within_the_scores_for_any_alpha():
    # (n + 1)(1 - 0.7) = 300000 exactly, though 1 - 0.7 is 0.30000000000000004 in floating point.
    assert conformal_rank(999_999, 0.7) == 300_000
    scores = np.arange(1.0, 1_000_000.0)
    assert conformal_quantile(scores, 0.7) == weighted_quantile(scores, np.ones(scores.size), 1.0, 1 - 0.7)[0] == 300_000.0
    assert conformal_quantile([1.0, 2.0, 3.0], 1 - 1e-14) == 1.0


def test_golden_case():
    # Masses 1/8, 2/8, 1/8, 4/8 on infinity: cumulated 1/8 at 1, 3/8 at 2 and 4/8 at 3.
    found = [weighted_quantile([3.0, 1.0, 2.0], [1.0, 1.0, 2.0], 4.0, level)[0] for level in (0.125, 0.13, 0.375, 0.5, 0.51)]
    assert found == [1.0, 2.0, 2.0, 3.0, math.inf]


def test_split_conformal_sets_cover_exchangeable_data():
    # P(S_new <= Q) = ceil((n + 1)(1 - alpha)) / (n + 1) = 46/51 for n = 50 continuous scores.
    rng = np.random.default_rng(1)
    scores = rng.standard_normal((2000, 51))
    hits = np.array([row[50] <= conformal_quantile(row[:50], 0.1) for row in scores])
    assert abs(hits.mean() - 46 / 51) < 3 * math.sqrt(46 / 51 * 5 / 51 / 2000)


def test_crepes_agrees_on_the_plain_rule():
    from crepes import ConformalRegressor

    rng = np.random.default_rng(2)
    residuals = rng.standard_normal(199)
    theirs = ConformalRegressor().fit(residuals=residuals).predict_int(y_hat=np.zeros(3), confidence=0.75)
    ours = conformal_quantile(np.abs(residuals), 0.25)
    np.testing.assert_allclose(theirs, np.tile([-ours, ours], (3, 1)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: conformal_quantile([1.0], 0.0), r"alpha must lie in \(0, 1\), got 0.0"),
        (lambda: conformal_quantile([1.0], 1.5), "alpha must lie in"),
        (lambda: conformal_quantile([], 0.1), "scores is empty"),
        (lambda: conformal_quantile([1.0, math.nan], 0.1), "scores: 1 of 2 are NaN"),
        (lambda: conformal_quantile(["a"], 0.1), "scores must be numbers"),
        (lambda: weighted_quantile([1.0], [1.0], 1.0, 1.0), "level must lie in"),
        (lambda: weighted_quantile([1.0], [-1.0], 1.0, 0.5), "weights must be finite and >= 0"),
        (lambda: weighted_quantile([1.0], [math.inf], 1.0, 0.5), "weights must be finite"),
        (lambda: weighted_quantile([1.0], [1.0], math.nan, 0.5), "test_weights: 1 of 1 are NaN"),
        (lambda: weighted_quantile([1.0, 2.0], [1.0], 1.0, 0.5), "got lengths scores 2, weights 1"),
        (lambda: weighted_quantile([1.0], [0.0], 0.0, 0.5), "all 0"),
        (lambda: check_mask(np.array([0, 1])), "masked must be boolean"),
        (lambda: check_lengths(a=np.zeros(2), b=np.zeros(3)), "a 2, b 3"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
