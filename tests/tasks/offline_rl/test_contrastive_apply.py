"""The tool: a policy from a Minari data set, baselines beside it."""

import json

import numpy as np
import pandas as pd
import pytest
from kept_log import KeptLog

from tasks.common.node import NullLog
from tasks.offline_rl.contrastive_apply import ApplyParams, apply, configs
from tasks.offline_rl.maze_controllers import BEHAVIOURS, collect_maze
from tasks.offline_rl.minari_episodes import export_minari
from tasks.offline_rl.point_maze import MAZES
from tasks.offline_rl.policies import read_policies

FAST = {"updates": 4, "segments": 2, "k": 3, "hidden": (6,)}


@pytest.fixture(scope="module")
def umaze(store):
    data, _ = collect_maze(MAZES["umaze"], BEHAVIOURS["umaze"], 40, np.random.default_rng(0))
    export_minari(data, "test/apply-v0")
    export_minari(data.take(np.flatnonzero(data.returns > 0)), "test/apply-wins-v0")
    return data


def test_a_dense_reward_with_an_environment_gives_rollouts(store, tmp_path):
    summary = apply(ApplyParams(dataset="test/pendulum-v0", **FAST, quantile=0.5, episodes=2, seeds=2), tmp_path / "out", NullLog())
    assert summary["rule"] == "quantile"
    assert summary["successes"] == 1
    table = pd.read_csv(tmp_path / "out" / "arms.csv").set_index("arm")
    assert table.index.tolist() == ["preforl", "bc_plus", "bc", "cpl"]
    assert (table["return"] < 0).all()
    assert table["success"].between(0, 1).all()


def test_without_an_environment_it_scores_on_unseen_trajectories_and_says_why(umaze, tmp_path):
    log = KeptLog()
    summary = apply(ApplyParams(dataset="test/apply-v0", **FAST, baselines=("bc_plus", "iql")), tmp_path / "out", log)
    assert summary["successes"] == int((umaze.returns > 0).sum())
    assert "preforl log_prob_held_out" in summary
    assert any("no rollouts" in line for line in log.messages)
    table = pd.read_csv(tmp_path / "out" / "arms.csv").set_index("arm")
    assert table["accuracy_action"].between(0, 1).all()
    assert table["note"].str.contains("no rollouts").all()


def test_the_written_policy_acts_and_the_configuration_says_how_it_was_made(umaze, tmp_path):
    apply(ApplyParams(dataset="test/apply-v0", **FAST, baselines=("bc",), episodes=0, bias=0.3), tmp_path / "out", NullLog())
    policy = read_policies(tmp_path / "out" / "policy.safetensors")["preforl"]
    assert np.abs(policy.act(umaze.obs[None, :5])).max() <= 1
    assert list(read_policies(tmp_path / "out" / "baselines.safetensors")) == ["bc"]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["arms"]["preforl"]["bias"] == 0.3
    assert config["data"]["rule"] == "reward"


def test_the_same_seed_gives_the_same_policy(umaze, tmp_path):
    for name in ("a", "b"):
        apply(ApplyParams(dataset="test/apply-v0", **FAST, baselines=(), episodes=0), tmp_path / name, NullLog())
    assert (tmp_path / "a" / "policy.safetensors").read_bytes() == (tmp_path / "b" / "policy.safetensors").read_bytes()
    assert not (tmp_path / "a" / "baselines.safetensors").exists()


def test_data_without_failures_leave_cpl_out_with_the_reason(umaze, tmp_path):
    apply(ApplyParams(dataset="test/apply-wins-v0", success="info", **FAST, episodes=0), tmp_path / "out", NullLog())
    table = pd.read_csv(tmp_path / "out" / "arms.csv").set_index("arm")
    assert "CPL is undefined: no failures" in table.loc["cpl", "note"]
    assert np.isfinite(table.loc["preforl", "log_prob_held_out"])


def test_a_device_that_is_not_here_and_a_diverging_method_are_told(umaze, tmp_path):
    with pytest.raises(ValueError, match="torch has no device 'abacus' on this machine"):
        ApplyParams(dataset="x", device="abacus")
    with pytest.raises(ValueError, match=r"training failed: the loss is nan at step 0.*; lower alpha or sigma"):
        apply(ApplyParams(dataset="test/apply-v0", **FAST, alpha=1e38, sigma=1e30), tmp_path / "out", NullLog())
    assert not (tmp_path / "out").exists()


def test_value_based_baselines_get_ten_times_the_updates():
    found = configs(ApplyParams(dataset="x", updates=7, baselines=("td3bc", "bc", "cql", "awr", "rebrac", "uniform")))
    assert {name: config.updates for name, config in found.items()} == {
        **{"preforl": 7, "td3bc": 70, "bc": 7, "cql": 70, "awr": 70, "rebrac": 70, "uniform": 7}
    }
