from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.single_cell.uncertainty import (
    class_centroids,
    confidence_sets,
    credible_intervals,
    label_entropy,
    soft_labels,
    spread,
)


def test_soft_labels_by_loops():
    rng = np.random.default_rng(0)
    draws, centroids = rng.standard_normal((7, 4, 3)), rng.standard_normal((5, 3))
    slow = np.zeros((4, 5))
    for draw in draws:
        for i, u in enumerate(draw):
            slow[i, np.argmin([((u - c) ** 2).sum() for c in centroids])] += 1 / 7
    np.testing.assert_allclose(soft_labels(draws, centroids), slow)


@settings(deadline=None)
@given(st.lists(st.integers(0, 8), min_size=2, max_size=5).filter(any), st.sampled_from([0.0, 0.05, 0.1, 0.3]))
def test_confidence_sets_are_the_smallest_that_hold_enough(counts, alpha):
    p = np.array(counts) / sum(counts)
    chosen = confidence_sets(p[None], alpha)[0]
    assert p[chosen].sum() >= 1 - alpha - 1e-9
    smaller = [p[list(s)].sum() for s in combinations(range(len(p)), int(chosen.sum()) - 1)]
    assert all(mass < 1 - alpha - 1e-9 for mass in smaller)


def test_a_cell_between_two_modes_splits_and_one_at_a_mode_does_not():
    rng = np.random.default_rng(0)
    centroids = np.array([[0.0, 0.0], [6.0, 0.0]])
    draws = np.stack([[3.0, 0.0], [0.0, 0.0]]) + rng.standard_normal((400, 2, 2))
    soft = soft_labels(draws, centroids)
    np.testing.assert_allclose(soft[0], 0.5, atol=0.08)
    assert label_entropy(soft)[0] == pytest.approx(np.log(2), abs=0.02)
    assert label_entropy(soft)[1] < 0.05
    assert confidence_sets(soft, 0.1).sum(axis=1).tolist() == [2, 1]


def test_spread_is_the_trace_of_the_covariance():
    draws = np.random.default_rng(0).standard_normal((9, 3, 4))
    slow = [np.trace(np.cov(draws[:, i], rowvar=False)) for i in range(3)]
    np.testing.assert_allclose(spread(draws), slow)
    assert spread(draws[:1]).tolist() == [0, 0, 0]


def test_intervals_of_few_draws_hold_another_one_as_often_as_they_say():
    rng = np.random.default_rng(0)
    draws, another = rng.standard_normal((19, 4000, 2)), rng.standard_normal((4000, 2))
    lo, hi = credible_intervals(draws, 0.9)
    np.testing.assert_array_equal(lo, draws.min(axis=0))  # rank 0.05 * 20 = 1
    assert ((lo <= another) & (another <= hi)).mean() == pytest.approx(0.9, abs=0.01)


def test_centroids_are_means_by_sorted_name():
    names, centres = class_centroids([[1.0], [3.0], [7.0]], ["b", "b", "a"])
    assert names == ["a", "b"]
    assert centres.tolist() == [[7.0], [2.0]]


def test_impossible_questions_are_refused():
    with pytest.raises(ValueError, match="label for each of 2 cells"):
        class_centroids([[1.0], [2.0]], ["a"])
    with pytest.raises(ValueError, match=r"alpha must lie in \[0, 1\), got 1"):
        confidence_sets([[1.0]], 1.0)
    with pytest.raises(ValueError, match="sum to 1"):
        confidence_sets([[0.5, 0.6]], 0.1)
    with pytest.raises(ValueError, match=r"18 draws are too few .* need 19"):
        credible_intervals(np.zeros((18, 1, 1)), 0.9)
    with pytest.raises(ValueError, match="level must lie"):
        credible_intervals(np.zeros((18, 1, 1)), 1.0)
