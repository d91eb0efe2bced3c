"""The training stages of IPVI and SGHMC on a small part of Concrete."""

from __future__ import annotations

import pytest
import torch

from tasks.common.formats import read_parquet
from tasks.common.node import Inputs, NullLog
from tasks.gaussian_process import train_ipvi, train_sghmc
from tasks.gaussian_process.datasets import PrepareParams, prepare
from tasks.gaussian_process.experiment import Architecture, SetParams, TrainParams, Work
from tasks.gaussian_process.ipvi import ImplicitParams
from tasks.gaussian_process.sghmc import SghmcParams
from tasks.gaussian_process.training import FitParams
from tasks.gaussian_process.warmstart import WarmstartParams, warmstart

COMMON = {
    "data": {"concrete": SetParams(seeds=2, steps=100)},
    "architecture": Architecture(inducing=8),
    "fit": FitParams(batch=64, curve=2, curve_draws=8, draws=16),
}
STAGES = {
    "ipvi": (train_ipvi, train_ipvi.ImplicitTrainParams(**COMMON, implicit=ImplicitParams(hidden=16, draws=16))),
    "sghmc": (train_sghmc, train_sghmc.SghmcTrainParams(**COMMON, sampler=SghmcParams(rate=0.1, burn_in=40, window=50))),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    root = tmp_path_factory.mktemp("stages")
    prepare(PrepareParams(data=("concrete",), seeds=2, rows={"concrete": 160}), Inputs(), root / "prepare", NullLog())
    folders = Inputs({"prepare": root / "prepare", "warmstart": root / "warmstart"})
    (root / "warmstart").mkdir()
    warmstart(WarmstartParams(**COMMON, warm_steps=20), folders, root / "warmstart", NullLog())
    return folders


@pytest.mark.parametrize("arm", list(STAGES))
def test_the_stage_beats_the_mean_of_the_targets_and_claims_no_bound(arm, inputs, tmp_path):
    module, params = STAGES[arm]
    metrics = module.train(params, inputs, tmp_path, NullLog())
    runs, curves = read_parquet(tmp_path / "runs.parquet"), read_parquet(tmp_path / "curves.parquet")
    assert set(runs["arm"]) == {arm}
    assert not {"elbo", "kl"} & {*runs["quantity"], *curves["quantity"]}
    assert set(module.NO_BOUND.values()) <= set(runs["quantity"])
    assert (runs[runs["quantity"] == "rmse_sd"]["value"] < 0.9).all()
    assert metrics["rmse.concrete"] == pytest.approx(runs[runs["quantity"] == "rmse"]["value"].mean())
    assert metrics["rmse.concrete.n"] == 2
    assert not any(name.startswith(("elbo", "kl")) for name in metrics)
    assert sorted(set(curves["step"])) == [50, 100]


@pytest.mark.parametrize("arm", list(STAGES))
def test_a_second_run_gives_the_same_numbers(arm, inputs, tmp_path):
    module, params = STAGES[arm]
    first = module.train(params, inputs, tmp_path / "a", NullLog())
    assert module.train(params, inputs, tmp_path / "b", NullLog()) == first


def test_models_start_from_the_common_warm_start(inputs):
    from tasks.gaussian_process.experiment import load_shared, read_warm, shared_state

    warm = read_warm(inputs["warmstart"], "concrete")
    for module, params in STAGES.values():
        problem = Work(inputs["prepare"], inputs["warmstart"], "concrete", params).problem()
        make = module.implicit_model if module is train_ipvi else module.sampled_model
        model = make(problem, params, [0, 1])
        load_shared(model, warm)
        state = shared_state(model)
        assert state.keys() == warm.keys()
        assert all(torch.equal(state[name], warm[name]) for name in warm)


def test_a_set_without_warm_start_is_named(inputs, tmp_path):
    params = TrainParams(data={"boston": SetParams(seeds=1, steps=1)})
    prepare(PrepareParams(data=("boston",), seeds=1), Inputs(), tmp_path, NullLog())
    folders = Inputs({"prepare": tmp_path, "warmstart": inputs["warmstart"]})
    for module, own in STAGES.values():
        with pytest.raises(FileNotFoundError, match=r"boston.safetensors is missing; name 'boston' in the parameters of `warmstart`"):
            module.train(own.model_copy(update={"data": params.data}), folders, tmp_path / "out", NullLog())
