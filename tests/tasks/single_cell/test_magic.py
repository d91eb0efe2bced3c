from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.single_cell.magic import CANDIDATES, REACH, denoise, transition


def affinity_by_loops(pool, cells, k, decay):
    out = np.zeros((len(cells), len(pool)))
    for i, cell in enumerate(cells):
        distance = np.linalg.norm(pool - cell, axis=1)
        order = np.argsort(distance, kind="stable")
        others = [j for j in order if distance[j] > 1e-9]
        width = distance[others[k - 1]]
        for j in order[: REACH * k + 1]:
            out[i, j] = np.exp(-((distance[j] / width) ** decay))
    return out


def magic_by_loops(reference, target, k, t, decay):
    symmetric = affinity_by_loops(reference, reference, k, decay)
    symmetric = symmetric + symmetric.T
    walk = symmetric / symmetric.sum(axis=1, keepdims=True)
    entry = affinity_by_loops(reference, target, k, decay)
    entry /= entry.sum(axis=1, keepdims=True)
    return entry @ np.linalg.matrix_power(walk, t - 1) @ reference


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 4), st.sampled_from([1.0, 2.0, 10.0]))
def test_walk_is_the_dense_one(seed, k, t, decay):
    rng = np.random.default_rng(seed)
    reference, target = rng.standard_normal((20, 3)), rng.standard_normal((5, 3))
    np.testing.assert_allclose(denoise(reference, target, k=k, t=t, decay=decay), magic_by_loops(reference, target, k, t, decay), atol=1e-9)


def test_cells_of_the_reference_stay_at_themselves_for_a_step():
    rng = np.random.default_rng(0)
    cells = rng.standard_normal((20, 3)) + 100.0  # far from the origin rounding hides the zero distance to itself
    np.testing.assert_allclose(denoise(cells, cells, k=4, t=2, decay=2.0), magic_by_loops(cells, cells, 4, 2, 2.0), atol=1e-4)


def test_steps_are_probabilities_and_constants_stay():
    cells = np.random.default_rng(0).standard_normal((40, 3))
    walk = transition(cells, 5, 1.0).toarray()
    np.testing.assert_allclose(walk.sum(axis=1), 1.0)
    assert (walk >= 0).all()
    smoothed = denoise(np.column_stack([cells, np.full(40, 7.0)]), np.column_stack([cells[:5], np.full(5, 7.0)]), k=5, t=3)
    np.testing.assert_allclose(smoothed[:, 3], 7.0)


def test_non_negative_values_stay_non_negative_inside_the_range_of_the_reference():
    rng = np.random.default_rng(1)
    reference, target = rng.poisson(1.0, (50, 8)).astype(float), rng.poisson(1.0, (9, 8)).astype(float)
    for setting in CANDIDATES:
        smoothed = denoise(reference, target, **setting)
        assert np.isfinite(smoothed).all()
        assert (smoothed >= 0).all()
        assert (smoothed <= reference.max(axis=0) + 1e-12).all()


def test_coinciding_cells_do_not_divide_by_zero():
    reference = np.repeat(np.eye(3), 10, axis=0)
    assert np.isfinite(denoise(reference, np.eye(3), k=3, t=3)).all()


def test_more_steps_smooth_more_and_clusters_stay_apart():
    rng = np.random.default_rng(0)
    truth = np.repeat([[0.0] * 4, [20.0] * 4], 60, axis=0)
    reference, target = truth + rng.standard_normal(truth.shape), truth + rng.standard_normal(truth.shape)
    errors = [((denoise(reference, target, k=10, t=t) - truth) ** 2).mean() for t in (1, 2, 4)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.2 * ((target - truth) ** 2).mean()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k must lie in 1..9 for 10 reference cells, got 0"),
        ({"k": 10}, "k must lie in 1..9 for 10 reference cells, got 10"),
        ({"t": 0}, "need t >= 1 steps and decay > 0, got 0 and 1.0"),
        ({"decay": 0.0}, "got 3 and 0.0"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        denoise(np.eye(10), np.eye(10), **({"k": 3, "t": 3} | change))
