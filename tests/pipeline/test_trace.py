"""`papers trace`: from a run to its stage and back."""

from __future__ import annotations

import pytest

from flows.engine import mirror, trace, tracking
from flows.engine.trace import RunTrace, StageTrace, TraceError
from tests.pipeline.workspace import Workspace, declare


@pytest.fixture
def work(tmp_path, migrated, monkeypatch) -> Workspace:
    made = Workspace(tmp_path / "work", database=migrated)
    made.put("alpha", "prepare")
    made.put("alpha", "train", metrics={"ours": 1.0}, needs=["alpha/prepare"])
    declare(monkeypatch, made)
    return made


def run_of(work: Workspace, what: str) -> RunTrace:
    found = trace.trace(work.project, what)
    assert isinstance(found, RunTrace)
    return found


def stage_of(work: Workspace, name: str) -> StageTrace:
    found = trace.trace(work.project, name)
    assert isinstance(found, StageTrace)
    return found


def test_a_run_leads_to_its_stage_and_lock_entry(work):
    run_id = mirror.mirror(work.project, flow_run_id="flow-1").logged["alpha-train"]
    found = run_of(work, run_id)
    assert (found.stage, found.profile, found.experiment, found.folder) == ("alpha-train", "cpu", "alpha", "data/alpha/train")
    assert (found.current, found.stale, found.folder_here) == (True, (), True)
    assert found.lock_entry == work.entries["alpha-train"]
    text = trace.render(found)
    for part in (
        run_id,
        "finished, executed",
        "cpu, scale toy",
        "flow-1",
        work.entries["alpha-train"]["outs"][0]["md5"],
        "current     yes",
    ):
        assert part in text
    assert run_of(work, run_id[:12]) == found


def test_a_stage_leads_to_its_runs_and_marks_the_current_one(work):
    old = mirror.mirror(work.project).logged["alpha-train"]
    work.put("alpha", "train", metrics={"ours": 2.0}, needs=["alpha/prepare"])
    new = mirror.mirror(work.project).logged["alpha-train"]
    found = stage_of(work, "alpha-train")
    assert {run.run_id: run.current for run in found.runs} == {new: True, old: False}
    lines = trace.render(found).splitlines()
    assert [line.split()[-1] for line in lines if new in line] == ["current"]
    assert [line.split()[-1] for line in lines if old in line] == ["past"]
    assert "dvc.lock records other outputs (" in trace.render(run_of(work, old))


def test_what_changed_since_is_said(work):
    run_id = mirror.mirror(work.project).logged["alpha-train"]
    text = (work.root / "params.yaml").read_text()
    (work.root / "params.yaml").write_text(text.replace("seed: 0", "seed: 5"))
    found = run_of(work, run_id)
    assert found.current
    assert "parameter alpha.cpu.train.seed: 0 -> 5" in trace.render(found)
    assert "parameter alpha.cpu.train.seed: 0 -> 5" in trace.render(stage_of(work, "alpha-train"))


def test_a_missing_folder_is_said_with_what_brings_it_back(work):
    run_id = mirror.mirror(work.project).logged["alpha-train"]
    (work.root / "data/alpha/train").rename(work.root / "away")
    assert "(not here; `dvc checkout`" in trace.render(run_of(work, run_id))
    assert "(not here; `dvc checkout`" in trace.render(stage_of(work, "alpha-train"))


def test_an_execution_lists_its_stages(work):
    logged = mirror.mirror(work.project).logged
    found = run_of(work, run_of(work, logged["alpha-train"]).parent)
    assert dict(found.children) == logged
    assert found.current is None
    assert logged["alpha-prepare"] in trace.render(found)


def test_a_run_of_another_profile_is_found(work, monkeypatch):
    smoke = Workspace(work.root, "smoke")
    smoke.values = work.values
    smoke.put("alpha", "train")
    declare(monkeypatch, work, smoke)
    run_id = mirror.mirror(smoke.project).logged["alpha-train"]
    found = run_of(work, run_id)
    assert (found.profile, found.folder, found.current) == ("smoke", "smoke/data/alpha/train", True)


def test_a_deleted_run_says_so(work):
    run_id = mirror.mirror(work.project).logged["alpha-train"]
    tracking.connect(work.project).delete_run(run_id)
    assert "(deleted)" in trace.render(run_of(work, run_id))


def test_pages_are_named_when_there_is_a_server(work, monkeypatch):
    run_id = mirror.mirror(work.project).logged["alpha-train"]
    assert run_of(work, run_id).url == ""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000/")
    found = run_of(work, run_id)
    assert found.url.startswith("http://127.0.0.1:5000/#/experiments/")
    assert found.url.endswith(f"/runs/{run_id}")
    assert stage_of(work, "alpha-train").experiment_url in found.url


@pytest.mark.parametrize("database", ["empty", "absent"])
def test_a_stage_without_runs_says_how_to_get_them(work, database):
    if database == "absent":
        work.project.database.unlink()
    found = stage_of(work, "alpha-train")
    assert found.runs == ()
    assert "none in MLflow; `dvc repro track`" in trace.render(found)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("alpha-trian", "cpu has no stage 'alpha-trian'; did you mean alpha-train"),
        ("train", "did you mean alpha-train"),
        ("zzz", "give a stage of `dvc stage list`"),
        ("f" * 31, "no run and no stage is called"),
    ],
)
def test_what_is_not_known_is_refused_with_the_nearest_names(work, what, message):
    mirror.mirror(work.project)
    with pytest.raises(TraceError) as error:
        trace.trace(work.project, what)
    assert message in str(error.value)


def test_a_mistyped_identifier_is_answered_with_the_right_one(work):
    run_id = mirror.mirror(work.project).logged["alpha-train"]
    wrong = run_id[:-1] + ("0" if run_id[-1] != "0" else "1")
    with pytest.raises(TraceError, match=f"did you mean .*{run_id}"):
        trace.trace(work.project, wrong)


def test_a_beginning_that_several_runs_share_is_refused(work, monkeypatch):
    mirror.mirror(work.project)
    monkeypatch.setattr(trace, "_SHORTEST_PREFIX", 0)
    with pytest.raises(TraceError, match=r"begins 3 runs: .*; give more of it"):
        trace.trace(work.project, "")


def test_an_identifier_without_a_database_is_refused_with_what_to_do(work):
    work.project.database.unlink()
    with pytest.raises(TraceError, match="there is no MLflow database yet; make it with `dvc repro track`"):
        trace.trace(work.project, "abcdef")


def test_a_run_that_someone_else_made_is_refused(work):
    mirror.mirror(work.project)
    client = tracking.connect(work.project)
    other = client.create_run(tracking.experiment(client, work.project, "mine"))
    with pytest.raises(TraceError, match="experiment 'mine' was not made by this collection"):
        trace.trace(work.project, other.info.run_id)
