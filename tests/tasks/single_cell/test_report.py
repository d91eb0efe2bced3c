from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from flows.latent_pnp_scrna import paper
from tasks.single_cell.report import comparisons
from tasks.single_cell.scoring import Scores, table_of


def test_every_metric_is_declared_and_finite(pipeline):
    _, metrics, _ = pipeline
    for name, found in metrics.items():
        stage = paper.stage(name)
        declared = stage.metric_names() | {"basis_2", "pca_basis_2"}
        bases = {k for k in found if k.split(".")[0].startswith(("lo", "hi"))}
        plain = {k for k in found if not k.endswith((".lo", ".hi", ".se", ".n"))} - bases
        undeclared = {k for k in plain - declared if not k.startswith(("basis_2.", "pca_basis_2."))}  # the test's own number of components
        assert undeclared == set(), name
        assert all(math.isfinite(v) for v in found.values()), name


def test_figures_of_the_page_are_drawn(pipeline):
    _, _, log = pipeline
    assert set(paper.figures) <= log.figures.keys()


def test_gains_and_differences_agree_with_the_table(pipeline):
    root, metrics, _ = pipeline
    table = pd.read_parquet(root / "evaluate/scores.parquet")
    rows = table[(table["metric"] == "silhouette") & (table["target"] == "setup4")].pivot(index="seed", columns="arm", values="value")
    found = metrics["evaluate"]
    gain = (rows["dice"] - rows["pca"]).mean()
    assert found["dice.silhouette.setup4-pca.silhouette.setup4"] == pytest.approx(gain)
    assert found["dice.silhouette_gain.setup4"] == pytest.approx(gain)


def test_the_gain_of_setup_four_is_compared_with_that_of_setup_one():
    parts = [
        table_of({"dice": {"silhouette": dice}, "pca": {"silhouette": pca}}, target, seed)
        for target, dice, pca in (("setup1", 0.5, 0.1), ("setup4", 0.3, 0.2))
        for seed in (0, 1)
    ]
    found = comparisons(Scores(pd.concat(parts)))
    assert found["dice.silhouette_gain.setup4-dice.silhouette_gain.setup1"] == pytest.approx(-0.3)


def test_nothing_is_compared_that_was_not_measured():
    assert comparisons(Scores(table_of({"dice": {"silhouette": 0.1}}, "setup1", 0))) == {}
    assert np.isfinite(list(comparisons(Scores(table_of({"dice": {"rmse": 1.0}, "pca": {"rmse": 2.0}}, "t", 0))).values())).all()
