from __future__ import annotations

import numpy as np
import pandas as pd
import pnp_stages
import pytest
import torch

from tasks.common.formats import read_json
from tasks.single_cell.cohort_files import read_cohort
from tasks.single_cell.dice_evaluation import _few_draws
from tasks.single_cell.prior_training import read_fitted
from tasks.single_cell.split_gibbs import Draws, GaussianLikelihood, run_chains


def test_embeddings_are_those_of_the_chain_at_the_chosen_rho(pipeline):
    root, _, _ = pipeline
    params = pnp_stages.PARAMS["evaluate-dice"]
    fitted, target = read_fitted(root / "warmstart", "factor", 1, n_sub=3), read_cohort(root / "prepare-target/setup4-1.h5ad")
    rho = read_json(root / "train-rho/chosen.json")["rho"]["setup4"][1]
    likelihood = GaussianLikelihood(fitted.standardise(target), fitted.space.loadings, 1.0)
    slow = run_chains(likelihood, fitted.prior, params.gibbs.at(rho), torch.Generator().manual_seed(1)).mean
    cells = pd.read_parquet(root / "evaluate-dice/embeddings.parquet")
    ours = cells[(cells["target"] == "setup4") & (cells["seed"] == 1) & (cells["arm"] == "dice")].sort_values("cell")
    np.testing.assert_allclose(ours[["u0", "u1", "u2"]], slow, rtol=1e-5, atol=1e-5)
    assert ours["label"].tolist() == target.labels.tolist()


def test_which_arms_run_where(pipeline):
    root, _, _ = pipeline
    arms = pd.read_parquet(root / "evaluate-dice/scores.parquet").groupby("target")["arm"].unique().map(set)
    everywhere = {"dice", "wiener_sampled", "gmm_sampled", "isotropic", "flat", "dice_published", "single", "repeats_1", "repeats_10"}
    assert all(everywhere <= found for found in arms)
    assert "gaussian_trained_published" in arms["setup1"]
    assert "gaussian_trained_published" not in arms["setup4"]
    assert "isotropic_published" not in arms["pbmc_p30"]


def test_uncertainty_of_every_cell(pipeline):
    root, metrics, _ = pipeline
    cells = pd.read_parquet(root / "evaluate-dice/spread.parquet")
    assert len(cells) == 2 * (4 * 60 + (cells["target"] == "pbmc_p30").sum() // 2)
    assert (cells["spread"] > 0).all()
    assert cells["set_size"].min() >= 1
    assert (cells["in_set"] >= cells["correct"]).all()  # the likeliest label is always in the set
    one = cells[(cells["target"] == "setup1")].groupby("seed")["set_size"].mean()
    assert metrics["evaluate-dice"]["dice.set_size.setup1"] == pytest.approx(one.mean())


def test_cells_between_two_classes(pipeline):
    root, metrics, _ = pipeline
    path = pd.read_parquet(root / "evaluate-dice/path.parquet")
    assert sorted(path["share"].unique())[10] == 0.5
    assert path["second"].groupby(path["share"]).mean().iloc[0] < 0.2
    assert path["second"].groupby(path["share"]).mean().iloc[-1] > 0.8
    found = metrics["evaluate-dice"]
    assert found["dice.entropy_midpoint_nats.setup1"] > found["dice.entropy_mode_nats.setup1"]
    assert found["single.entropy_midpoint_nats.setup1"] == 0


def test_chain_averages_lie_near_the_exact_means(pipeline):
    root, _, _ = pipeline
    table = pd.read_parquet(root / "evaluate-dice/exact.parquet")
    assert len(table) == 120
    assert np.corrcoef(table["exact_gaussian"], table["wiener_sampled"])[0, 1] > 0.9


def test_numbers_do_not_depend_on_the_number_of_processes(pipeline, tmp_path, monkeypatch):
    root, metrics, _ = pipeline
    monkeypatch.setenv("PAPERS_THREADS", "2")
    assert pnp_stages.run_stage("evaluate-dice", root, tmp_path / "again") == metrics["evaluate-dice"]
    for name in ("scores", "embeddings", "spread", "path", "exact"):
        files = [folder / f"{name}.parquet" for folder in (root / "evaluate-dice", tmp_path / "again")]
        pd.testing.assert_frame_equal(*(pd.read_parquet(file) for file in files))


def test_repeats_average_last_draws_and_another_single_draw_is_another_chain():
    last = np.arange(10, dtype=np.float32)[:, None, None] + np.zeros((10, 3, 2), np.float32)
    few = _few_draws(Draws(last, last))
    assert {arm: float(u.mean()) for arm, u in few.items()} == {
        "repeats_1": 0.0,
        "repeats_5": 2.0,
        "repeats_10": 4.5,
        "another_single": 1.0,
    }
