import polychromic_stages
import pytest

from tasks.common.formats import read_parquet
from tasks.creativity.set_fine_tuning import CreativityArm
from tasks.creativity.trained import TrianglesTrainParams

pytestmark = pytest.mark.xdist_group("polychromic")


def test_metrics_and_samples_do_not_depend_on_the_number_of_processes(smoke, tmp_path, monkeypatch):
    monkeypatch.setenv("PAPERS_THREADS", "2")
    again, _ = polychromic_stages.run(tmp_path, ["train-triangles"], source=smoke[2])
    assert again["train-triangles"] == smoke[0]["train-triangles"]
    kept = [read_parquet(folder / "train-triangles" / "samples.parquet") for folder in (smoke[2], tmp_path)]
    assert kept[0].equals(kept[1])


def test_every_arm_of_both_policies_drew_its_samples(smoke):
    table = read_parquet(smoke[2] / "train-triangles" / "samples.parquet")
    params = TrianglesTrainParams(**polychromic_stages.SECTIONS["smoke"]["train"]["triangles"])
    counts = table.groupby(["policy", "arm", "seed"]).size()
    assert (counts == params.samples).all()
    assert set(table.loc[table["policy"] == "triangles", "arm"]) == set(params.arms)
    assert set(table.loc[table["policy"] == "triangles_gpt", "arm"]) == set(params.gpt_arms)
    used = {v for n, v in smoke[0]["train-triangles"].items() if n.endswith(".samples.triangles")}
    assert used == {params.training.updates * params.training.samples}


def test_groups_that_do_not_divide_the_batch_are_refused():
    with pytest.raises(ValueError, match="multiple of its group of 24"):
        TrianglesTrainParams(arms={"odd": CreativityArm(objective="mean", group=24)})
