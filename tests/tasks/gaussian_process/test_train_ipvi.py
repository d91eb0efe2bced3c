"""The training stage of IPVI on a small part of Concrete."""

from __future__ import annotations

import pytest
import torch
from small_concrete import COMMON

from tasks.common.formats import read_parquet
from tasks.common.node import Inputs, NullLog
from tasks.gaussian_process import train_ipvi
from tasks.gaussian_process.datasets import PrepareParams, prepare
from tasks.gaussian_process.experiment import SetParams, Work, load_shared, read_warm, shared_state
from tasks.gaussian_process.ipvi import ImplicitParams

PARAMS = train_ipvi.ImplicitTrainParams(**COMMON, implicit=ImplicitParams(hidden=16, draws=16))


def test_the_stage_beats_the_mean_of_the_targets_and_claims_no_bound(small_inputs, tmp_path):
    metrics = train_ipvi.train(PARAMS, small_inputs, tmp_path, NullLog())
    runs, curves = read_parquet(tmp_path / "runs.parquet"), read_parquet(tmp_path / "curves.parquet")
    assert set(runs["arm"]) == {train_ipvi.ARM}
    assert not {"elbo", "kl"} & {*runs["quantity"], *curves["quantity"]}
    assert set(train_ipvi.NO_BOUND.values()) <= set(runs["quantity"])
    assert (runs[runs["quantity"] == "rmse_sd"]["value"] < 0.9).all()
    assert metrics["fit_ipvi.rmse.concrete"] == pytest.approx(runs[runs["quantity"] == "rmse"]["value"].mean())
    assert metrics["fit_ipvi.rmse.concrete.n"] == 2
    assert not any(".elbo." in name or ".kl." in name for name in metrics)
    assert sorted(set(curves["step"])) == [50, 100]


def test_a_second_run_gives_the_same_numbers(small_inputs, tmp_path):
    first = train_ipvi.train(PARAMS, small_inputs, tmp_path / "a", NullLog())
    assert train_ipvi.train(PARAMS, small_inputs, tmp_path / "b", NullLog()) == first


def test_the_model_starts_from_the_common_warm_start(small_inputs):
    warm = read_warm(small_inputs["warmstart"], "concrete", 2)
    problem = Work(small_inputs["prepare"], small_inputs["warmstart"], "concrete", PARAMS).problem()
    model = train_ipvi.implicit_model(problem, PARAMS, [0, 1])
    load_shared(model, warm)
    state = shared_state(model)
    assert state.keys() == warm.keys()
    assert all(torch.equal(state[name], warm[name]) for name in warm)


def test_a_set_without_warm_start_is_named(small_inputs, tmp_path):
    prepare(PrepareParams(data=("boston",), seeds=1), Inputs(), tmp_path, NullLog())
    folders = Inputs({"prepare": tmp_path, "warmstart": small_inputs["warmstart"]})
    params = PARAMS.model_copy(update={"data": {"boston": SetParams(seeds=1, steps=1)}})
    with pytest.raises(FileNotFoundError, match=r"boston.safetensors is missing; name 'boston' in the parameters of `warmstart`"):
        train_ipvi.train(params, folders, tmp_path / "out", NullLog())
