from __future__ import annotations

import numpy as np
import pytest
import torch
from routing_twins import best_tour

from tasks.common.node import Inputs, NullLog
from tasks.routing.datasets import PrepareParams, SetParams, draw, label, prepare, read_test
from tasks.routing.readers import read_instances


def test_sets_are_labelled_split_and_written(tmp_path):
    sets = {
        "medium": SetParams(hardness="medium", nodes=7, test=30, validation=6, labels=20),
        "dl": SetParams(problem="tspdl", nodes=6, test=5, validation=3),
    }
    metrics = prepare(PrepareParams(sets=sets), Inputs(), tmp_path, NullLog())
    made = draw(sets["medium"], 30, 2025)
    feasible = [best_tour(made, b) for b in range(30)]
    kept, held = read_instances(tmp_path / "medium-test.safetensors")
    assert held["cost"].tolist() == pytest.approx([cost for cost, tour in feasible if tour])
    hopeless, _ = read_instances(tmp_path / "medium-infeasible.safetensors")
    assert len(kept) + len(hopeless) == 30
    assert metrics["feasible_share.medium"] == len(kept) / 30
    assert 0 < len(hopeless) < 30
    labelled, extra = read_instances(tmp_path / "medium-labels.safetensors")
    assert torch.allclose(labelled.length(extra["tour"][:, None])[:, 0], extra["cost"])
    assert labelled.is_tour(extra["tour"][:, None]).all()
    assert not (tmp_path / "dl-infeasible.safetensors").exists()
    assert not (tmp_path / "dl-labels.safetensors").exists()
    assert metrics["optimal.length.dl.n"] == 5


def test_test_validation_and_labels_are_different_instances(tmp_path):
    prepare(PrepareParams(sets={"hard": SetParams(nodes=5, test=4, validation=4, labels=4)}), Inputs(), tmp_path, NullLog())
    parts = [read_instances(tmp_path / f"hard-{part}.safetensors")[0].locs for part in ("test", "validation", "labels")]
    assert len({float(part.sum()) for part in parts}) == 3


def test_solvers_leave_unknown_what_they_do_not_solve():
    made = draw(SetParams(hardness="medium", nodes=7), 10, 2025)
    exact, solver = label(made, "exact", 1), label(made, "pyvrp", 40)
    assert torch.isnan(exact.cost).any()
    assert torch.equal(torch.isnan(exact.cost), torch.isinf(solver.cost))
    solved = ~torch.isnan(exact.cost)
    assert torch.allclose(exact.cost[solved], solver.cost[solved])
    few = label(made, "exact", 1, most_labels=3)
    assert torch.isinf(few.cost).any()


def test_files_replace_the_generated_test(tmp_path):
    made = draw(SetParams(nodes=6), 4, 1)
    windows = torch.stack([made.early, made.late], -1)
    np.savez(tmp_path / "set.npz", locs=(made.locs * 100).numpy(), time_windows=(windows * 100).numpy())
    given = SetParams(nodes=6, test=3, validation=2, file=str(tmp_path / "set.npz"))
    out = tmp_path / "out"
    out.mkdir()
    metrics = prepare(PrepareParams(sets={"hard": given}), Inputs(), out, NullLog())
    assert metrics["instances.hard"] == 3
    assert torch.allclose(read_instances(out / "hard-test.safetensors")[0].late, made.late[:3])
    with pytest.raises(ValueError, match="holds tsptw with 6 nodes, wanted are tsptw with 9"):
        read_test(given.model_copy(update={"nodes": 9}), 3)


def test_a_folder_of_dumas_files_is_a_set(tmp_path):
    for i in range(2):
        rows = [f"{j + 1} {j} {j * j} 0 0 {99 + i} 0" for j in range(4)]
        (tmp_path / f"n4.{i}.txt").write_text("\n".join([*rows, "999 0 0 0 0 0 0"]))
    given = SetParams(nodes=4, file=str(tmp_path))
    assert len(read_test(given, 5)) == 2
    with pytest.raises(ValueError, match="of 5 nodes each, got 2 files, others of"):
        read_test(given.model_copy(update={"nodes": 5}), 5)


def test_impossible_options_are_refused():
    with pytest.raises(ValueError, match="labels come from exact search"):
        SetParams(labels=3, reference="pyvrp")
    with pytest.raises(ValueError, match="hardness"):
        SetParams(hardness="fiendish")
    with pytest.raises(ValueError, match="nodes"):
        SetParams(nodes=1)


def test_a_set_without_any_tour_is_refused(tmp_path, monkeypatch):
    from tasks.routing import datasets

    def nothing(asked, log=None):
        return [datasets.Labelled(made, torch.full((len(made),), torch.nan), torch.zeros((len(made), 5))) for made, *_ in asked]

    monkeypatch.setattr(datasets, "label_all", nothing)
    with pytest.raises(ValueError, match="set 'hard': none of 4 instances has a tour"):
        prepare(PrepareParams(sets={"hard": SetParams(nodes=5, test=4)}), Inputs(), tmp_path, NullLog())
