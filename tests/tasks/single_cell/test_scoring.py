from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import silhouette_score

from tasks.single_cell.cohort_files import read_cohort
from tasks.single_cell.prior_training import read_fitted
from tasks.single_cell.scoring import Scores, cells_of, score, separation, table_of, true_latents


def test_scores_of_pca_by_hand(pipeline):
    root, _, _ = pipeline
    fitted, target = read_fitted(root / "warmstart", "factor", 0), read_cohort(root / "prepare-target/setup1-0.h5ad")
    z = (target.values[:, fitted.columns] - fitted.space.mean) / fitted.space.std
    pca = z @ fitted.space.loadings
    truth = ((target.signal[:, fitted.columns] - fitted.space.mean) / fitted.space.std) @ fitted.space.loadings
    found = score(pca, fitted, target, "kmeans")
    assert found["silhouette"] == pytest.approx(silhouette_score(pca, target.labels))
    assert found["rmse"] == pytest.approx(np.sqrt(((pca - truth) ** 2).mean()), rel=1e-4)
    assert {"clisi", "ari", "nmi", "knn"} <= found.keys()
    assert "ari_oracle" not in found
    np.testing.assert_allclose(true_latents(fitted, target), truth, atol=1e-4)
    assert set(score(pca, fitted, target)) == {"silhouette", "clisi", "rmse"}
    assert "ari_oracle" in separation(pca, target, "all")


def test_without_a_truth_there_is_no_error(pipeline):
    root, _, _ = pipeline
    fitted, target = read_fitted(root / "warmstart", "factor", 0), read_cohort(root / "prepare-target/setup1-0.h5ad")
    blind = type(target)(target.values, target.genes, target.labels, None, None, None, target.kept)
    assert true_latents(fitted, blind) is None
    assert "rmse" not in score(np.random.default_rng(0).standard_normal((60, 3)), fitted, blind)


def tables():
    parts = [table_of({"a": {"m": a}, "b": {"m": b}}, "t", seed) for seed, (a, b) in enumerate([(3.0, 1.0), (4.0, 2.0), (6.0, 2.0)])]
    return Scores(pd.concat(parts[::-1]))


def test_differences_are_paired_by_seed():
    scores = tables()
    assert scores["a", "m", "t"].tolist() == [3, 4, 6]
    found = scores.difference("a", "b", "m", "t")
    assert found["a.m.t-b.m.t"] == pytest.approx(8 / 3)
    assert found["a.m.t-b.m.t.se"] == pytest.approx(np.std([2, 2, 4], ddof=1) / 3**0.5)
    assert scores.gain("a", "b", "m", "t", "gain")["a.gain.t"] == pytest.approx(8 / 3)
    assert scores.ratio("a", "b", "m", "t", "ratio")["a.ratio.t"] == pytest.approx((3 + 2 + 3) / 3)
    assert scores.summaries(["m"])["b.m.t.n"] == 3
    assert scores.summaries(["other"]) == {}
    assert scores.targets() == ["t"]


def test_what_was_not_measured_is_not_compared():
    scores = tables()
    assert scores.difference("a", "c", "m", "t") == scores.gain("c", "a", "m", "t", "g") == scores.ratio("a", "b", "x", "t", "r") == {}


def test_cells_keep_their_number_and_label():
    frame = cells_of(np.arange(6.0).reshape(3, 2), np.array(["x", "y", "x"]))
    assert list(frame.columns) == ["u0", "u1", "cell", "label"]
    assert frame["u1"].tolist() == [1, 3, 5]
    assert frame["u1"].dtype == np.float32
