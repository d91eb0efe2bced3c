import polychromic_stages
import pytest

from tasks.common.formats import read_parquet
from tasks.gridworld.compared import CompareParams, folder_of
from tasks.rl.pass_at_k import pass_at_k

pytestmark = pytest.mark.xdist_group("polychromic")


def test_at_least_a_tenth_ran_in_minigrid_and_agreed_with_the_twin(smoke):
    for level in ("fourrooms", "goto"):
        found = smoke[0][f"evaluate-{level}"]
        assert found[f"real.share.{level}"] >= 0.1
        assert found[f"real.mismatches.{level}"] == 0


def test_metrics_follow_from_the_table_of_successes(smoke):
    metrics, _, folder = smoke
    table = read_parquet(folder / "evaluate-fourrooms" / "successes.parquet")
    own = table[(table["arm"] == "poly") & (table["starts"] == "train")]
    by_seed = [pass_at_k(seed["successes"].to_numpy(), 20, 10).mean() for _, seed in own.groupby("seed")]
    assert metrics["evaluate-fourrooms"]["poly.pass10.fourrooms"] == pytest.approx(sum(by_seed) / 2)
    other = table[(table["arm"] == "ppo") & (table["starts"] == "train")]
    theirs = [pass_at_k(seed["successes"].to_numpy(), 20, 10).mean() for _, seed in other.groupby("seed")]
    difference = metrics["evaluate-fourrooms"]["poly.pass10.fourrooms-ppo.pass10.fourrooms"]
    assert difference == pytest.approx((sum(by_seed) - sum(theirs)) / 2)


def test_arms_with_fewer_seeds_are_paired_over_those_they_have(smoke):
    found = smoke[0]["evaluate-fourrooms"]
    assert found["poly_ucb.pass10.fourrooms-ppo.pass10.fourrooms.n"] == 1
    assert found["poly.pass10.fourrooms-ppo.pass10.fourrooms.n"] == 2


def test_the_stage_repeats_itself(smoke, tmp_path, monkeypatch):
    monkeypatch.setenv("PAPERS_THREADS", "1")
    again, figures = polychromic_stages.run(tmp_path, ["evaluate-goto"], source=smoke[2])
    assert again["evaluate-goto"] == smoke[0]["evaluate-goto"]
    assert set(figures) == {f"{name}_goto" for name in ("pass_at_k", "configurations", "learning", "ways")}


def test_an_arm_that_nobody_trained_is_named(smoke):
    from tasks.common.node import Inputs

    inputs = Inputs({name: smoke[2] / name for name in ("warmstart-fourrooms", "train-sets")})
    with pytest.raises(ValueError, match=r"unknown arm 'dqn'; trained: set_mean, vine_single"):
        folder_of(inputs, "dqn")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"references": ("dqn",)}, "dqn"),
        ({"tries": {"train": 3}}, "at least 4"),
        ({"real_share": 0.05}, "real_share"),
        ({"arms": ()}, "arms"),
    ],
)
def test_impossible_parameters_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        CompareParams(**change)
