from __future__ import annotations

import math
import os

import conformal_stages

from flows.engine.checks import SUFFIXES
from flows.uncertain_imputation import paper
from tasks.common.formats import read_parquet
from tasks.common.node import Inputs, NullLog
from tasks.conformal import calibration, datasets, fitting


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
