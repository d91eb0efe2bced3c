from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from kept_log import KeptLog
from routing_twins import best_tour, mixed, seeded

from tasks.routing.application import SolveParams, look_alikes, solve_instances
from tasks.routing.attention_model import AttentionModel
from tasks.routing.checkpoints import save_model
from tasks.routing.generators import random_tsptw

QUICK = {"updates": 3, "iterations": 50, "images": 2}


@pytest.fixture
def mine(tmp_path):
    """Four instances of eight nodes in one CSV, in metres, some without a tour."""
    instances = mixed(1, 8, 4)[0]
    rows = []
    for b in range(4):
        for j in range(8):
            x, y = (instances.locs[b, j] * 1000).tolist()
            ready, due = (float(end[b, j]) * 1000 for end in (instances.early, instances.late))
            rows.append({"instance": f"day{b}", "id": f"stop{j}", "x": x, "y": y, "ready": ready, "due": due, "service": 0})
    pd.DataFrame(rows).to_csv(tmp_path / "mine.csv", index=False)
    return tmp_path / "mine.csv", instances


def test_a_persons_csv_is_solved_or_proved_infeasible(mine, tmp_path):
    path, instances = mine
    log = KeptLog()
    summary = solve_instances(SolveParams(instances=path, **QUICK), tmp_path / "out", log)
    table = pd.read_csv(tmp_path / "out/solutions.csv")
    statuses = set()
    for b, row in enumerate(table.to_dict("records")):
        cost, tour = best_tour(instances, b)
        assert row["status"] == ("solved" if tour else "infeasible")
        statuses.add(row["status"])
        if tour:
            nodes = [int(name.removeprefix("stop")) for name in row["tour"].split()]
            assert instances.take([b]).is_tour(torch.tensor([[nodes]])).item()
            assert row["cost"] == pytest.approx(1000 * float(instances.take([b]).length(torch.tensor([[nodes]]))), rel=1e-6)
            assert row["pyvrp_cost"] == pytest.approx(1000 * cost, rel=1e-4)
        else:
            assert np.isnan(row["pyvrp_cost"])
    assert statuses == {"solved", "infeasible"}
    assert summary["solved"] + summary["infeasible"] == 4
    assert {name: drawn.axes for name, drawn in log.figures.items()} == {"tours": 4}
    visits = pd.read_csv(tmp_path / "out/visits.csv")
    assert (visits["start"] >= visits["ready"] - 1e-6).all()
    assert (visits["start"] <= visits["due"] + 1e-5 * 1000 + 1e-6).all()
    assert len(visits) == 8 * summary["solved"]


def test_given_weights_are_used_and_a_csv_can_be_the_output(mine, tmp_path):
    path, _ = mine
    weights = tmp_path / "weights.safetensors"
    save_model(weights, AttentionModel("tsptw", 8, 2, 1, 16, generator=seeded(1)))
    summary = solve_instances(SolveParams(instances=path, weights=weights, pyvrp=False, **QUICK), tmp_path / "out.csv", KeptLog())
    assert summary["weights"] == str(weights)
    assert "pyvrp_cost" not in pd.read_csv(tmp_path / "out.csv")
    save_model(weights, AttentionModel("tspdl", 8, 2, 1, 16, generator=seeded(1)))
    with pytest.raises(ValueError, match="a model for tspdl"):
        solve_instances(SolveParams(instances=path, weights=weights), tmp_path / "other.csv", KeptLog())


def test_dumas_files_of_different_sizes_in_a_folder(tmp_path):
    folder = tmp_path / "instances"
    folder.mkdir()
    for name, due in (("easy", 500), ("hopeless", 3)):
        rows = [f"{j} {10 * j} {5 * (j % 2)} 0 0 {due if j else 900} 0" for j in range(5 if due > 3 else 4)]
        (folder / f"{name}.txt").write_text("\n".join([*rows, "999 0 0 0 0 0 0"]))
    summary = solve_instances(SolveParams(instances=folder, rounding="floor", **QUICK), tmp_path / "out.csv", KeptLog())
    table = pd.read_csv(tmp_path / "out.csv").set_index("instance")
    assert table["status"].to_dict() == {"easy": "solved", "hopeless": "infeasible"}
    assert table.loc["hopeless", "found_by"] == "search"
    assert table.loc["easy", "cost"] == pytest.approx(11 + 11 + 11 + 11 + 40, abs=6)
    assert (summary["solved"], summary["infeasible"], summary["unknown"]) == (1, 1, 0)


def test_what_is_neither_found_nor_ruled_out_is_unknown(mine, tmp_path, monkeypatch):
    from tasks.routing import application

    path, instances = mine
    monkeypatch.setattr(application, "LABELS_OF_PROOFS", 1)
    solve_instances(SolveParams(instances=path, backtracks=0, pyvrp=False, **QUICK), tmp_path / "out.csv", KeptLog())
    for b, row in enumerate(pd.read_csv(tmp_path / "out.csv").to_dict("records")):
        assert row["status"] in (("solved", "unknown") if best_tour(instances, b)[1] else ("infeasible", "unknown"))
        assert (row["status"] == "solved") == (row["tour"] == row["tour"])


def test_the_same_seed_gives_the_same_answer(mine, tmp_path):
    path, _ = mine
    texts = []
    for name in ("a.csv", "b.csv"):
        solve_instances(SolveParams(instances=path, seed=3, pyvrp=False, **QUICK), tmp_path / name, KeptLog())
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]


def test_without_exact_answers_training_goes_by_penalty(mine, tmp_path, monkeypatch):
    from tasks.routing import application

    monkeypatch.setattr(application, "LABELS_OF_LOOK_ALIKES", 1)
    summary = solve_instances(SolveParams(instances=mine[0], pyvrp=False, **QUICK), tmp_path / "out.csv", KeptLog())
    assert summary["solved"] > 0


def test_look_alikes_are_like_the_given_ones():
    given = [random_tsptw(1, 9, "hard", seeded(s)) for s in range(4)]
    made = look_alikes(given, 50, seeded(0))
    assert made.nodes == 9
    assert ((made.locs >= 0) & (made.locs <= 1)).all()
    horizon = torch.stack([one.scale[0] for one in given]).median()
    assert (made.late[:, 1:] < 1.6 * horizon).all()
    width = (made.late - made.early)[:, 1:].mean()
    assert 0.2 < width < 1.5


def test_an_empty_folder_and_draft_limits_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no files"):
        solve_instances(SolveParams(instances=tmp_path / "empty"), tmp_path / "o.csv", KeptLog())
    np.savez(tmp_path / "ports.npz", locs=np.random.default_rng(0).random((1, 4, 2)), draft_limit=np.full((1, 4), 3.0))
    with pytest.raises(ValueError, match="time windows, got tspdl"):
        solve_instances(SolveParams(instances=tmp_path / "ports.npz"), tmp_path / "o.csv", KeptLog())
