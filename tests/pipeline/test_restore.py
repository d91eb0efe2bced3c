"""Bytes move through a remote; what was computed once is not computed again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import factory
import pytest


@pytest.fixture
def pushed(toy: Path, tmp_path: Path) -> Path:
    """The finished toy checkout with a local-directory remote that holds everything, committed."""
    factory.dvc(toy, "remote", "add", "-d", "store", str(tmp_path / "store"))
    factory.run(toy, "git", "add", "-A")
    factory.run(toy, "git", "commit", "-q", "-m", "remote")
    factory.dvc(toy, "push", "--run-cache")
    return toy


def clone(source: Path, target: Path) -> Path:
    factory.run(source, "git", "clone", "-q", str(source), str(target))
    return target


def executed(output: str) -> list[str]:
    """Stages whose command DVC ran."""
    return [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage")]


def test_a_clone_with_the_lock_pulls_and_executes_no_node(pushed, tmp_path):
    other = clone(pushed, tmp_path / "other")
    count = tmp_path / "count"
    factory.dvc(other, "pull")
    done = factory.dvc(other, "repro", TOY_COUNT=str(count))
    assert set(executed(done.stdout)) <= {"scorecard", "track"}
    assert not count.exists()
    assert (other / "data/alpha/evaluate/metrics.json").is_file()
    assert (other / "report/index.html").is_file()
    assert (other / "tracking/mirror.json").is_file()


def test_a_clone_without_the_lock_restores_every_node_from_the_run_cache(pushed, tmp_path):
    other = clone(pushed, tmp_path / "other")
    (other / "dvc.lock").unlink()
    count = tmp_path / "count"
    done = factory.dvc(other, "repro", "--pull", TOY_COUNT=str(count))
    nodes = {n for n in executed(done.stdout) if n.split("-")[-1] in ("base", "prepare", "train", "evaluate")}
    assert nodes == set()
    assert not count.exists()
    assert (other / "data/beta/train/metrics.json").read_bytes() == (pushed / "data/beta/train/metrics.json").read_bytes()


def test_a_claim_is_judged_in_a_clone_without_data_or_remote(toy, tmp_path):
    other = clone(toy, tmp_path / "other")
    factory.edit(other / "flows/alpha.py", 'at_least("ours.score", 1.0)', 'at_least("ours.score", 1000.0)')
    factory.dvc(other, "repro", "-s", "scorecard")
    card = json.loads((other / "report/scorecard.json").read_text())
    assert next(c for c in card["papers"][0]["claims"] if c["id"] == "grows")["verdict"] == "not reproduced"
    assert not (other / "data").exists()


def test_one_paper_is_re_run_in_a_clone_without_the_other(toy, tmp_path):
    other = clone(toy, tmp_path / "other")
    shutil.rmtree(other / ".dvc/cache", ignore_errors=True)
    factory.dvc(other, "repro", "alpha-results")
    factory.dvc(other, "repro", "-s", "scorecard")
    assert not (other / "data/beta").exists()
    assert len(json.loads((other / "report/scorecard.json").read_text())["papers"]) == 2


def test_trap_22_the_committed_lock_is_confirmed_in_a_clean_clone_without_data(toy, tmp_path):
    other = clone(toy, tmp_path / "other")
    done = factory.dvc(other, "repro", "--dry", "--allow-missing")
    assert set(executed(done.stdout)) <= {"scorecard", "track"}


def test_a_reverted_edit_is_restored_not_executed(toy, tmp_path):
    text = (toy / "tasks/toy/arithmetic.py").read_text()
    factory.edit(toy / "tasks/toy/arithmetic.py", "return 2 * x", "return 3 * x")
    factory.dvc(toy, "repro", "alpha-results")
    (toy / "tasks/toy/arithmetic.py").write_text(text)
    count = tmp_path / "count"
    done = factory.dvc(toy, "repro", "alpha-results", TOY_COUNT=str(count))
    assert not count.exists()
    assert executed(done.stdout) == ["alpha-results"]  # what git keeps is written anew, never restored behind the docs' back
    assert json.loads((toy / "report/results/alpha.json").read_text())["stages"]["alpha-train"] == {"trained.value": 16.5}


def test_a_failure_shows_the_paper_as_stale_and_judges_the_others(toy):
    factory.edit(toy / "params.yaml", "alpha: {cpu: {prepare: {value: 1.0}", "alpha: {cpu: {prepare: {value: 2.0, fail: true}")
    factory.edit(toy / "params.yaml", "beta: {cpu: {prepare: {value: 2.0}", "beta: {cpu: {prepare: {value: 4.0}")
    assert factory.dvc(toy, "repro", "--keep-going", check=False).returncode != 0
    factory.dvc(toy, "repro", "-s", "scorecard")
    alpha, beta = json.loads((toy / "report/scorecard.json").read_text())["papers"]
    assert [c["verdict"] for c in alpha["claims"]] == ["verified", "verified"]
    assert beta["claims"][0]["ours"] == pytest.approx(20.6 + 2)


def test_trap_20_everything_runs_without_network_server_or_tracker(fresh):
    """In a network namespace of its own, where there is no network at all."""
    done = factory.run(fresh, "unshare", "--net", "--map-root-user", "python", "-m", "dvc", "repro", "alpha-results")
    assert done.returncode == 0


RECORDER = """
import socket

_connect = socket.socket.connect


def connect(self, address):
    if self.family != socket.AF_UNIX:
        with open({log!r}, "a") as file:
            print(address, file=file)
    return _connect(self, address)


socket.socket.connect = connect
"""


def test_trap_21_nothing_calls_home(fresh, tmp_path):
    log = tmp_path / "connections"
    (fresh / "sitecustomize.py").write_text(RECORDER.format(log=str(log)))
    factory.dvc(fresh, "repro", "alpha-results")
    factory.dvc(fresh, "repro", "-s", "scorecard")
    factory.papers_command(fresh, "status")
    assert not log.exists(), log.read_text()
    factory.run(
        fresh, "python", "-c", "import socket, contextlib\nwith contextlib.suppress(OSError): socket.socket().connect(('127.0.0.1', 9))"
    )
    assert "127.0.0.1" in log.read_text()  # the recorder works
