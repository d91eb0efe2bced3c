import pytest

from tasks.common.node import Inputs, NullLog
from tasks.creativity.prepared import TaskParams, TriangleStartParams, load_task, prepare, warmstart

pytestmark = pytest.mark.xdist_group("polychromic")


def test_every_seed_has_a_graph_of_its_own(smoke):
    metrics, _, folder = smoke
    tasks = [load_task(folder / "prepare-triangles" / f"{s}.npz") for s in range(2)]
    assert (tasks[0].adjacency != tasks[1].adjacency).any()
    found = metrics["prepare-triangles"]
    assert found["shown.count.triangles"] == sum(len(t.shown) for t in tasks) / 2
    assert found["held_out.count.triangles"] == sum(len(t.held_out) for t in tasks) / 2


def test_the_tabular_start_is_as_valid_as_the_comparison_needs(smoke):
    found = smoke[0]["warmstart-triangles"]
    assert 0.4 <= found["pretrained.start_validity.triangles"] <= 0.6
    assert "pretrained.start_validity.triangles_gpt" in found


def test_a_start_outside_its_bounds_is_refused(smoke, tmp_path, monkeypatch):
    monkeypatch.setenv("PAPERS_THREADS", "1")
    params = TriangleStartParams(seeds=1, layers=0, samples=50, validity=(0.9, 1.0))
    inputs = Inputs({"prepare-triangles": smoke[2] / "prepare-triangles"})
    with pytest.raises(RuntimeError, match=r"outside 0\.9\.\.1\.0"):
        warmstart(params, inputs, tmp_path, NullLog())


def test_preparing_again_gives_the_same(smoke, tmp_path):
    metrics = prepare(TaskParams(vertices=40, planted=80, edges=60, strings=400, seeds=2), Inputs(), tmp_path, NullLog())
    assert metrics == smoke[0]["prepare-triangles"]


@pytest.mark.parametrize("change", [{"vertices": 2}, {"held_out": 0.0}, {"seeds": 0}])
def test_impossible_parameters_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        TaskParams(**change)
