from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.conformal.diagnostics import constant_error_effect, signed_law, signed_weighted_quantile, weight_error_report
from tasks.conformal.quantiles import weighted_quantile

SEEDS = st.integers(0, 100_000)


@given(SEEDS, st.floats(-3, 50).filter(lambda d: abs(d) > 1e-6))
def test_theorem_2_is_a_mixture_of_two_laws(seed, delta):
    rng = np.random.default_rng(seed)
    scores, w, w_test = rng.standard_normal(40), rng.exponential(size=40) + 0.1, 1.0
    total = w.sum() + w_test
    if abs(total + 41 * delta) < 1e-3 * total:
        return
    lam = total / (total + 41 * delta)
    _, wrong = signed_law(scores, w + delta, w_test + delta)
    _, right = signed_law(scores, w, w_test)
    _, plain = signed_law(scores, np.ones(40), 1.0)
    np.testing.assert_allclose(wrong, lam * right + (1 - lam) * plain, atol=1e-12 * max(1.0, abs(lam)))


@given(SEEDS)
def test_theorem_3_is_a_mixture_with_the_signed_law_of_the_errors(seed):
    rng = np.random.default_rng(seed)
    scores, w, delta = rng.standard_normal(40), rng.exponential(size=40) + 0.1, rng.standard_normal(41)
    big_w, big_d = w.sum() + 1.0, delta.sum()
    if min(abs(big_d), abs(big_w + big_d)) < 0.1:
        return
    _, wrong = signed_law(scores, w + delta[:40], 1.0 + delta[40])
    _, right = signed_law(scores, w, 1.0)
    _, errors = signed_law(scores, delta[:40], delta[40])
    np.testing.assert_allclose(wrong - right, big_d / (big_w + big_d) * (errors - right), atol=1e-10)


@given(SEEDS, st.booleans())
def test_report_agrees_with_comparing_the_thresholds(seed, ties):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(5, 60))
    scores = rng.integers(0, 6, n).astype(float) if ties else rng.standard_normal(n)
    w, v = rng.exponential(size=n) + 0.1, rng.exponential(size=n) + 0.1
    report = weight_error_report(scores, w, v, 1.3, 0.4, 0.9)
    right, wrong = weighted_quantile(scores, w, 1.3, 0.9)[0], weighted_quantile(scores, v, 0.4, 0.9)[0]
    assert report.threshold == right
    assert report.large_enough == (wrong >= right)


def test_report_reads_like_the_theorem_for_many_rows():
    # Errors only on the largest scores, all positive: D > 0 and F_d(Q) < level, so the threshold grows.
    scores = np.arange(1000.0)
    delta = np.where(scores > 950, 0.5, 0.0)
    report = weight_error_report(scores, np.ones(1000), np.ones(1000) + delta, 1.0, 1.0, 0.9)
    assert report.error_sum == pytest.approx(0.5 * 49)
    assert report.error_mass == 0.0
    assert report.large_enough
    shrunk = weight_error_report(scores, np.ones(1000), np.ones(1000) - delta, 1.0, 1.0, 0.9)
    assert not shrunk.large_enough
    same = weight_error_report(scores, np.ones(1000), np.ones(1000), 1.0, 1.0, 0.9)
    assert math.isnan(same.error_mass)
    assert same.large_enough


def test_signed_quantile_takes_the_first_crossing_and_tells_the_violation():
    # Masses 2/4, -1/4, 2/4, 1/4 on infinity: the level 0.5 is reached at once and missed by 1/4 right after.
    found = signed_weighted_quantile([1.0, 2.0, 3.0], [2.0, -1.0, 2.0], 1.0, 0.5)
    assert (found.threshold, found.violation) == (1.0, 0.25)
    assert signed_weighted_quantile([1.0, 2.0], [1.0, 1.0], 2.0, 0.6).threshold == math.inf


@given(SEEDS)
def test_signed_quantile_of_true_weights_is_the_weighted_quantile(seed):
    rng = np.random.default_rng(seed)
    scores, w = rng.integers(0, 9, 30).astype(float), rng.exponential(size=30) + 0.01
    found = signed_weighted_quantile(scores, w, 0.7, 0.8)
    assert found.threshold == weighted_quantile(scores, w, 0.7, 0.8)[0]
    assert found.violation < 1e-9


@given(SEEDS, st.sampled_from([-3.0, -1.5, -0.8, -0.5, -0.1, 0.1, 0.5, 10.0]))
def test_theorem_2_gives_the_direction(seed, delta):
    # Weights that grow with the score: the plain threshold is too small, so +1 means at least as large as the right one.
    rng = np.random.default_rng(seed)
    scores = np.sort(rng.exponential(size=400))
    w = np.linspace(0.2, 1.8, 400)
    right = weighted_quantile(scores, w, 1.0, 0.8)[0]
    plain = weighted_quantile(scores, np.ones(400), 1.0, 0.8)[0]
    assert plain < right
    wrong = signed_weighted_quantile(scores, w + delta, 1.0 + delta, 0.8).threshold
    effect = constant_error_effect(delta, (w.sum() + 1.0) / 401)
    assert wrong >= right if effect > 0 else wrong <= right


def test_undefined_laws_are_refused():
    with pytest.raises(ValueError, match="cancels all weights"):
        constant_error_effect(-1.0, 1.0)
    with pytest.raises(ValueError, match="sum to 0"):
        signed_law([1.0], [1.0], -1.0)
    with pytest.raises(ValueError, match="delta: 1 of 1 are NaN"):
        constant_error_effect(math.nan, 1.0)
    with pytest.raises(ValueError, match="mean_weight must be positive"):
        constant_error_effect(0.5, -1.0)
    with pytest.raises(ValueError, match="test_weight: 1 of 1 are NaN"):
        signed_weighted_quantile([1.0], [1.0], math.nan, 0.5)
    with pytest.raises(ValueError, match="weights must be finite"):
        signed_weighted_quantile([1.0, 2.0], [1.0, math.inf], 1.0, 0.5)
    with pytest.raises(ValueError, match="w_true must be finite and >= 0"):
        weight_error_report([1.0], [-1.0], [1.0], 1.0, 1.0, 0.5)
    with pytest.raises(ValueError, match="test_est: 1 of 1 are NaN"):
        weight_error_report([1.0], [1.0], [1.0], 1.0, math.nan, 0.5)
    with pytest.raises(ValueError, match="w_est and test_est sum to 0"):
        weight_error_report([1.0], [1.0], [1.0], 1.0, -1.0, 0.5)
    with pytest.raises(ValueError, match="scores 1, w_true 1, w_est 2"):
        weight_error_report([1.0], [1.0], [1.0, 2.0], 1.0, 1.0, 0.5)
