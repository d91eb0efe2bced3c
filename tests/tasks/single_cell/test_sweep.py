from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from tasks.single_cell.sweep import SweepParams, rho_arm


def test_arms_of_every_target(pipeline):
    root, _, _ = pipeline
    arms = pd.read_parquet(root / "evaluate-sweep/scores.parquet").groupby("target")["arm"].unique().map(set)
    sigma = {"sigma_identity", "sigma_scalar", "sigma_gene", "latent_chain", "gene_chain"}
    variances = {"variance_analytic", "variance_forward", "variance_posterior", "levels_64"}
    assert arms["setup1"] == {"rho_0p3", "rho_0p7", "rho_1p2"} | sigma | variances
    assert arms["setup5"] == sigma
    assert arms["setup3"] == {"student_t"}
    assert arms["pbmc_p30"] == {"rho_0p3", "rho_0p7", "rho_1p2"}


def test_input_and_latent_space_coincide_only_with_unit_noise(pipeline):
    root, _, _ = pipeline
    scores = pd.read_parquet(root / "evaluate-sweep/scores.parquet")
    gap = scores[scores["metric"] == "largest_gap"].groupby("arm")["value"].max()
    assert gap["latent_chain"] < 1e-5
    assert gap["gene_chain"] > 1e-2


def test_spread_grows_and_its_smallest_growth_is_reported(pipeline):
    root, metrics, _ = pipeline
    scores = pd.read_parquet(root / "evaluate-sweep/scores.parquet")
    rows = scores[(scores["metric"] == "spread_median") & (scores["target"] == "setup1")].pivot(index="seed", columns="arm", values="value")
    growth = np.minimum(rows["rho_0p7"] - rows["rho_0p3"], rows["rho_1p2"] - rows["rho_0p7"])
    assert (growth > 0).all()
    assert metrics["evaluate-sweep"]["dice.smallest_spread_growth.setup1"] == pytest.approx(growth.mean())


def test_intervals_cover_a_share_of_the_truth(pipeline):
    root, _, _ = pipeline
    scores = pd.read_parquet(root / "evaluate-sweep/scores.parquet")
    coverage = scores[scores["metric"] == "interval_coverage"]
    assert set(coverage["target"]) == {"setup1", "setup3", "setup5"}  # full-depth blood cells are no truth without noise
    assert coverage["value"].between(0, 1).all()
    matched = coverage[(coverage["target"] == "setup1") & (coverage["arm"] == "rho_1p2")]["value"]
    assert (matched > 0.7).all()


def test_names_of_arms():
    assert [rho_arm(r) for r in (0.3, 2.0, 12.0)] == ["rho_0p3", "rho_2p0", "rho_12p0"]
    assert SweepParams(rho_targets=("a",), sigma_targets=("b", "a"), chain_targets=(), student_targets=("c",)).targets() == ["a", "b", "c"]
    assert np.isclose(SweepParams().grid[0], 0.3)
    with pytest.raises(ValidationError):
        SweepParams(grid=(1.0,))
