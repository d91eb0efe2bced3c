"""Stages that train the arms without values: files, controls, warm starts, what cannot run."""

import numpy as np
import pytest

from tasks.common.formats import read_json, read_parquet
from tasks.common.node import Inputs, NullLog
from tasks.offline_rl.contrastive import Job, train_contrastive
from tasks.offline_rl.learning_data import DataStack
from tasks.offline_rl.policies import policies_of, read_policies
from tasks.offline_rl.preference_arms import CloningParams, ContrastiveParams, grid_name, train, warmstart
from tasks.offline_rl.sparse_data import load_learning_data

pytestmark = pytest.mark.xdist_group("contrastive")
SMALL = {"updates": 4, "segments": 2, "k": 3, "hidden": (6,), "checkpoints": 2}


@pytest.fixture(scope="module")
def prepared(contrastive_smoke):
    return contrastive_smoke[0].folder / "prepare"


@pytest.fixture(scope="module")
def trained(prepared, tmp_path_factory):
    """Warm start and arms, of small networks."""
    warm, out = tmp_path_factory.mktemp("warm"), tmp_path_factory.mktemp("train")
    cloning = {"updates": 4, "hidden": (6,), "checkpoints": 1, "batch": 8}
    arms = {"bc": cloning, "bc_plus": {**cloning, "rows": "successes"}}
    warmstart(CloningParams(datasets=("medium", "no_failures"), seeds=2, arms=arms), Inputs({"prepare": prepared}), warm, NullLog())
    params = ContrastiveParams(
        datasets={"medium": ("preforl", "cpl", "preforl_warm", "shuffled"), "no_failures": ("preforl", "cpl")},
        seeds=2,
        arms={
            "preforl": SMALL,
            "cpl": {**SMALL, "negatives": "failures"},
            "preforl_warm": {**SMALL, "start": "bc_plus"},
            "shuffled": {**SMALL, "shuffled": True},
        },
        biases=(0.3, 1.0),
        sigmas=(0.1,),
    )
    metrics = train(params, Inputs({"prepare": prepared, "warmstart": warm}), out, NullLog())
    return params, metrics, out, warm


def test_every_arm_leaves_its_iterates(trained):
    _, _, out, warm = trained
    assert sorted(read_policies(warm / "medium.safetensors")) == ["bc/4", "bc_plus/4"]
    names = {name.split("/")[0] for name in read_policies(out / "medium.safetensors")}
    assert names == {"preforl", "cpl", "preforl_warm", "shuffled", "preforl_l30_s10", "preforl_l100_s10"}
    assert all(len(p) == 2 for p in read_policies(out / "medium.safetensors").values())


def test_what_the_data_rule_out_is_recorded_and_the_rest_runs(trained):
    _, metrics, out, _ = trained
    assert metrics["cpl.cannot_run.no_failures"] == 1
    assert metrics["preforl.cannot_run.no_failures"] == metrics["cpl.cannot_run.medium"] == 0
    assert "CPL is undefined: no failures" in read_json(out / "undefined.json")["cpl.no_failures"]
    assert {name.split("/")[0] for name in read_policies(out / "no_failures.safetensors")} == {"preforl"}


def test_an_arm_that_cannot_run_does_not_take_its_stack_along(prepared, tmp_path):
    arms = {"preforl": SMALL, "preforl_a": {**SMALL, "negatives": "action"}, "preforl_s": {**SMALL, "negatives": "state"}}
    params = ContrastiveParams(datasets={"no_failures": tuple(arms)}, seeds=2, arms=arms)
    metrics = train(params, Inputs({"prepare": prepared}), tmp_path, NullLog())  # preforl and preforl_s share a stack
    assert [metrics[f"{arm}.cannot_run.no_failures"] for arm in arms] == [0, 0, 1]
    assert {name.split("/")[0] for name in read_policies(tmp_path / "no_failures.safetensors")} == {"preforl", "preforl_a"}
    assert list(read_json(tmp_path / "undefined.json")) == ["preforl_s.no_failures"]


def test_an_arm_is_the_one_trained_by_hand(trained, prepared):
    params, _, out, _ = trained
    parts = [load_learning_data(prepared, "medium", s) for s in range(2)]
    jobs = [Job(params.arms["preforl"], s, (0, s, 100)) for s in range(2)]
    slow = policies_of(train_contrastive(DataStack(parts), jobs).weights[4], parts)
    for a, b in zip(read_policies(out / "medium.safetensors")["preforl/4"].weights, slow.weights, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_a_warm_start_begins_at_the_cloned_policy_and_the_control_sees_other_successes(trained):
    _, _, out, warm = trained
    start = read_policies(warm / "medium.safetensors")["bc_plus/4"].weights[0]
    arms = read_policies(out / "medium.safetensors")
    assert np.abs(arms["preforl_warm/4"].weights[0] - start).max() < 0.01
    assert np.abs(arms["preforl/4"].weights[0] - start).max() > 0.05
    assert not np.allclose(arms["shuffled/4"].weights[0], arms["preforl/4"].weights[0])


def test_history_is_kept_by_seed(trained):
    _, metrics, out, _ = trained
    table = read_parquet(out / "training.parquet")
    assert set(table["quantity"]) == {"loss", "logit", "log_prob"}
    last = table[(table["data"] == "medium") & (table["arm"] == "preforl") & (table["quantity"] == "logit")]
    assert metrics["preforl.logit.medium"] == pytest.approx(last[last["update"] == last["update"].max()]["value"].mean())


def test_grids_are_named_and_run_on_the_first_data_set():
    params = ContrastiveParams(datasets={"a": ("preforl",), "b": ("preforl",)}, biases=(0.5,), sigmas=(0.02, 0.3))
    assert params.arms_on("a") == ["preforl", "preforl_l50_s2", "preforl_l50_s30"]
    assert params.arms_on("b") == ["preforl"]
    config = params.configs()[grid_name("preforl", 0.5, 0.02)]
    assert (config.bias, config.sigma) == (0.5, 0.02)


def test_unknown_arms_and_starts_are_refused(prepared, trained, tmp_path):
    with pytest.raises(ValueError, match="unknown arm 'prefrol' for medium"):
        ContrastiveParams(datasets={"medium": ("prefrol",)})
    params = ContrastiveParams(seeds=1, arms={"preforl": {**SMALL, "start": "none"}})
    with pytest.raises(KeyError, match="'none' is no arm of the warm start"):
        train(params, Inputs({"prepare": prepared, "warmstart": trained[3]}), tmp_path, NullLog())
