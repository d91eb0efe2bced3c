from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.single_cell.clustering_metrics import (
    NeighbourGraph,
    agreement,
    clisi,
    embedding_metrics,
    kmeans_agreement,
    leiden,
    leiden_oracle,
    rmse,
    silhouette,
    transfer_accuracy,
)


def two_blobs(n=40, gap=10.0, seed=0, dim=3):
    rng = np.random.default_rng(seed)
    labels = np.repeat(["B", "T"], n)
    return rng.standard_normal((2 * n, dim)) + gap * (labels == "T")[:, None], labels


def silhouette_by_loops(x, labels):
    widths = []
    for i in range(len(x)):
        distance = {c: [np.linalg.norm(x[i] - x[j]) for j in range(len(x)) if labels[j] == c and j != i] for c in set(labels)}
        a = np.mean(distance[labels[i]])
        b = min(np.mean(d) for c, d in distance.items() if c != labels[i])
        widths.append((b - a) / max(a, b))
    return np.mean(widths)


def clisi_by_loops(x, labels, k):
    values = []
    for i in range(len(x)):
        others = sorted((np.linalg.norm(x[i] - x[j]), j) for j in range(len(x)) if j != i)[:k]
        near = [labels[j] for _, j in others]
        values.append(1 / sum((near.count(c) / k) ** 2 for c in set(near)))
    return np.mean(values)


def rand_by_pairs(a, b):
    """Adjusted Rand index from counts of pairs, with its expectation under random labelling."""
    pairs = list(itertools.combinations(range(len(a)), 2))
    same_a, same_b = ([v[i] == v[j] for i, j in pairs] for v in (a, b))
    both = sum(p and q for p, q in zip(same_a, same_b, strict=True))
    expected = sum(same_a) * sum(same_b) / len(pairs)
    return (both - expected) / ((sum(same_a) + sum(same_b)) / 2 - expected)


def transfer_by_loops(x, y, z, truth, k):
    hits = []
    for row, label in zip(z, truth, strict=True):
        near = [y[j] for _, j in sorted((np.linalg.norm(row - x[j]), j) for j in range(len(x)))[:k]]
        hits.append(max(sorted(set(near)), key=near.count) == label)
    return np.mean(hits)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_fast_scores_are_their_definitions(seed):
    rng = np.random.default_rng(seed)
    x, labels = rng.standard_normal((30, 3)), [*"abc" * 10]
    assert silhouette(x, labels) == pytest.approx(silhouette_by_loops(x, labels))
    assert clisi(NeighbourGraph.of(x, 7), labels, 7) == pytest.approx(clisi_by_loops(x, labels, 7))
    clusters = rng.integers(0, 4, 30)
    assert agreement(labels, clusters)["ari"] == pytest.approx(rand_by_pairs(labels, clusters))
    z = rng.standard_normal((9, 3))
    assert transfer_accuracy(x, labels, z, labels[:9], 5) == pytest.approx(transfer_by_loops(x, labels, z, labels[:9], 5))


def test_clisi_is_one_for_pure_neighbourhoods_and_two_for_two_mixed_types():
    x, labels = two_blobs(200)
    assert clisi(NeighbourGraph.of(x), labels) == 1.0
    mixed = np.random.default_rng(1).permutation(labels)
    # E[1 / (p^2 + q^2)] for a binomial of 10 is 1.83: near 2, and 2 as k grows.
    assert clisi(NeighbourGraph.of(x), mixed) == pytest.approx(1.83, abs=0.03)
    assert clisi(NeighbourGraph.of(x, 150), mixed, 150) == pytest.approx(1.98, abs=0.03)


def test_a_cell_is_never_its_own_neighbour_even_among_copies():
    x = np.repeat(np.eye(3), 4, axis=0)  # four copies of three cells
    graph = NeighbourGraph.of(x, 3)
    assert (graph.indices != np.arange(12)[:, None]).all()
    np.testing.assert_allclose(graph.distances, 0.0, atol=1e-7)
    assert clisi(graph, np.repeat([0, 1, 2], 4), 3) == 1.0


def test_information_scores_in_closed_form():
    # Two types of two cells; clusters split one of them: I = H(types) = ln 2, H(clusters) = 1.5 ln 2.
    found = agreement(["a", "a", "b", "b"], [0, 0, 1, 2])
    assert found["nmi"] == pytest.approx(1 / 1.5)
    assert found["v_measure"] == pytest.approx(2 / 2.5)
    assert agreement([0, 0, 1, 1], [0, 1, 0, 1])["ari"] == pytest.approx(-0.5)


def test_clear_types_are_found_by_every_clustering():
    x, labels = two_blobs()
    found = embedding_metrics(x, labels)
    assert found["silhouette"] > 0.7
    assert [found[k] for k in ("clisi", "ari", "nmi", "v_measure", "ari_oracle")] == [1.0] * 5
    assert kmeans_agreement(x, labels, [3])["ari"] == 1.0


def test_without_structure_agreement_is_about_zero():
    x, labels = two_blobs(gap=0.0)
    found = embedding_metrics(x, labels)
    assert abs(found["ari"]) < 0.1
    assert found["silhouette"] < 0.05
    assert found["ari_oracle"] >= 0.0  # the best of many resolutions: one cluster gives 0


def test_oracle_takes_the_best_resolution_and_says_which():
    x, labels = two_blobs(gap=3.0)
    graph = NeighbourGraph.of(x)
    grid = (0.05, 0.5, 1.0, 3.0)
    by_hand = {r: agreement(labels, leiden(graph, r))["ari"] for r in grid}
    best = leiden_oracle(graph, labels, grid)
    assert best["ari"] == max(by_hand.values())
    assert by_hand[best["resolution"]] == best["ari"]
    assert len(np.unique(leiden(graph, 3.0))) > len(np.unique(leiden(graph, 0.05)))


def test_everything_repeats_itself_and_leaves_the_global_generator_alone():
    x, labels = two_blobs(gap=1.5)
    random.seed(3)
    state = random.getstate()
    assert embedding_metrics(x, labels) == embedding_metrics(x, labels)
    np.testing.assert_array_equal(leiden(NeighbourGraph.of(x), 1.0, 5), leiden(NeighbourGraph.of(x), 1.0, 5))
    assert random.getstate() == state


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000))
def test_rotating_the_embedding_or_renaming_the_types_changes_nothing(seed):
    x, labels = two_blobs(20, gap=3.0, seed=seed)
    rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((3, 3)))[0]
    plain, turned = embedding_metrics(x, labels, resolutions=()), embedding_metrics(x @ rotation, labels, resolutions=())
    assert turned == pytest.approx(plain)
    swapped = np.where(labels == "T", "B", "T")
    assert embedding_metrics(x, swapped, resolutions=()) == pytest.approx(plain)


def test_rmse_is_per_coordinate():
    assert rmse(np.full((4, 3), 2.0), np.zeros((4, 3))) == 2.0
    assert rmse([[1.0, 1.0]], [[1.0, 1.0]]) == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y: embedding_metrics(x, ["a"] * 80), "all cells have the same label"),
        (lambda x, y: embedding_metrics(x, y[:-1]), "got 79 labels for 80 cells"),
        (lambda x, y: embedding_metrics(x[:10], [*y[:9].tolist(), "T"]), r"k must lie in 1..9 for 10 cells, got 15"),
        (lambda x, y: embedding_metrics(np.where(x > 2, np.nan, x), y), "values are not finite"),
        (lambda x, y: embedding_metrics(x[:, 0], y), r"must be \(cells, dimensions\), got shape \(80,\)"),
        (lambda x, y: clisi(NeighbourGraph.of(x, 5), y), "the graph knows 5 neighbours, asked for 10"),
        (lambda x, y: leiden(NeighbourGraph.of(x), 0.0), "resolution must be positive, got 0.0"),
        (lambda x, y: leiden_oracle(NeighbourGraph.of(x), y, ()), "at least one resolution"),
        (lambda x, y: kmeans_agreement(x, y, ()), "at least one seed"),
        (lambda x, y: transfer_accuracy(x, y, x, y, 81), r"k must lie in 1..80 for 80 reference cells, got 81"),
        (lambda x, y: rmse(x, x[:5]), r"one shape, got \(80, 3\) and \(5, 3\)"),
    ],
)
def test_impossible_requests_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(*two_blobs())
