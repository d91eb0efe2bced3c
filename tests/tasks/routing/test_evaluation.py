from __future__ import annotations

import numpy as np
import pytest
import torch
from routing_twins import slow_lazy_decode

from tasks.common.formats import read_parquet
from tasks.common.node import Inputs
from tasks.routing.checkpoints import load_model
from tasks.routing.evaluation import EvaluateParams, EvaluateSet, plan_runs
from tasks.routing.lazymask import SOLVED
from tasks.routing.readers import read_instances


@pytest.fixture(scope="module")
def decodes(smoke):
    return read_parquet(smoke[0] / "evaluate/decodes.parquet")


def test_the_table_holds_what_one_by_one_decoding_finds(smoke, decodes):
    instances, held = read_instances(smoke[0] / "prepare/hard-test.safetensors")
    model = load_model(smoke[0] / "train-hard/lmask-1.safetensors", "tsptw")
    rows = decodes.query("set == 'hard' and run == 'lmask' and seed == 1 and image == 0").sort_values("instance")
    for b, row in enumerate(rows.to_dict("records")):
        tour, status, used, calls = slow_lazy_decode(instances, b, model.scorer(instances), 200, show_budget=False)
        assert (row["status"], row["backtracks"], row["calls"]) == (status, used, calls)
        if status == SOLVED:
            assert row["length"] == pytest.approx(float(instances.take([b]).length(torch.tensor([[tour]]))))
    assert rows["cost"].to_numpy() == pytest.approx(held["cost"].numpy())


def test_no_solution_beats_the_optimum_and_none_is_claimed_for_instances_without_one(decodes):
    solved = decodes[decodes["status"] == SOLVED]
    assert (solved["part"] == "test").all()
    assert (solved["length"] >= solved["cost"] - 1e-4).all()
    assert np.isinf(decodes.loc[decodes["status"] != SOLVED, "length"]).all()
    assert not ((decodes["part"] == "test") & (decodes["status"] == 0)).any()


def test_pip_is_the_network_without_backtracking(smoke, decodes):
    metrics = smoke[1]["evaluate"]
    rows = decodes.query("set == 'medium' and run == 'pip' and part == 'test'")
    wanted = 1 - ((rows["status"] == SOLVED) & (rows["backtracks"] == 0)).groupby(rows["seed"]).mean().mean()
    assert metrics["pip.sol_infeas.medium"] == pytest.approx(wanted)
    assert metrics["nobt_r0.sol_infeas.medium"] == pytest.approx(wanted)
    assert metrics["nobt_r200.sol_infeas.medium"] <= wanted


def test_rules_decode_one_image_and_networks_all(decodes):
    images = decodes[decodes["part"] == "test"].groupby("run")["image"].max()
    assert images["nearest"] == 0
    assert images["lmask"] == images["random"] == 1


def test_weights_of_another_set_decode_a_smaller_one(decodes):
    rows = decodes.query("set == 'dl12' and run == 'lmask'")
    assert len(rows)
    assert np.isfinite(rows["cost"]).all()


def test_arms_that_were_not_trained_are_named(smoke):
    inputs = Inputs({name: smoke[0] / name for name in ("prepare", "train-hard")})
    with pytest.raises(ValueError, match="set 'hard': no weights of norie; trained were lmask, pip"):
        plan_runs(EvaluateParams(), inputs, "hard", EvaluateSet(arms=("lmask", "norie")))
