"""The MLflow database: one, whole, where it belongs, rebuilt at any time, and served."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import factory
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.engine import mirror, snapshot, track, tracking
from flows.engine.project import Project
from flows.engine.supervise import end_group
from flows.engine.tracking import EXECUTION, PARENT, Point
from tests.pipeline.workspace import Workspace, alpha, declare, runs


@pytest.fixture
def work(tmp_path, migrated, monkeypatch) -> Workspace:
    """A workspace with one paper of two stages, and an empty database."""
    return alpha(tmp_path / "my work", migrated, monkeypatch)


def test_trap_10_four_processes_on_a_cold_database_all_succeed(tmp_path):
    (tmp_path / "flows").mkdir()
    code = (
        "import sys; from pathlib import Path; from flows.engine import tracking; from flows.engine.project import Project\n"
        "project = Project(Path(sys.argv[1])); client = tracking.connect(project)\n"
        "client.create_run(tracking.experiment(client, project, 'alpha'))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    started = [
        subprocess.Popen(command, cwd=factory.ROOT, env=factory.environment(factory.ROOT), stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    errors = [process.communicate(timeout=300)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0, 0], errors
    client = tracking.connect(Project(tmp_path))
    assert len(tracking.runs(client, [tracking.experiments(client)["alpha"].experiment_id])) == 4


def test_trap_11_nothing_is_made_where_the_caller_stands(work, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    work.project.database.unlink()
    monkeypatch.chdir(elsewhere)
    mirror.mirror(work.project)
    assert list(elsewhere.iterdir()) == []
    assert {p.name for p in work.root.iterdir()} == {"flows", "params.yaml", "environment.yaml", "dvc.lock", "data", "report", "tracking"}
    assert tracking.uri(work.project).startswith("sqlite:////")


def test_trap_24_a_moved_checkout_takes_its_artifacts_along(work, tmp_path, monkeypatch):
    mirror.mirror(work.project)
    work.root.rename(tmp_path / "moved")
    moved = Workspace(tmp_path / "moved")
    moved.steps, moved.values, moved.entries = work.steps, work.values, work.entries
    declare(monkeypatch, moved)
    assert mirror.mirror(moved.project).logged == {}
    moved.put("alpha", "prepare", metrics={"rows": 5}, figures=["new"])
    mirror.mirror(moved.project)
    (execution, _) = runs(moved.project, EXECUTION)
    assert Path(tracking.connect(moved.project).download_artifacts(execution.info.run_id, "claims.json")).is_file()
    assert not work.root.exists()


def test_trap_24_everything_is_rebuilt_from_dvcs_outputs_alone(work):
    track.track(work.project)
    shown = (work.root / "tracking/mirror.json").read_bytes()
    before = {r.data.tags["dvc.stage"]: (r.data.params, r.data.metrics, r.data.tags["dvc.outs_md5"]) for r in runs(work.project)}
    ids = {r.info.run_id for r in runs(work.project)}
    track.track(work.project, rebuild=True)
    assert {r.data.tags["dvc.stage"]: (r.data.params, r.data.metrics, r.data.tags["dvc.outs_md5"]) for r in runs(work.project)} == before
    assert not ids & {r.info.run_id for r in runs(work.project)}
    assert not [p for p in tracking.artifacts(work.project).rglob("*") if p.name in ids]
    assert (work.root / "tracking/mirror.json").read_bytes() == shown


def test_what_the_stage_writes_says_what_is_shown_and_nothing_else(work):
    track.track(work.project)
    _, deps, outs = snapshot.key_of("alpha-prepare", work.entries["alpha-prepare"])
    stored = json.loads((work.root / "tracking/mirror.json").read_text())
    assert stored["profile"] == "cpu"
    assert stored["stages"]["alpha-prepare"] == {"deps": deps, "outs": outs}
    assert set(stored["stages"]) == {"alpha-prepare", "alpha-train"}


def test_a_broken_database_fails_the_track_stage_with_what_to_do(work, monkeypatch, capsys):
    work.project.database.write_bytes(b"this is no database" * 100)
    monkeypatch.chdir(work.root)
    assert track.main(["cpu"]) == 1
    message = capsys.readouterr().err
    assert "mlflow.db cannot be used" in message
    assert "All results are unaffected" in message
    assert not (work.root / "tracking/mirror.json").exists()
    assert track.main(["cpu", "--rebuild"]) == 0
    assert len(runs(work.project)) == 2


@given(st.text(max_size=400))
def test_mlflow_takes_every_name_that_we_give_it(name):
    from mlflow.utils.validation import _validate_metric_name, _validate_param_name, _validate_tag_name

    for check in (_validate_metric_name, _validate_param_name, _validate_tag_name):
        check(tracking.key(name))


def test_plain_names_stay_as_they_are():
    assert tracking.key("ui.coverage-naive.coverage: 1/2 a_b") == "ui.coverage-naive.coverage: 1/2 a_b"


@given(st.lists(st.sampled_from("abc"), max_size=200), st.integers(1, 20))
def test_thinning_keeps_order_ends_and_every_name(names, most):
    points = [Point(name, float(i), i, i) for i, name in enumerate(names)]
    kept = tracking.thin(points, most)
    assert [p.step for p in kept] == sorted(p.step for p in kept)
    for name in set(names):
        own = [p for p in points if p.name == name]
        left = [p for p in kept if p.name == name]
        assert len(left) <= most + 1
        assert (left[0], left[-1]) == (own[0], own[-1])
        assert len(own) > most or left == own


@pytest.mark.e2e
def test_the_server_shows_the_runs_and_their_artifacts(work, tmp_path):
    mirror.mirror(work.project)
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracking.uri(work.project), "--workers", "1"]
    server = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)],
        cwd=tmp_path,
        env=factory.environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        while server.poll() is None and ask(f"{address}/health") != b"OK":
            time.sleep(0.5)
        places = [e["experiment_id"] for e in json.loads(ask(f"{address}/api/2.0/mlflow/experiments/search?max_results=50"))["experiments"]]
        body = json.dumps({"experiment_ids": places, "filter": "tags.`dvc.stage` = 'alpha-train'"}).encode()
        (run,) = json.loads(ask(f"{address}/api/2.0/mlflow/runs/search", body))["runs"]
        assert {m["key"]: m["value"] for m in run["data"]["metrics"]}["ours"] == 3.5
        execution = next(t["value"] for t in run["data"]["tags"] if t["key"] == PARENT)
        assert b"<td>verified</td>" in ask(f"{address}/get-artifact?path=claims.html&run_uuid={execution}")
    finally:
        end_group(server.pid)
        server.wait()


def ask(address: str, body: bytes | None = None) -> bytes:
    """The answer of a server, empty while there is none."""
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()
    except urllib.error.URLError:
        return b""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
