"""A long stage's curves are in MLflow while it runs; afterwards its run is the stage's one run, or it has failed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import factory
import psutil
import pytest

from flows.engine import mirror, stream, tracking
from flows.engine.project import Project
from flows.engine.stream import Follower, Stream
from flows.engine.tracking import PARENT
from tests.pipeline.workspace import Workspace, declare, runs

LOSSES = [(0, 1.0), (1, 0.5), (2, 0.25)]


@pytest.fixture
def work(tmp_path, migrated, monkeypatch) -> Workspace:
    made = Workspace(tmp_path / "work", database=migrated)
    declare(monkeypatch, made)
    return made


def row(step: int, loss: float) -> str:
    return json.dumps({"step": step, "at": 1_700_000_000.0 + step, "loss": loss}) + "\n"


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def curve(project: Project, run_id: str, name: str = "loss") -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in tracking.connect(project).get_metric_history(run_id, name)]


class Scripted(Stream):
    """A stream whose waits do what the test says, and whose stage ends with the last of them."""

    def __init__(self, project: Project, live: Path, *acts, ending: str = "done") -> None:
        super().__init__(project, "alpha", "train", live)
        self._acts, self._ending = list(acts), ending

    def _wait(self, seconds: float) -> None:
        if self._acts:
            self._acts.pop(0)()
        else:
            self._ended = self._ending


def streamed(work: Workspace, live: Path, rows=LOSSES, ending: str = "done") -> str:
    return Scripted(work.project, live, lambda: append(live, "".join(row(*r) for r in rows)), ending=ending).follow()


def test_rows_are_read_once_and_only_when_they_are_whole(tmp_path):
    live = tmp_path / "live.jsonl"
    follower = Follower(live)
    assert follower.points() == []
    append(live, row(0, 1.0) + row(1, 0.5)[:10])
    assert [(p.name, p.step, p.value, p.at) for p in follower.points()] == [("loss", 0, 1.0, 1_700_000_000_000)]
    assert follower.points() == []
    append(live, row(1, 0.5)[10:] + "not json\n[1]\n" + '{"at": 1}\n' + row(2, 0.25))
    assert [(p.step, p.value) for p in follower.points()] == [(1, 0.5), (2, 0.25)]


def test_the_run_shows_its_points_while_the_stage_runs(work, tmp_path):
    live = tmp_path / "live.jsonl"
    seen = []

    def look() -> None:
        (run,) = runs(work.project)
        seen.append((run.info.status, run.data.tags["dvc.stage"], run.data.metrics.get("loss")))

    Scripted(work.project, live, look, lambda: append(live, row(0, 1.0)), look).follow()
    assert seen == [("RUNNING", "alpha-train", None), ("RUNNING", "alpha-train", 1.0)]


def test_the_mirror_adopts_the_run_and_adds_what_is_missing(work, tmp_path):
    run_id = streamed(work, tmp_path / "live.jsonl")
    history = [(s, "loss", v) for s, v in LOSSES] + [(3, "loss", 0.125), (3, "late", 9.0)]
    work.put("alpha", "train", metrics={"ours": 2.0}, history=history, streamed=run_id)
    done = mirror.mirror(work.project)
    assert (done.adopted, done.logged) == ((run_id,), {"alpha-train": run_id})
    (run,) = runs(work.project)
    assert (run.info.run_id, run.info.status, run.data.tags["outcome"]) == (run_id, "FINISHED", "executed")
    assert run.data.tags[PARENT]
    assert curve(work.project, run_id) == [*LOSSES, (3, 0.125)]
    assert (run.data.metrics["late"], run.data.metrics["ours"]) == (9.0, 2.0)
    assert mirror.mirror(work.project).logged == {}


def test_an_adoption_that_is_killed_is_taken_up_again(work, tmp_path, monkeypatch):
    from mlflow import MlflowClient

    run_id = streamed(work, tmp_path / "live.jsonl")
    work.put("alpha", "train", history=[(s, "loss", v) for s, v in LOSSES], streamed=run_id)

    def killed(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_terminated", killed)
        with pytest.raises(KeyboardInterrupt):
            mirror.mirror(work.project)
    assert mirror.mirror(work.project).adopted == (run_id,)
    (run,) = runs(work.project)
    assert run.info.status == "FINISHED"
    assert curve(work.project, run_id) == LOSSES


def test_the_run_of_a_failed_stage_ends_as_failed_and_is_not_offered(work, tmp_path):
    assert streamed(work, tmp_path / "live.jsonl", ending="failed") == ""
    (run,) = runs(work.project)
    assert run.info.status == "FAILED"
    assert curve(work.project, run.info.run_id) == LOSSES
    work.put("alpha", "train")
    assert len(mirror.mirror(work.project).logged) == 1
    assert sorted(r.info.status for r in runs(work.project)) == ["FAILED", "FINISHED"]


def test_a_supervisor_that_is_gone_means_that_the_stage_failed(work, tmp_path, monkeypatch):
    following = Stream(work.project, "alpha", "train", tmp_path / "live.jsonl")
    monkeypatch.setattr(stream.os, "getppid", lambda: -1)
    assert following.follow() == ""
    assert [r.info.status for r in runs(work.project)] == ["FAILED"]


def test_runs_whose_follower_was_killed_are_closed_by_the_next_pass_and_living_ones_left_alone(work, tmp_path):
    run_id = streamed(work, tmp_path / "live.jsonl")
    mirror.mirror(work.project)  # the follower, this process, lives
    assert [r.info.status for r in runs(work.project)] == ["RUNNING"]
    client = tracking.connect(work.project)
    client.set_tag(run_id, "stream.started", "1.0")  # as if another process had got its number since
    mirror.mirror(work.project)
    (run,) = runs(work.project)
    assert (run.info.status, run.data.tags["outcome"]) == ("KILLED", "abandoned")
    work.put("alpha", "train", streamed=run_id)  # the pass came between the stage's end and DVC's record of it
    assert mirror.mirror(work.project).adopted == (run_id,)
    assert [r.info.status for r in runs(work.project)] == ["FINISHED"]


def test_a_stage_that_made_the_same_again_keeps_its_one_run(work, tmp_path):
    work.put("alpha", "train", history=[(s, "loss", v) for s, v in LOSSES])
    first = mirror.mirror(work.project).logged["alpha-train"]
    run_id = streamed(work, tmp_path / "live.jsonl")
    work.put("alpha", "train", history=[(s, "loss", v) for s, v in LOSSES], streamed=run_id)
    assert mirror.mirror(work.project).logged == {}
    assert [r.info.run_id for r in runs(work.project)] == [first]


def test_a_batch_that_cannot_be_written_is_left_to_the_mirror(work, tmp_path, monkeypatch):
    from mlflow import MlflowClient

    def broken(*args, **options):
        raise OSError("database is locked")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", broken)
        run_id = streamed(work, tmp_path / "live.jsonl")
    work.put("alpha", "train", history=[(s, "loss", v) for s, v in LOSSES], streamed=run_id)
    assert mirror.mirror(work.project).adopted == (run_id,)
    assert curve(work.project, run_id) == LOSSES


def test_a_stage_that_ends_before_the_run_is_open_does_not_wait_for_it(work, tmp_path, monkeypatch):
    ended = []
    monkeypatch.setattr(stream.os, "_exit", ended.append)
    Stream(work.project, "alpha", "train", tmp_path / "live.jsonl")._on_signal(signal.SIGTERM, None)
    assert ended == [0]


def test_no_failure_of_the_tracker_reaches_the_stage(work, tmp_path):
    work.project.database.write_bytes(b"this is no database" * 100)
    for where in ("cpu/alpha/train", "nonsense"):
        command = [sys.executable, "-m", "flows.engine.stream", where, str(tmp_path / "live.jsonl")]
        environment = factory.environment(factory.ROOT)
        done = subprocess.run(command, cwd=work.root, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "")


def test_a_run_names_the_process_that_streams_it(work, tmp_path):
    streamed(work, tmp_path / "live.jsonl")
    (run,) = runs(work.project)
    assert (run.data.tags["stream.pid"], run.data.tags["stream.host"]) == (str(os.getpid()), socket.gethostname())


@pytest.mark.e2e
def test_a_long_stage_is_streamed_adopted_and_a_failing_one_ends_as_failed(fresh):
    """The stage logs its history, then waits until the test lets it go on."""
    go = fresh / "go"
    factory.edit(fresh / "flows/engine/supervise.py", "STREAM_AFTER_S = 30.0", "STREAM_AFTER_S = 0.2")
    factory.edit(fresh / "flows/alpha.py", '"tasks.toy.nodes:prepare", budget_min=1', '"tasks.toy.nodes:prepare", budget_min=10')
    waiting = f"    while not os.path.exists({str(go)!r}):\n        time.sleep(0.05)\n"
    failing = '    if params.fail:\n        raise ValueError(f"asked to fail, value'
    factory.edit(fresh / "tasks/toy/nodes.py", failing, waiting + failing)
    project = Project(fresh)
    tracking.initialise(project)

    running = start(fresh)
    wait_for(lambda: any("loss" in run.data.metrics for run in runs(project)))
    (live,) = runs(project)
    assert live.info.status == "RUNNING"
    go.touch()
    assert running.wait() == 0
    factory.run(fresh, sys.executable, "-m", "flows.engine.track", "cpu")
    (run,) = runs(project)
    assert (run.info.run_id, run.info.status) == (live.info.run_id, "FINISHED")
    assert curve(project, run.info.run_id) == [(step, 1.0 / (step + 1)) for step in range(3)]

    go.unlink()
    factory.edit(fresh / "params.yaml", "alpha: {cpu: {prepare: {value: 1.0}", "alpha: {cpu: {prepare: {value: 1.0, fail: true}")
    running = start(fresh)
    wait_for(lambda: len(runs(project)) == 2)
    go.touch()
    assert running.wait() != 0
    assert sorted(r.info.status for r in runs(project)) == ["FAILED", "FINISHED"]
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(fresh / "data") in " ".join(p.info["cmdline"] or [])]


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dvc", "repro", "alpha-prepare"]
    return subprocess.Popen(command, cwd=folder, env=factory.environment(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(condition, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.2)
