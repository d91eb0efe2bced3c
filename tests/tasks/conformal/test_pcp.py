from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.conformal.pcp import pcp_threshold
from tasks.conformal.quantiles import conformal_quantile, weighted_quantile
from tasks.conformal.synthetic import shifted_coverage, shifted_scores


def pcp_by_definition(scores, weights, masked, alpha, beta) -> float:
    """Theorem 1, O(n^2): one weighted quantile for every calibration row, then their (1 - beta) quantile."""
    clean = ~masked
    per_row = [float(weighted_quantile(scores[clean], weights[clean], w, 1 - alpha + beta)[0]) for w in weights]
    return conformal_quantile(per_row, beta)


@settings(max_examples=200)
@given(st.integers(1, 60), st.integers(0, 10_000), st.sampled_from([0.02, 0.1, 0.5]), st.sampled_from([0.1, 0.5]), st.booleans())
def test_fast_form_is_the_slow_one_with_ties_and_infinities(n, seed, alpha, share, ties):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 5, n).astype(float) if ties else rng.standard_normal(n)
    weights = rng.integers(1, 4, n).astype(float) if ties else rng.exponential(size=n) + 0.01
    masked = rng.random(n) < 0.3
    masked[0] = False
    ours = pcp_threshold(scores, weights, masked, alpha, share * alpha)
    assert ours == pcp_by_definition(scores, weights, masked, alpha, share * alpha)


def test_few_rows_give_an_infinite_threshold_and_enough_a_finite_one():
    scores, masked = np.arange(400.0), np.zeros(400, bool)
    assert math.isinf(pcp_threshold(scores[:198], np.ones(198), masked[:198], 0.1, 0.005))  # 198 < 1/beta - 1
    assert math.isfinite(pcp_threshold(scores[:199], np.ones(199), masked[:199], 0.1, 0.005))


@given(st.integers(0, 1000))
def test_monotone_in_alpha_and_never_below_the_plain_threshold(seed):
    rng = np.random.default_rng(seed)
    scores, masked = rng.standard_normal(300), rng.random(300) < 0.2
    weights = rng.exponential(size=300) + 0.5
    found = [pcp_threshold(scores, weights, masked, alpha, 0.01) for alpha in (0.05, 0.1, 0.2, 0.4)]
    assert found == sorted(found, reverse=True)
    nothing = np.zeros(300, bool)
    assert pcp_threshold(scores, np.ones(300), nothing, 0.1) >= conformal_quantile(scores, 0.1)


def test_a_beta_next_to_alpha_is_no_error():
    scores, nothing = np.arange(2000.0), np.zeros(2000, bool)
    assert pcp_threshold(scores, np.ones(2000), nothing, 0.001, math.nextafter(0.001, 0.0)) == math.inf


def test_scores_of_corrupted_rows_are_not_read():
    rng = np.random.default_rng(0)
    scores, masked, weights = rng.standard_normal(300), rng.random(300) < 0.3, rng.random(300) + 0.5
    hidden = np.where(masked, np.nan, scores)
    assert pcp_threshold(hidden, weights, masked, 0.1) == pcp_threshold(scores, weights, masked, 0.1)


def test_true_weights_cover_where_naive_thresholds_do_not():
    # Negative control in the same breath: constant weights lose the coverage that true weights give.
    covered = {"true": [], "constant": []}
    for seed in range(40):
        sample = shifted_scores(2000, "under", np.random.default_rng(seed))
        for name, weights in (("true", sample.weights), ("constant", np.ones(2000))):
            covered[name].append(float(shifted_coverage(pcp_threshold(sample.scores, weights, sample.masked, 0.1))))
    assert np.mean(covered["true"]) > 0.9
    assert np.mean(covered["constant"]) < 0.87


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": 0.0}, "alpha must lie in"),
        ({"beta": 0.1}, r"beta must lie in \(0, alpha\) = \(0, 0.1\), got 0.1"),
        ({"beta": 0.0}, "beta must lie in"),
        ({"scores": np.array([1.0, np.nan, 2.0])}, "scores: 1 of 2 are NaN"),
        ({"weights": np.array([1.0, -1.0, 1.0])}, "weights must be finite and >= 0"),
        ({"weights": np.array([1.0, np.nan, 1.0])}, "weights: 1 of 3 are NaN"),
        ({"masked": np.array([0, 0, 1])}, "masked must be boolean"),
        ({"masked": np.ones(3, bool)}, "all 3 calibration rows are corrupted"),
        ({"weights": np.ones(2)}, "got lengths scores 3, weights 2, masked 3"),
        ({"scores": [], "weights": [], "masked": np.zeros(0, bool)}, "weights is empty"),
    ],
)
def test_bad_input_is_refused(change, message):
    good = {
        "scores": np.array([1.0, 2.0, 3.0]),
        "weights": np.ones(3),
        "masked": np.array([False, False, True]),
        "alpha": 0.1,
        "beta": 0.05,
    }
    with pytest.raises(ValueError, match=message):
        pcp_threshold(**(good | change))
