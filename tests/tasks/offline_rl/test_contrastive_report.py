"""The judging stage on the smoke data: differences, short budgets, overestimation, all written out from what the stage left."""

import numpy as np
import pytest

from tasks.common.formats import read_parquet
from tasks.offline_rl.batch_rollout import run_policies
from tasks.offline_rl.policies import read_policies
from tasks.offline_rl.policy_selection import iterates_of
from tasks.offline_rl.sparse_data import batch_task, load_learning_data, load_starts

pytestmark = pytest.mark.xdist_group("contrastive")


@pytest.fixture(scope="module")
def run(contrastive_smoke):
    return contrastive_smoke[0]


@pytest.fixture(scope="module")
def judged(run):
    return run.metrics["evaluate-policies"], read_parquet(run.folder / "evaluate-policies" / "success.parquet")


def test_differences_are_paired_over_seeds(judged):
    metrics, table = judged
    by_arm = table[table["data"] == "medium"].pivot_table(index="seed", columns="arm", values="success")
    for other in ("cpl", "bc_plus", "iql_short"):
        name = f"preforl.success.medium-{other}.success.medium"
        gap = by_arm["preforl"] - by_arm[other]
        assert metrics[name] == pytest.approx(gap.mean())
        assert metrics[f"{name}.se"] == pytest.approx(gap.std() / np.sqrt(len(gap)))


def test_success_is_that_of_the_chosen_iterate_from_the_test_starts(run, judged):
    _, table = judged
    row = table[(table["data"] == "umaze") & (table["arm"] == "preforl") & (table["seed"] == 1)].iloc[0]
    policy = read_policies(run.folder / "train-preference" / "umaze.safetensors")[f"preforl/{row['updates']}"].take([1])
    states, goals = (x[[1]] for x in load_starts(run.folder / "prepare", "umaze", 2, "test"))
    assert run_policies(batch_task("umaze"), policy.act, states, goals).success.mean() == row["success"]


def test_short_arms_use_young_iterates_alone(run, judged):
    _, table = judged
    limit = 20
    assert (table[table["arm"].str.endswith("_short")]["updates"] <= limit).all()
    assert set(iterates_of((run.folder / "train-value" / "medium.safetensors",), "iql", limit)) == {20}


def test_overestimation_is_expected_minus_achieved_from_recorded_starts(run, judged):
    metrics, table = judged
    for arm in ("iql", "td3bc_short"):
        gap = metrics[f"{arm}.expected_at_starts.medium"] - metrics[f"{arm}.achieved.medium"]
        assert metrics[f"{arm}.overestimation.medium"] == pytest.approx(gap)
    prepared = run.folder / "prepare"
    achieved = []
    for s in range(2):
        row = table[(table["data"] == "medium") & (table["arm"] == "iql") & (table["seed"] == s)].iloc[0]
        policy = read_policies(run.folder / "train-value" / "medium.safetensors")[f"iql/{row['updates']}"].take([s])
        ready = load_learning_data(prepared, "medium", s)
        first = ready.obs[ready.positive[:, 0]].astype(float) * ready.standardise.scale + ready.standardise.mean
        runs = run_policies(batch_task("medium"), policy.act, first[None, :, :4], first[None, :, 4:6])
        achieved.append(np.mean([0.99 ** (n - 1) if won else 0.0 for won, n in zip(runs.success[0], runs.steps[0], strict=True)]))
    assert metrics["iql.achieved.medium"] == pytest.approx(np.mean(achieved))


def test_goals_are_counted_where_they_are_replaced(judged):
    metrics, _ = judged
    assert metrics["bc_plus.success_count.goals"] >= 0
    assert "bc_plus.success_count.medium" not in metrics


def test_metrics_do_not_depend_on_the_number_of_workers(contrastive_smoke):
    first, second = (run.metrics for run in contrastive_smoke)
    assert {k: v for k, v in first.items() if k != "evaluate-speed"} == {k: v for k, v in second.items() if k != "evaluate-speed"}
