"""The paper's data sets by their identifiers, from a small local store."""

import doctest

import numpy as np
import pytest

from tasks.common.assets import AssetMissing
from tasks.common.node import Inputs, NullLog
from tasks.offline_rl import d4rl as module
from tasks.offline_rl.d4rl import D4rlParams, EvaluateD4rlParams, TrainD4rlParams, evaluate, normalised_score, prepare, train
from tasks.offline_rl.learning_data import read_neighbours
from tasks.offline_rl.maze_controllers import BEHAVIOURS, collect_maze
from tasks.offline_rl.minari_episodes import export_minari
from tasks.offline_rl.point_maze import MAZES

SMALL = {"updates": 3, "hidden": (6,), "checkpoints": 1}


@pytest.fixture(scope="module")
def tasks(store):
    data, _ = collect_maze(MAZES["umaze"], BEHAVIOURS["umaze"], 12, np.random.default_rng(0))
    export_minari(data.take(np.flatnonzero(data.returns > 0)), "test/wins-v0", "Pendulum-v1")
    return {
        "swing": {"dataset": "test/pendulum-v0", "rule": "quantile", "reference": "hopper"},
        "wins": {"dataset": "test/wins-v0", "rule": "reward"},
    }


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(module).failed == 0


def test_scores_are_zero_for_the_random_and_a_hundred_for_the_expert_policy():
    for name, (random, expert) in module.REFERENCE.items():
        np.testing.assert_allclose(normalised_score(np.array([random, expert]), name), [0, 100])
    with pytest.raises(KeyError, match="no reference returns for 'ant'"):
        normalised_score(np.zeros(1), "ant")


def test_the_stages_run_from_a_store_to_differences(tasks, tmp_path):
    shared = {"tasks": {"swing": tasks["swing"]}, "seeds": 2, "held_out": 0.0}
    folders = {name: tmp_path / name for name in ("prepare-d4rl", "train-d4rl", "evaluate-d4rl")}
    for folder in folders.values():
        folder.mkdir()
    inputs = Inputs(folders)
    found = prepare(D4rlParams(**shared, quantile=0.5), inputs, folders["prepare-d4rl"], NullLog())
    assert found["data.transitions.swing"] == 90
    arms = {"contrastive": {"preforl": SMALL}, "cloning": {"bc": SMALL}, "iql": {"iql": {"updates": 3, "hidden": (6,), "batch": 8}}}
    assert train(TrainD4rlParams(**shared, **arms), inputs, folders["train-d4rl"], NullLog()) == {}
    metrics = evaluate(EvaluateD4rlParams(**shared, episodes=2, quantile=0.5), inputs, folders["evaluate-d4rl"], NullLog())
    for quantity in ("success", "return", "normalised_score"):
        gap = metrics[f"preforl.{quantity}.swing"] - metrics[f"bc.{quantity}.swing"]
        assert metrics[f"preforl.{quantity}.swing-bc.{quantity}.swing"] == pytest.approx(gap)
    assert metrics["iql.return.swing"] < 0


def test_an_arm_that_the_data_rule_out_is_recorded(tasks, tmp_path):
    shared = {"tasks": {"wins": tasks["wins"]}, "seeds": 1, "held_out": 0.0}
    for name in ("prepare-d4rl", "train-d4rl"):
        (tmp_path / name).mkdir()
    inputs = Inputs({"prepare-d4rl": tmp_path / "prepare-d4rl"})
    assert prepare(D4rlParams(**shared), inputs, tmp_path / "prepare-d4rl", NullLog())["behaviour.success.wins"] == 1
    assert (read_neighbours(tmp_path / "prepare-d4rl" / "wins.npz")[2] == -1).all()
    arms = {"contrastive": {"preforl": SMALL, "cpl": {**SMALL, "negatives": "failures"}}}
    assert train(TrainD4rlParams(**shared, **arms), inputs, tmp_path / "train-d4rl", NullLog()) == {"cpl.cannot_run.wins": 1.0}


def test_a_missing_data_set_names_the_command(store, tmp_path):
    with pytest.raises(AssetMissing, match="minari download D4RL/door/cloned-v2"):
        prepare(D4rlParams(), Inputs(), tmp_path, NullLog())
