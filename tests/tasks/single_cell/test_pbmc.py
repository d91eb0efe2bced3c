from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from tasks.common.assets import AssetMissing
from tasks.single_cell import pbmc
from tasks.single_cell.pbmc import drop_rare, load_pbmc, packaged_path, recover_counts, split, thin


@pytest.fixture(scope="module")
def cells():
    return load_pbmc()


def test_the_cells_are_the_known_ones(cells):
    # Published with the file: ten types, 700 cells; those of 13 and 8 cells are dropped.
    assert cells.obs["label"].value_counts().to_dict() == {
        "Dendritic": 240,
        "CD14+ Monocyte": 129,
        "CD19+ B": 95,
        "CD4+/CD25 T Reg": 68,
        "CD8+ Cytotoxic T": 54,
        "CD8+/CD45RA+ Naive Cytotoxic": 43,
        "CD56+ NK": 31,
        "CD4+/CD45RO+ Memory": 19,
    }
    assert cells.shape == (679, 765)
    assert cells.var_names.is_unique
    assert cells.obs_names.is_unique


def test_recovered_counts_are_whole_and_give_the_stored_values_back(cells):
    import anndata

    counts = cells.layers["counts"]
    assert (counts.data == np.rint(counts.data)).all()
    assert (counts.data > 0).all()
    assert 640 < np.median(np.asarray(counts.sum(axis=1))) < 670
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = anndata.read_h5ad(packaged_path())[cells.obs_names]
    stored = packed.raw.X.toarray()
    again = np.log1p(counts.toarray() * 1e4 / packed.obs["n_counts"].to_numpy()[:, None])
    # 0.08 counts out of at least one is the largest rounding of the file, in logarithms.
    np.testing.assert_allclose(again, stored, atol=0.06)
    assert np.median(np.abs(again - stored)[stored > 0]) < 1e-3


def test_counts_of_another_library_size_are_refused(cells):
    logs = csr_matrix(np.log1p(cells.layers["counts"].toarray() * 1e4 / 2500.0))
    assert (recover_counts(logs, np.full(679, 2500.0)) != cells.layers["counts"]).nnz == 0
    with pytest.raises(ValueError, match=r"a value lies .* from a whole number .*library sizes"):
        recover_counts(logs, np.full(679, 2100.0))


def test_missing_and_damaged_files_name_the_command(tmp_path, monkeypatch):
    with pytest.raises(AssetMissing, match=r"gone.h5ad is missing; install it with: pip install .*scanpy"):
        load_pbmc(tmp_path / "gone.h5ad")
    damaged = tmp_path / "cells.h5ad"
    damaged.write_bytes(packaged_path().read_bytes()[:-1])
    with pytest.raises(AssetMissing, match=r"cells.h5ad is damaged .*pip install .*scanpy"):
        load_pbmc(damaged)
    monkeypatch.setattr(pbmc, "find_spec", lambda name: None)
    with pytest.raises(AssetMissing, match="scanpy is not installed; install it with: pip install"):
        load_pbmc()


def test_split_is_stratified_disjoint_and_complete(cells):
    labels = cells.obs["label"].to_numpy()
    parts = split(labels, seed=3)
    np.testing.assert_array_equal(np.sort(np.concatenate([parts.reference, parts.target])), np.arange(679))
    for name in np.unique(labels):
        assert (labels[parts.reference] == name).sum() == round(0.6 * (labels == name).sum())
    np.testing.assert_array_equal(split(labels, seed=3).reference, parts.reference)
    assert set(split(labels, seed=4).reference) != set(parts.reference)


@settings(max_examples=30)
@given(st.floats(0.05, 1.0), st.integers(0, 10_000), st.booleans())
def test_thinning_never_adds_and_keeps_the_kind(share, seed, sparse):
    counts = np.random.default_rng(seed).poisson(3.0, (6, 7)).astype(np.float32)
    given_counts = csr_matrix(counts) if sparse else counts
    thinned = thin(given_counts, share, np.random.default_rng(seed))
    values = thinned.toarray() if sparse else thinned
    assert (values <= counts).all()
    assert (values >= 0).all()
    assert values.dtype == np.float32
    np.testing.assert_array_equal(given_counts.toarray() if sparse else given_counts, counts)


def test_thinning_has_binomial_moments_and_one_leaves_everything():
    counts = np.full((400, 50), 20.0)
    thinned = thin(counts, 0.3, np.random.default_rng(0))
    assert thinned.mean() == pytest.approx(20 * 0.3, rel=0.01)
    assert thinned.var() == pytest.approx(20 * 0.3 * 0.7, rel=0.03)
    np.testing.assert_array_equal(thin(counts, 1.0, np.random.default_rng(0)), counts)
    assert thin(csr_matrix(np.eye(50)), 0.2, np.random.default_rng(0)).nnz < 50  # no stored zeros


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: thin(np.ones((1, 1)), 0.0, np.random.default_rng(0)), r"must lie in \(0, 1\], got 0.0"),
        (lambda: thin(np.ones((1, 1)), 1.1, np.random.default_rng(0)), r"must lie in \(0, 1\], got 1.1"),
        (lambda: thin(np.array([[0.5]]), 0.5, np.random.default_rng(0)), "thinning needs whole counts"),
        (lambda: thin(np.array([[np.nan]]), 0.5, np.random.default_rng(0)), "thinning needs whole counts"),
        (lambda: split(["a", "a"], 0, 1.0), r"reference_share must lie in \(0, 1\), got 1.0"),
        (lambda: split(["a", "a", "a", "b"], 0), "type 'b' has 1 cells, too few for both sides of a split at 0.6"),
    ],
)
def test_impossible_requests_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_dropping_every_type_is_refused(cells):
    assert drop_rare(cells, fewest=60).obs["label"].nunique() == 4
    with pytest.raises(ValueError, match=r"no type in 'label' has 500 cells \(most: 240\)"):
        drop_rare(cells, fewest=500)
