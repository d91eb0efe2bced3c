from __future__ import annotations

import math
import os

import conformal_stages
import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from flows.engine.checks import SUFFIXES
from flows.uncertain_imputation import DELTAS_EFFECT, paper
from tasks.common.formats import read_parquet
from tasks.common.node import Inputs, NullLog
from tasks.conformal import calibration, datasets, fitting, robustness, sweep
from tasks.conformal.diagnostics import constant_error_effect
from tasks.conformal.synthetic import three_ways
from tasks.tabular.official import LAYOUTS


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    root, log = tmp_path_factory.mktemp("smoke"), conformal_stages.KeepingLog()
    return root, conformal_stages.run(root, log=log), log


def base_names(metrics):
    return {name for name in metrics if not name.endswith(SUFFIXES)}


def test_smoke_twice_gives_identical_metrics_whatever_the_pool(smoke, tmp_path, monkeypatch):
    monkeypatch.setenv("PAPERS_THREADS", "1")
    assert conformal_stages.run(tmp_path) == smoke[1]
    assert os.environ["PAPERS_THREADS"] == "1"


def test_metrics_are_finite_and_declared_stage_by_stage(smoke):
    for name, metrics in smoke[1].items():
        assert all(math.isfinite(v) for v in metrics.values())
        assert base_names(metrics) <= paper.stage(name).metric_names("smoke")
        missing = paper.stage(name).metric_names("smoke") - base_names(metrics)
        assert {m for m in missing if "length" not in m} == set()  # sets may all be infinite with so few rows


def test_figures_are_drawn(smoke):
    _, _, log = smoke
    assert set(log.figures) == set(paper.figures)
    assert all(width <= 12 and height <= 6 for _, (width, height) in log.figures.values())


def test_privileged_information_is_no_feature_and_splits_are_disjoint(smoke):
    root, metrics, _ = smoke
    for name in conformal_stages.SMOKE["prepare"]["data"]:
        rows = read_parquet(root / f"prepare/rows-{name}.parquet")
        features = rows[[c for c in rows.columns if c.startswith("x_")]]
        assert not any((features[c] == rows["z_0"]).all() for c in features.columns)
        assert features.shape[1] == metrics["prepare"][f"features.{name}"]
        plan = read_parquet(root / f"prepare/splits-{name}.parquet")
        assert not plan.duplicated(["split", "row"]).any()
        assert plan.loc[plan["masked"], "observed"].isna().all()
        clean = plan[~plan["masked"]]
        np.testing.assert_array_equal(clean["observed"], rows["y"].to_numpy()[clean["row"]])
        sizes = plan.groupby(["split", "part"]).size().unstack()
        np.testing.assert_allclose(sizes.div(sizes.sum(axis=1), axis=0), [[0.5, 0.1, 0.2, 0.2]] * len(sizes), atol=0.005)


def test_labels_of_real_sets_are_standardised(smoke):
    for name in set(datasets.PACKAGED):
        y = read_parquet(smoke[0] / f"prepare/rows-{name}.parquet")["y"]
        assert (y.mean(), y.std(ddof=0)) == pytest.approx((0.0, 1.0), abs=1e-9)


def test_models_saw_nothing_but_training_rows(smoke, tmp_path):
    root, _, _ = smoke
    plan = read_parquet(root / "prepare/splits-ames.parquet")
    rest = plan["part"] > 0
    lied = plan.assign(observed=np.where(rest, 1e6, plan["observed"]), masked=plan["masked"] & ~rest)
    (tmp_path / "prepare").mkdir()
    read_parquet(root / "prepare/rows-ames.parquet").to_parquet(tmp_path / "prepare/rows-ames.parquet")
    lied.to_parquet(tmp_path / "prepare/splits-ames.parquet")
    params = fitting.FitParams(**conformal_stages.SMOKE["warmstart"])
    item = fitting._Item(tmp_path / "prepare", "ames", 0, params)
    ours, _ = fitting._fit_split(item)
    theirs = read_parquet(root / "warmstart/predictions-ames.parquet")
    theirs = theirs[theirs["split"] == 0].reset_index(drop=True)
    for column in ("lower", "upper", "impute", "impute_linear", "mask_probability"):
        np.testing.assert_array_equal(ours[column], theirs[column])


def test_networks_stand_in_for_trees(smoke, tmp_path):
    root, _, _ = smoke
    mlp = {"hidden": [8], "epochs": 2, "patience": 1, "learning_rate": 0.01}
    params = fitting.FitParams(model="mlp", iterations=4, mlp=mlp)
    prepared = tmp_path / "prepare"
    datasets.prepare(datasets.PrepareParams(data=("ames", "s1"), splits=2, rows=600), Inputs(), prepared, NullLog())
    runs = []
    for name in ("a", "b"):
        fitting.warmstart(params, Inputs({"prepare": prepared}), tmp_path / name, NullLog())
        runs.append(read_parquet(tmp_path / name / "predictions-ames.parquet"))
    pd.testing.assert_frame_equal(*runs)
    assert np.isfinite(runs[0][["lower", "upper"]]).all(axis=None)
    assert set(runs[0].columns) == set(read_parquet(root / "warmstart/predictions-ames.parquet").columns)


def test_the_facebook_sets_get_wider_networks(tmp_path, monkeypatch):
    for name, columns in (("facebook_1", 54), ("bio", 10)):
        layout = LAYOUTS[name]
        table = pd.DataFrame(np.random.default_rng(columns).random((200, columns)))
        table.to_csv(tmp_path / layout.file, header=layout.header, index=False)
    prepared = tmp_path / "prepare"
    datasets.prepare(datasets.PrepareParams(data=("facebook_1", "bio"), folder=str(tmp_path), splits=1), Inputs(), prepared, NullLog())
    seen = []
    monkeypatch.setattr(fitting, "fit_mlp_quantiles", lambda *args, **_: seen.append(args[3].hidden))
    for name in ("facebook_1", "bio"):
        fitting._fit_networks((fitting._Item(prepared, name, -1, fitting.FitParams(model="mlp")), (0,)))
    assert seen == [(64, 128, 64, 32), (32, 64, 64, 32)]


def test_noisy_labels_are_there_to_be_misused(tmp_path):
    prepared, warm = tmp_path / "prepare", tmp_path / "warmstart"
    datasets.prepare(datasets.PrepareParams(data=("s1",), splits=2, rows=3000, mechanism="dispersive"), Inputs(), prepared, NullLog())
    inputs = Inputs({"prepare": prepared, "warmstart": warm})
    fitting.warmstart(fitting.FitParams(), inputs, warm, NullLog())
    calibration.train(calibration.CalibrateParams(), inputs, tmp_path / "train", NullLog())
    found = read_parquet(tmp_path / "train/thresholds.parquet").pivot_table(index="split", columns="arm", values="threshold")
    assert (found["observed"] > found["clean_oracle"]).all()


def test_reference_set_that_does_not_know_the_corrupted_part_is_reported(smoke):
    assert any("have no pool of residuals of their own" in text for text in smoke[2].messages)


def test_cells_of_the_union_and_their_golden_order(tmp_path):
    metrics = robustness.train(robustness.RobustnessParams(seeds=4, rows=8000), Inputs(), tmp_path, NullLog())
    cells = read_parquet(tmp_path / "cells.parquet")
    assert set(cells["cell"]) == set(robustness.CELLS)
    wide = cells.pivot_table(index=["seed", "cell"], columns="arm", values="coverage")
    assert (wide["union"] >= wide[["naive", "pcp", "ui"]].max(axis=1)).all()
    assert metrics["union_none.coverage.s2"] < 0.85
    assert min(metrics[f"union_{cell}.coverage.s2"] for cell in robustness.CELLS if cell != "none") > 0.885
    # A constant imputer without residual puts corrupted labels in the middle of a constant band: too small scores.
    assert metrics["ui_none.coverage.s2"] <= metrics["naive_none.coverage.s2"] + 0.01


def test_the_useless_band_holds_nine_tenths_of_the_clean_labels_and_the_right_one_of_all():
    sample = three_ways(20_000, np.random.default_rng(1))
    lower, upper = robustness._band(sample, np.arange(10_000), right=False, alpha=0.1)
    assert len(set(lower)) == len(set(upper)) == 1
    y, clean = sample.y[:10_000], ~sample.masked[:10_000]
    assert ((y < lower[0]) & clean).sum() / clean.sum() == pytest.approx(0.05, abs=1e-3)
    assert ((y > upper[0]) & clean).sum() / clean.sum() == pytest.approx(0.05, abs=1e-3)
    lower, upper = robustness._band(sample, np.arange(10_000), right=True, alpha=0.1)
    assert (sample.y < lower).mean() == pytest.approx(0.05, abs=0.006)
    assert (sample.y > upper).mean() == pytest.approx(0.05, abs=0.006)


def test_sweep_follows_theorem_2_and_no_shift_has_no_effect(tmp_path):
    metrics = sweep.train(sweep.SweepParams(seeds=2, rows=20_000), Inputs(), tmp_path, NullLog())
    for name, delta in sweep.DELTAS.items():
        if delta:
            effect = constant_error_effect(delta, 1.0)
            assert metrics[f"delta_{name}.change.under"] * effect > 0
            assert metrics[f"delta_{name}.change.over"] * effect < 0
            assert metrics[f"delta_{name}.change.none"] == 0.0
            assert DELTAS_EFFECT[name] == effect
    assert metrics["delta_0.coverage.under"] == pytest.approx(0.9, abs=0.01)
    # Exact limits: unweighted clean scores have coverage F(F_clean^-1(0.9)).
    assert metrics["delta_p1000.coverage.under"] == pytest.approx(metrics["naive.coverage.under"], abs=2e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": ("boston",)}, "unknown data set 'boston'; known: ames, bio, chicago"),
        ({"data": ()}, "data must name each set once"),
        ({"data": ("ames", "ames")}, "data must name each set once"),
        ({"rate": 0.3}, "less than 0.25"),
        ({"splits": 0}, "greater than or equal to 1"),
        ({"mechanism": "lost"}, "'missing', 'noisy' or 'dispersive'"),
    ],
)
def test_impossible_preparations_are_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        datasets.PrepareParams(**change)


def test_beta_above_alpha_is_refused_before_anything_runs():
    with pytest.raises(ValidationError, match="beta must lie in"):
        robustness.RobustnessParams(alpha=0.1, beta=0.2)


def test_s1_has_linear_models_and_a_mask_model_that_sees_nothing(smoke):
    root, metrics, _ = smoke
    rows = read_parquet(root / "warmstart/predictions-s1.parquet")
    np.testing.assert_array_equal(rows["impute"], rows["impute_linear"])
    width = (rows["upper"] - rows["lower"]).groupby(rows["split"])
    assert (width.max() - width.min()).max() < 1e-9
    assert metrics["warmstart"]["mask_auc.s1"] == pytest.approx(0.5, abs=0.06)
    assert metrics["warmstart"]["mask_auc.ames"] > 0.9


def test_unknown_table_names_the_known_ones(tmp_path):
    with pytest.raises(KeyError, match="unknown data set 'boston'; known: ames, bio"):
        datasets.read_table("boston", tmp_path)


def test_missing_official_file_says_where_it_comes_from(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"CASP.csv is missing.*archive.ics.uci.edu"):
        datasets.prepare(datasets.PrepareParams(data=("bio",), folder=str(tmp_path)), Inputs(), tmp_path / "out", NullLog())
