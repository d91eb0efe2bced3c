from __future__ import annotations

import pytest
from small_concrete import COMMON

from tasks.common.formats import read_parquet
from tasks.common.node import NullLog
from tasks.gaussian_process.experiment import TrainParams
from tasks.gaussian_process.train_gaussian import train


def test_stage_beats_the_mean_of_the_targets(small_inputs, tmp_path):
    metrics = train(TrainParams(**COMMON), small_inputs, tmp_path, NullLog())
    runs = read_parquet(tmp_path / "runs.parquet")
    assert set(runs["arm"]) == {"dsvi"}
    assert (runs[runs["quantity"] == "rmse_sd"]["value"] < 0.9).all()
    for quantity in ("elbo", "kl", "rmse", "nll", "coverage"):
        assert metrics[f"fit_dsvi.{quantity}.concrete"] == pytest.approx(runs[runs["quantity"] == quantity]["value"].mean())
    assert sorted(set(read_parquet(tmp_path / "curves.parquet")["step"])) == [50, 100]
