from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from tasks.single_cell.nmf import CANDIDATES, denoise, factorise


def parts_data(seed=0, n=60, noise=0.1):
    rng = np.random.default_rng(seed)
    parts = np.kron(np.eye(3), np.ones(5)) + 0.1  # three blocks of five genes
    truth = rng.exponential(1.0, (n, 3)) @ parts
    return np.maximum(truth + noise * rng.standard_normal(truth.shape), 0), truth


def test_target_scores_are_the_non_negative_least_squares_of_the_learned_parts():
    reference, target = parts_data(0)[0], parts_data(1, n=8)[0]
    found = factorise(reference, target, components=3, steps=1000)
    slow = np.array([nnls(found.parts.T, row)[0] for row in target])
    np.testing.assert_allclose(found.scores @ found.parts, slow @ found.parts, atol=5e-3)


def test_parts_are_learned_on_the_reference_alone():
    reference = parts_data(0)[0]
    a = factorise(reference, parts_data(1)[0], components=3)
    b = factorise(reference, parts_data(2)[0], components=3)
    np.testing.assert_array_equal(a.parts, b.parts)
    np.testing.assert_array_equal(factorise(reference, parts_data(1)[0], components=3).scores, a.scores)


def test_noise_outside_the_parts_is_removed():
    reference, target, truth = parts_data(0, noise=0.4)[0], *parts_data(1, noise=0.4)
    found = factorise(reference, target, components=3)
    assert ((found.expression - truth) ** 2).mean() < 0.5 * ((target - truth) ** 2).mean()
    assert (found.scores >= 0).all()
    assert (found.parts >= 0).all()
    np.testing.assert_array_equal(denoise(reference, target, components=3), found.expression)


def test_shrinkage_shrinks():
    reference, target = parts_data(0)[0], parts_data(1)[0]
    sizes = [float(denoise(reference, target, components=3, shrinkage=s).sum()) for s in (0.0, 0.02, 0.2)]
    assert sizes[0] > 1.005 * sizes[1]
    assert sizes[1] > 1.02 * sizes[2]


def test_every_candidate_is_a_setting():
    reference, target = parts_data(0)[0], parts_data(1)[0]
    for setting in CANDIDATES:
        assert np.isfinite(denoise(reference, target, components=3, **setting)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"components": 0}, "components must lie in 1..15, got 0"),
        ({"components": 16}, "components must lie in 1..15, got 16"),
        ({"shrinkage": -1.0}, "shrinkage must be >= 0, got -1.0"),
        ({"target": -np.ones((2, 15))}, "target has 30 negative values; NMF needs"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    good = {"reference": parts_data()[0], "target": parts_data(1)[0], "components": 3}
    with pytest.raises(ValueError, match=message):
        factorise(**(good | change))
