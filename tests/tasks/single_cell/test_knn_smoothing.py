from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.single_cell.knn_smoothing import CANDIDATES, denoise


def smooth_by_loops(reference, target, k):
    out = []
    for cell in target:
        order = sorted(range(len(reference)), key=lambda j: np.linalg.norm(reference[j] - cell))
        out.append(np.mean([cell, *(reference[j] for j in order[: k - 1])], axis=0))
    return np.array(out)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12))
def test_smoothing_is_the_mean_over_the_nearest(seed, k):
    rng = np.random.default_rng(seed)
    reference, target = rng.standard_normal((12, 3)), rng.standard_normal((5, 3))
    np.testing.assert_allclose(denoise(reference, target, k=k), smooth_by_loops(reference, target, k), atol=1e-12)


def test_target_cells_do_not_touch_each_other():
    rng = np.random.default_rng(0)
    reference, target = rng.standard_normal((30, 4)), rng.standard_normal((10, 4))
    together = denoise(reference, target, k=5)
    np.testing.assert_allclose(together[3:4], denoise(reference, target[3:4], k=5), atol=1e-12)


def test_smoothing_commutes_with_an_orthogonal_projection():
    # Neighbours and means are the same in a rotated space, so that latents may be smoothed instead of genes.
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    reference, target = rng.standard_normal((30, 4)), rng.standard_normal((10, 4))
    np.testing.assert_allclose(denoise(reference @ rotation, target @ rotation, k=7), denoise(reference, target, k=7) @ rotation)


def test_it_denoises_clusters():
    rng = np.random.default_rng(0)
    truth = np.repeat([[0.0] * 5, [9.0] * 5], 50, axis=0)
    reference, target = truth + rng.standard_normal(truth.shape), truth + rng.standard_normal(truth.shape)
    for setting in CANDIDATES:
        assert ((denoise(reference, target, **setting) - truth) ** 2).mean() < 0.8 * ((target - truth) ** 2).mean()


@pytest.mark.parametrize("k", [0, 31])
def test_k_out_of_range_is_refused(k):
    with pytest.raises(ValueError, match=rf"k must lie in 1..30 for 30 reference cells, got {k}"):
        denoise(np.zeros((30, 2)), np.zeros((2, 2)), k=k)


def test_coordinates_must_agree_and_be_finite():
    with pytest.raises(ValueError, match=r"same columns, got shapes \(3, 2\) and \(3, 4\)"):
        denoise(np.zeros((3, 2)), np.zeros((3, 4)), k=2)
    with pytest.raises(ValueError, match="target: 1 of 4 values are not finite"):
        denoise(np.zeros((3, 2)), np.array([[0.0, np.nan], [0.0, 0.0]]), k=2)
