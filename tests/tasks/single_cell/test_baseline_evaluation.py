from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tasks.common.assets import AssetMissing
from tasks.common.node import Inputs
from tasks.single_cell import baseline_evaluation, knn_smoothing
from tasks.single_cell.cohort_files import cases, read_cohort
from tasks.single_cell.held_out_slice import noised_slice
from tasks.single_cell.prior_training import read_fitted
from tasks.single_cell.priors import gaussian_prior
from tasks.single_cell.rho_selection import latent_rmse


def test_settings_are_chosen_on_the_slice_and_on_nothing_else(pipeline):
    root, _, _ = pipeline
    tried = pd.read_parquet(root / "evaluate-baselines/settings.parquet")
    best = tried.groupby(["target", "seed", "arm"])["rmse"].min()
    chosen = tried[tried["chosen"]].set_index(["target", "seed", "arm"])["rmse"]
    assert chosen.index.is_unique
    pd.testing.assert_series_equal(chosen.sort_index(), best.sort_index())
    reference, target = read_cohort(root / "prepare-reference/factor-0.h5ad"), read_cohort(root / "prepare-target/setup4-0.h5ad")
    fitted = read_fitted(root / "warmstart", "factor", 0)
    rows = noised_slice(reference, fitted, target, 0)
    prior = gaussian_prior(fitted.latents)
    slow = {v: latent_rmse(prior.posterior_mean(rows.noisy @ fitted.space.loadings, v), rows.latents) for v in baseline_evaluation.NOISES}
    ours = tried[(tried["target"] == "setup4") & (tried["seed"] == 0) & (tried["arm"] == "wiener") & tried["chosen"]]
    assert ours["setting"].item() == str({"noise": min(slow, key=slow.get)})
    assert ours["rmse"].item() == pytest.approx(min(slow.values()))


def test_embeddings_are_in_the_references_coordinates(pipeline):
    root, _, _ = pipeline
    reference, target = read_cohort(root / "prepare-reference/factor-0.h5ad"), read_cohort(root / "prepare-target/setup1-0.h5ad")
    fitted = read_fitted(root / "warmstart", "factor", 0)
    z = fitted.standardise(target)
    found = baseline_evaluation.methods(reference, fitted, 0)
    smooth = found["knn_smoothing"].denoise(z, None, k=5)
    np.testing.assert_allclose(smooth, knn_smoothing.denoise(fitted.latents, z @ fitted.space.loadings, k=5))
    assert set(found) == {"wiener", "gmm", "knn_smoothing", "magic"}


def test_methods_for_counts_run_for_counts_alone(pipeline):
    root, _, _ = pipeline
    scores = pd.read_parquet(root / "evaluate-baselines/scores.parquet")
    arms = scores.groupby("target")["arm"].unique().map(set)
    assert {"alra", "nmf"} <= arms["pbmc_p30"]
    assert not {"alra", "nmf"} & arms["setup1"]
    assert "oracle" in arms["setup1"]
    assert np.isfinite(scores["value"]).all()
    with pytest.raises(ValueError, match="needs expression"):
        baseline_evaluation._given(None)


def test_the_oracle_is_not_worse_than_pca(pipeline):
    root, _, _ = pipeline
    scores = pd.read_parquet(root / "evaluate-baselines/scores.parquet")
    rmse = scores[(scores["metric"] == "rmse") & (scores["target"] == "setup4")].groupby("arm")["value"].mean()
    assert rmse["oracle"] < 0.8 * rmse["pca"]


def test_scvi_is_asked_for_by_name(pipeline):
    root, _, _ = pipeline
    inputs = Inputs({need: root / need for need in ("prepare-reference", "prepare-target")})
    case = cases(inputs, ("pbmc_p30",))[0]
    item = baseline_evaluation._Item(case, root / "warmstart", baseline_evaluation.BaselineParams(scvi=(10,)))
    with pytest.raises(AssetMissing, match="scvi-tools"):
        baseline_evaluation._evaluate(item)
