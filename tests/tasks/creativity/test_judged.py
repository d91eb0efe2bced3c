import polychromic_stages
import pytest

from tasks.common.formats import read_parquet
from tasks.creativity.judged import JudgeParams
from tasks.creativity.prepared import load_task
from tasks.creativity.triangles import judge

pytestmark = pytest.mark.xdist_group("polychromic")


def test_metrics_are_means_of_what_the_samples_are_worth(smoke):
    metrics, figures, folder = smoke
    table = read_parquet(folder / "train-triangles" / "samples.parquet")
    own = table[(table["policy"] == "triangles") & (table["arm"] == "poly")]
    tasks = [load_task(folder / "prepare-triangles" / f"{s}.npz") for s in range(2)]
    worth = [judge(tasks[s], own.loc[own["seed"] == s, ["v1", "v2", "v3"]].to_numpy()) for s in range(2)]
    found = metrics["evaluate-triangles"]
    assert found["poly.unique_valid.triangles"] == pytest.approx(sum(w.unique_valid for w in worth) / 2)
    assert found["poly.validity.triangles"] == pytest.approx(sum(w.validity for w in worth) / 2)
    difference = found["poly.unique_valid.triangles-ppo.unique_valid.triangles"]
    assert difference == pytest.approx(found["poly.unique_valid.triangles"] - found["ppo.unique_valid.triangles"])
    assert "creativity" in figures


def test_judging_again_gives_the_same(smoke, tmp_path):
    again, _ = polychromic_stages.run(tmp_path, ["evaluate-triangles"], source=smoke[2])
    assert again["evaluate-triangles"] == smoke[0]["evaluate-triangles"]


def test_something_must_be_compared_with():
    with pytest.raises(ValueError, match="references"):
        JudgeParams(references=())
