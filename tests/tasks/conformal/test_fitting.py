from __future__ import annotations

import conformal_stages
import numpy as np
import pandas as pd
import pytest

from tasks.common.formats import read_parquet
from tasks.common.node import Inputs, NullLog
from tasks.conformal import datasets, fitting
from tasks.tabular.official import LAYOUTS


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


def test_s1_has_linear_models_and_a_mask_model_that_sees_nothing(smoke):
    root, metrics, _ = smoke
    rows = read_parquet(root / "warmstart/predictions-s1.parquet")
    np.testing.assert_array_equal(rows["impute"], rows["impute_linear"])
    width = (rows["upper"] - rows["lower"]).groupby(rows["split"])
    assert (width.max() - width.min()).max() < 1e-9
    assert metrics["warmstart"]["mask_auc.s1"] == pytest.approx(0.5, abs=0.06)
    assert metrics["warmstart"]["mask_auc.ames"] > 0.9
