from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csc_matrix, csr_matrix

from tasks.single_cell.preprocessing import (
    align_genes,
    check_cells,
    check_kind,
    check_reference_size,
    log_normalise,
    looks_like_counts,
    normalised_dispersion,
    prepare_expression,
    presence_filter,
)


def cohort(matrix, genes=None, cells=None) -> AnnData:
    n, d = matrix.shape
    return AnnData(
        matrix,
        obs=pd.DataFrame(index=cells or [f"cell{i}" for i in range(n)]),
        var=pd.DataFrame(index=genes or [f"gene{j}" for j in range(d)]),
    )


def some_counts(n=30, d=12, seed=0):
    counts = np.random.default_rng(seed).poisson(2.0, (n, d)).astype(np.float32)
    counts[:, 0] += 1  # nobody is empty
    return counts


def log_normalise_by_loops(counts, total):
    out = np.zeros(counts.shape)
    for i, row in enumerate(counts):
        for j, c in enumerate(row):
            out[i, j] = np.log(1 + total * c / sum(row))
    return out


@pytest.mark.parametrize("kind", [np.asarray, csr_matrix, csc_matrix])
def test_log_normalisation_is_the_definition(kind):
    counts = some_counts()
    ours = log_normalise(kind(counts))
    assert hasattr(ours, "tocsr") == (kind is not np.asarray)
    dense = ours.toarray() if hasattr(ours, "toarray") else ours
    np.testing.assert_allclose(dense, log_normalise_by_loops(counts, 1e4), rtol=1e-5)
    assert dense.dtype == np.float32
    np.testing.assert_allclose(np.expm1(dense.astype(float)).sum(axis=1), 1e4, rtol=1e-4)


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(2, 50))
def test_depth_alone_changes_nothing(seed, factor):
    counts = some_counts(seed=seed)
    np.testing.assert_allclose(log_normalise(counts * factor), log_normalise(counts), rtol=1e-5)


def test_empty_cells_are_named():
    counts = some_counts()
    counts[7] = 0
    with pytest.raises(ValueError, match="1 of 30 cells have no counts, for example 'cell7'; remove them"):
        prepare_expression(cohort(counts))
    with pytest.raises(ValueError, match="for example 'row 7'"):
        log_normalise(csr_matrix(counts))
    logs = np.log1p(counts)
    with pytest.raises(ValueError, match="1 cells have no counts, for example 'cell7'"):
        prepare_expression(cohort(logs))


@pytest.mark.parametrize("kind", [np.asarray, csr_matrix])
def test_raw_and_log_are_told_apart(kind):
    counts = some_counts()
    assert looks_like_counts(kind(counts))
    assert not looks_like_counts(kind(log_normalise(counts)))
    assert looks_like_counts(kind(counts * 1.01 + 20))  # corrected counts: not whole, but far too large for logarithms
    assert looks_like_counts(kind(np.zeros((2, 2))))


def test_mostly_zero_dense_logs_are_no_counts():
    # 99 % of the entries are whole numbers, namely zeros: only what is not zero may decide.
    logs = np.zeros((100, 100), dtype=np.float32)
    logs[np.arange(100), np.arange(100)] = np.log1p(37.5)
    assert not looks_like_counts(logs)
    assert not looks_like_counts(csr_matrix(logs))


def test_a_wrong_word_for_the_matrix_is_refused():
    counts = some_counts()
    assert check_kind(counts, "auto") == check_kind(counts, "raw") == "raw"
    assert check_kind(np.log1p(counts), "auto") == check_kind(np.log1p(counts), "log") == "log"
    with pytest.raises(
        ValueError, match=r"query is said to hold log-normalised values, but looks like raw counts \(100 % of the non-zero .*counts='raw'"
    ):
        check_kind(counts, "log", "query")
    with pytest.raises(ValueError, match=r"data is said to hold raw counts, but looks like log-normalised values .*counts='log'"):
        check_kind(np.log1p(counts), "raw")
    with pytest.raises(ValueError, match="counts must be auto, raw or log, got 'tpm'"):
        check_kind(counts, "tpm")


@pytest.mark.parametrize("kind", [np.asarray, csr_matrix, csc_matrix])
@pytest.mark.parametrize(("value", "message"), [(np.nan, "1 NaN or infinite"), (np.inf, "1 NaN or infinite"), (-2.0, "1 negative")])
def test_bad_numbers_name_a_gene(kind, value, message):
    counts = some_counts()
    counts[3, 5] = value
    with pytest.raises(ValueError, match=f"query: {message} values, for example in gene 'gene5'"):
        check_cells(cohort(kind(counts)), "query")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: cohort(some_counts(3, 3), genes=["CD4", "CD8A", "CD4"]), "duplicate gene names: 1, for example 'CD4'"),
        (lambda: cohort(some_counts(3, 3), cells=["a", "a", "a"]), "duplicate cell names: 1, for example 'a'"),
        (lambda: cohort(some_counts(3, 3)[:0]), "0 cells and 3 genes"),
        (lambda: cohort(some_counts(3, 3)[:, :0]), "3 cells and 0 genes"),
        (lambda: AnnData(obs=pd.DataFrame(index=["a"]), var=pd.DataFrame(index=["g"])), "no expression matrix X"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*names are not unique:UserWarning")
def test_objects_that_cannot_be_analysed_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        check_cells(data())


def test_presence_is_counted_strictly_above_the_share():
    counts = np.zeros((100, 3))
    counts[:2, 0] = counts[:3, 1] = counts[:, 2] = 5
    assert presence_filter(counts, 0.02).tolist() == presence_filter(csr_matrix(counts), 0.02).tolist() == [False, True, True]
    with pytest.raises(ValueError, match=r"no gene is seen in more than 2 % of the cells \(best 0 %\)"):
        presence_filter(np.zeros((5, 2)))
    with pytest.raises(ValueError, match=r"presence share must lie in \[0, 1\), got 1.0"):
        presence_filter(counts, 1.0)


def dispersion_by_loops(log_values, bins):
    x = np.expm1(log_values.astype(float))
    mean = x.mean(axis=0)
    edges = np.linspace(np.log1p(mean).min(), np.log1p(mean).max(), bins + 1)
    place = [max(1, int(np.searchsorted(edges, v, side="left"))) for v in np.log1p(mean)]
    ratio = [np.log(x[:, j].var(ddof=1) / mean[j]) for j in range(x.shape[1])]
    out = []
    for j in range(x.shape[1]):
        same = [ratio[i] for i in range(x.shape[1]) if place[i] == place[j]]
        out.append(1.0 if len(same) == 1 else (ratio[j] - np.mean(same)) / np.std(same, ddof=1))
    return np.array(out)


@pytest.mark.parametrize("kind", [np.asarray, csr_matrix, csc_matrix])
def test_dispersion_is_standardised_among_genes_of_like_mean(kind):
    rng = np.random.default_rng(0)
    counts = rng.negative_binomial(2, 0.4, (60, 40)) * rng.integers(1, 6, 40)
    counts[:, 0] += 1
    logs = log_normalise(counts.astype(float))
    np.testing.assert_allclose(normalised_dispersion(kind(logs), 6), dispersion_by_loops(logs, 6), atol=1e-6)


def test_dispersion_finds_the_gene_of_one_type_and_puts_unseen_genes_last():
    rng = np.random.default_rng(0)
    counts = rng.poisson(5.0, (200, 50)).astype(float)
    counts[:, 7] = rng.permutation(np.repeat([0.0, 10.0], 100))
    counts[:, 9] = 0
    found = normalised_dispersion(csr_matrix(log_normalise(counts)), 5)
    assert found.argmax() == 7
    assert found[9] == -np.inf
    assert np.isfinite(np.delete(found, 9)).all()


def test_a_reference_smaller_than_the_latent_space_is_refused():
    check_reference_size(16, 15)
    with pytest.raises(ValueError, match="the reference has 15 cells but 15 latent dimensions"):
        check_reference_size(15, 15)


@pytest.mark.parametrize("kind", [np.asarray, csr_matrix, csc_matrix])
@settings(max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_genes_are_matched_by_name_whatever_their_order(kind, seed):
    counts, genes = some_counts(4, 6, seed), [f"gene{j}" for j in range(6)]
    order = np.random.default_rng(seed).permutation(6)
    shuffled = cohort(kind(counts[:, order]), genes=[genes[j] for j in order])
    np.testing.assert_array_equal(align_genes(shuffled, genes, np.zeros(6)).values, counts)


def test_only_the_genes_that_are_kept_become_dense():
    import tracemalloc

    from scipy.sparse import random as random_sparse

    wide = random_sparse(2000, 100_000, density=1e-4, format="lil", dtype=np.float32, rng=np.random.default_rng(0))
    wide[:, 0] = 1  # nobody is empty
    query, genes = cohort(wide.tocsr().ceil()), [f"gene{j}" for j in range(60)]
    tracemalloc.start()
    try:
        ready, _ = prepare_expression(query)
        presence_filter(ready.X, 0.0)
        normalised_dispersion(ready.X)
        aligned = align_genes(ready, genes, np.zeros(60))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert aligned.values.shape == (2000, 60)
    assert peak < 0.1 * 4 * 2000 * 100_000  # a tenth of one dense float32 copy


def test_missing_genes_hold_the_fill_and_are_counted():
    query = cohort(csr_matrix(some_counts(4, 9)), genes=[f"g{j}" for j in range(1, 10)])
    genes = [f"g{j}" for j in range(10)]
    aligned = align_genes(query, genes, np.linspace(1, 2, 10))
    assert aligned.missing == ("g0",)
    assert (aligned.values[:, 0] == 1.0).all()
    np.testing.assert_array_equal(aligned.values[:, 1:], some_counts(4, 9))


def test_too_few_shared_genes_are_refused_with_examples_of_both_sides():
    query = cohort(some_counts(4, 10), genes=[f"ENSG{j}" for j in range(10)])
    with pytest.raises(ValueError, match=r"share no gene: the reference has CD4, CD8A\.\.\., the query ENSG0, ENSG1, ENSG2"):
        align_genes(query, ["CD4", "CD8A"], [0, 0])
    genes = [f"ENSG{j}" for j in range(10)] + ["A", "B", "C"]
    with pytest.raises(ValueError, match=r"lacks 3 of the reference's 13 genes \(23 %, at most 20 %\), for example A, B, C"):
        align_genes(query, genes, np.zeros(13))
    assert align_genes(query, genes[:12], np.zeros(12)).missing == ("A", "B")  # 17 %


def test_preparing_prefers_the_layer_of_counts_and_changes_nothing_it_was_given():
    counts = some_counts()
    data = cohort(np.log1p(counts))
    data.layers["counts"] = csr_matrix(counts)
    ready, found = prepare_expression(data)
    assert found == "raw"
    np.testing.assert_allclose(ready.X.toarray(), log_normalise(counts), rtol=1e-6)
    np.testing.assert_array_equal(ready.layers["counts"].toarray(), counts)
    np.testing.assert_array_equal(data.X, np.log1p(counts))
    ready, found = prepare_expression(data, "log")
    assert found == "log"
    np.testing.assert_array_equal(ready.X, np.log1p(counts))
    assert "counts" not in ready.layers
