from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.single_cell.alra import CANDIDATES, ROUNDING, denoise, threshold_and_scale


def alra_by_loops(low, target):
    out = np.zeros_like(target)
    for j in range(target.shape[1]):
        cut = abs(np.quantile(low[:, j], 0.001))
        kept = [i for i in range(len(target)) if low[i, j] > max(cut, ROUNDING * abs(low).max())]
        seen = [i for i in range(len(target)) if target[i, j] > 0]
        scale, shift = 1.0, 0.0
        if len(kept) > 1 and len(seen) > 1 and np.std(low[kept, j]) > 1e-12 and np.std(target[seen, j]) > 0:
            scale = np.std(target[seen, j], ddof=1) / np.std(low[kept, j], ddof=1)
            shift = target[seen, j].mean() - scale * low[kept, j].mean()
        for i in kept:
            out[i, j] = max(scale * low[i, j] + shift, 0)
        for i in seen:
            if out[i, j] == 0:
                out[i, j] = target[i, j]
    return out


def dropout_data(seed=0, n=80, d=20):
    rng = np.random.default_rng(seed)
    expressed = np.kron([[1, 0], [0, 1]], np.ones((n // 2, d // 2)))
    truth = expressed * np.outer(rng.uniform(1, 3, n), rng.uniform(1, 2, d))
    return truth * (rng.random((n, d)) > 0.4), truth


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_thresholds_and_scales_are_the_definition(seed):
    observed = dropout_data(seed)[0]
    low = observed + np.random.default_rng(seed).standard_normal(observed.shape)
    np.testing.assert_allclose(threshold_and_scale(low, observed), alra_by_loops(low, observed), atol=1e-9)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_the_basis_is_that_of_the_reference(seed):
    reference, target = dropout_data(seed)[0], dropout_data(seed + 1)[0]
    basis = np.linalg.svd(reference, full_matrices=False)[2][:2]  # two blocks: a clear gap after two
    np.testing.assert_allclose(denoise(reference, target, rank=2), alra_by_loops(target @ basis.T @ basis, target), atol=1e-5)


def test_dropouts_are_filled_and_biological_zeros_kept():
    observed, truth = dropout_data()
    found = denoise(observed, observed, rank=2)
    never, dropped = truth == 0, (truth > 0) & (observed == 0)
    assert (found[never] == 0).mean() > 0.95
    assert (found[dropped] > 0).mean() > 0.95
    assert ((found - truth) ** 2).mean() < 0.3 * ((observed - truth) ** 2).mean()


def test_observed_values_never_become_zero_and_all_is_finite_and_non_negative():
    for seed in range(3):
        reference, target = dropout_data(seed)[0], dropout_data(seed + 10)[0]
        for setting in CANDIDATES:
            if setting["rank"] <= 20:
                found = denoise(reference, target, **setting)
                assert np.isfinite(found).all()
                assert (found >= 0).all()
                assert (found[target > 0] > 0).all()


def test_thresholding_in_numbers():
    # One gene in four cells: lowest value -1, so that 0.5 is noise; 2 and 4 are kept (mean 3, sd sqrt 2) and go to the mean and sd
    # of the observed non-zeros 1, 3 (mean 2, sd sqrt 2): 1 and 3. The cell with 0.5 keeps its observed 1; the other stays 0.
    low, observed = np.array([[-1.0], [0.5], [2.0], [4.0]]), np.array([[0.0], [1.0], [3.0], [0.0]])
    found = threshold_and_scale(low, observed)
    assert found[0, 0] == 0
    assert found[1, 0] == 1.0
    np.testing.assert_allclose(found[2:, 0], [1.0, 3.0])


def test_a_gene_that_nobody_expresses_stays_zero():
    observed, _ = dropout_data()
    observed[:, 4] = 0
    assert (denoise(observed, observed, rank=3)[:, 4] == 0).all()


def test_negative_values_and_bad_ranks_are_refused():
    x = dropout_data()[0]
    with pytest.raises(ValueError, match="target has 1600 negative values; ALRA needs"):
        denoise(x, x - 100, rank=2)
    for rank in (0, 21):
        with pytest.raises(ValueError, match=rf"rank must lie in 1..20, got {rank}"):
            denoise(x, x, rank=rank)
