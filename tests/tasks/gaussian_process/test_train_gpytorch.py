"""The training stage of GPyTorch's DSVI beside that of ours, on a small part of Concrete."""

from __future__ import annotations

import pytest
from small_concrete import COMMON

from tasks.common.node import Inputs, NullLog
from tasks.gaussian_process import train_gaussian, train_gpytorch
from tasks.gaussian_process.datasets import PrepareParams, prepare
from tasks.gaussian_process.experiment import SetParams, TrainParams


@pytest.fixture(autouse=True)
def _one_process(monkeypatch):
    monkeypatch.setenv("PAPERS_THREADS", "1")


def params(steps: int, name: str = "concrete", seeds: int = 2) -> TrainParams:
    return TrainParams(**COMMON | {"data": {name: SetParams(seeds=seeds, steps=steps)}})


@pytest.mark.parametrize(("steps", "tolerance"), [(1, 1e-3), (20, 0.15)])
def test_it_follows_our_own_implementation_from_the_same_start(steps, tolerance, small_inputs, tmp_path):
    # Same start, minibatches and noise: the first bound is the same number. From then on the parameterisation of kernels and noise
    # differs (softplus, not exp), and with it, slowly, Adam's path, while the bound climbs by nats per row.
    theirs = train_gpytorch.train(params(steps), small_inputs, tmp_path / "theirs", NullLog())
    ours = train_gaussian.train(params(steps), small_inputs, tmp_path / "ours", NullLog())
    assert theirs["fit_dsvi_gpytorch.elbo.concrete"] == pytest.approx(ours["fit_dsvi.elbo.concrete"], abs=tolerance)
    assert theirs["fit_dsvi_gpytorch.rmse.concrete"] == pytest.approx(ours["fit_dsvi.rmse.concrete"], rel=0.1)
    assert theirs["fit_dsvi_gpytorch.outlying.concrete"] == 0.0
    assert theirs["fit_dsvi_gpytorch.kl.concrete"] > 0.0
    assert theirs["fit_dsvi_gpytorch.nll.concrete"] == pytest.approx(ours["fit_dsvi.nll.concrete"], abs=0.1)


def test_it_learns_and_a_second_run_gives_the_same_numbers(small_inputs, tmp_path):
    first = train_gpytorch.train(params(20), small_inputs, tmp_path / "a", NullLog())
    assert train_gpytorch.train(params(20), small_inputs, tmp_path / "b", NullLog()) == first
    assert (tmp_path / "a/runs.parquet").read_bytes() == (tmp_path / "b/runs.parquet").read_bytes()
    start = train_gpytorch.train(params(1), small_inputs, tmp_path / "start", NullLog())
    assert first["fit_dsvi_gpytorch.elbo.concrete"] > start["fit_dsvi_gpytorch.elbo.concrete"] + 1.0


def test_a_classification_is_refused(tmp_path):
    prepare(PrepareParams(data=("digits",), seeds=1, rows={"digits": 200}), Inputs(), tmp_path / "prepare", NullLog())
    folders = Inputs({"prepare": tmp_path / "prepare", "warmstart": tmp_path})
    with pytest.raises(ValueError, match="arm 'dsvi_gpytorch' is for regressions, got the classification 'digits'"):
        train_gpytorch.train(params(1, "digits", seeds=1), folders, tmp_path / "out", NullLog())
