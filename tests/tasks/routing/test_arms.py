from __future__ import annotations

import pytest
import torch

from tasks.common.formats import read_json, read_parquet
from tasks.common.node import Inputs, NullLog
from tasks.routing.arms import ArmParams, TrainParams, train
from tasks.routing.checkpoints import load_model


def test_arms_and_seeds_are_trained_from_the_shared_start(smoke, tmp_path):
    root, metrics, _ = smoke
    folder = root / "train-medium"
    assert read_json(folder / "arms.json") == {"lmask": 2, "norie": 2, "pip": 2, "pomo": 2, "rho0": 2}
    start = load_model(root / "warmstart-medium/model.safetensors", "tsptw").state_dict()
    for arm in ("lmask", "pip", "norie"):
        models = [load_model(folder / f"{arm}-{seed}.safetensors", "tsptw") for seed in range(2)]
        assert models[0].refinement == (arm == "lmask")
        assert not torch.equal(models[0].query_node.weight, models[1].query_node.weight)
        moved = max(float((value - start[name]).abs().max()) for name, value in models[0].state_dict().items())
        assert 0 < moved < 0.01  # two steps of Adam
    table = read_parquet(folder / "training.parquet")
    assert set(table["arm"]) == {"lmask", "norie", "pip", "pomo", "rho0"}
    assert metrics["train-medium"]["lmask.paper_budget_fraction.medium"] == pytest.approx(2 * 4 / 256e6)


def test_a_route_without_backtracking_never_backtracks(smoke):
    table = read_parquet(smoke[0] / "train-medium/training.parquet").groupby("arm")["backtracks"].sum()
    assert table["pip"] == table["pomo"] == 0


def test_averaged_weights_lag_behind(smoke, tmp_path):
    root = smoke[0]
    inputs = Inputs({"prepare": root / "prepare", "warmstart-hard": root / "warmstart-hard"})
    arm = ArmParams(updates=3, batch=3, samples=3, rate=1e-2)
    moved = []
    start = load_model(root / "warmstart-hard/model.safetensors", "tsptw").query_node.weight
    for average in (0.0, 0.9):
        out = tmp_path / str(average)
        out.mkdir()
        train(TrainParams(set="hard", arms={"lmask": arm}, seeds=1, average=average), inputs, out, NullLog())
        moved.append(float((load_model(out / "lmask-0.safetensors", "tsptw").query_node.weight - start).abs().mean()))
    assert 0 < moved[1] < moved[0]


def test_an_arms_name_must_fit_a_metric():
    with pytest.raises(ValueError, match="letters, digits and _ only, got 'l-mask'"):
        TrainParams(arms={"l-mask": ArmParams()})
