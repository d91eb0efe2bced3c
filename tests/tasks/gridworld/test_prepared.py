import pytest

from tasks.common.formats import read_parquet
from tasks.common.node import Inputs, NullLog
from tasks.gridworld import prepared
from tasks.gridworld.layouts import load_layouts
from tasks.gridworld.prepared import PrepareParams, prepare

pytestmark = pytest.mark.xdist_group("polychromic")


@pytest.mark.parametrize("level", ["fourrooms", "goto"])
def test_the_stage_compares_the_twin_and_finds_no_difference(smoke, level):
    metrics, _, folder = smoke
    found = metrics[f"prepare-{level}"]
    assert found[f"twin.mismatches.{level}"] == 0
    assert found[f"twin.compared.{level}"] > 2000
    shown = read_parquet(folder / f"prepare-{level}" / "demonstrations.parquet")
    assert len(shown) == found[f"expert.steps.{level}"]
    train, unseen, moved = (load_layouts(folder / f"prepare-{level}" / f"{n}.npz") for n in ("train", "unseen", "moved"))
    assert not set(train.seed) & set(unseen.seed)
    assert (train.cells == moved.cells).all()
    assert (train.start[:, :2] != moved.start[:, :2]).any(1).all()


def test_a_twin_that_differs_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(prepared, "count_mismatches", lambda twin, configs: (10, 1))
    with pytest.raises(RuntimeError, match="differs from minigrid in 2 of 20 steps"):
        prepare(PrepareParams(configs=1, demonstrated=1), Inputs(), tmp_path, NullLog())


@pytest.mark.parametrize("change", [{"level": "maze"}, {"configs": 0}, {"configs": 901}, {"horizon": 0}])
def test_impossible_parameters_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        PrepareParams(**change)
