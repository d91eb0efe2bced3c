"""One step, one dvc command: outcomes, waiting for others, stopping."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import factory
import pytest
import running

from flows.engine import execute
from flows.engine.execute import THREADS, cores, thread_limits

SLOW = ("prepare: {value: 1.0}", "prepare: {value: 1.0, sleep_s: 6}")


def wait_for(path: Path, text: str) -> None:
    deadline = time.monotonic() + 60
    while not (path.is_file() and text in path.read_text()):
        assert time.monotonic() < deadline, f"{path} never held {text!r}"
        time.sleep(0.1)


def dvc_in_background(folder: Path, *words: str, **extra: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dvc", *words]
    environment = factory.environment(folder, PYTHONUNBUFFERED="1", **extra)
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=(folder / "background.log").open("w"), stderr=subprocess.STDOUT
    )


def test_outcomes_say_what_dvc_did(toy):
    factory.edit(toy / "params.yaml", "beta: {cpu: {prepare: {value: 2.0}", "beta: {cpu: {prepare: {value: 2.5}")
    factory.run(toy, "rm", "-r", "data/alpha/train")
    found = running.outcomes(toy, "alpha-prepare", "alpha-train", "beta-prepare", "beta-train")
    assert found == {
        "alpha-prepare": ["up-to-date", ""],
        "alpha-train": ["restored", ""],
        "beta-prepare": ["executed", ""],
        "beta-train": ["executed", ""],
    }
    factory.edit(toy / "params.yaml", "beta: {cpu: {prepare: {value: 2.5}", "beta: {cpu: {prepare: {value: 2.0}")
    assert running.outcomes(toy, "beta-prepare") == {"beta-prepare": ["restored", ""]}


def test_a_failure_is_the_stages_own_words(fresh):
    factory.edit(fresh / "params.yaml", "prepare: {value: 1.0}", "prepare: {value: 1.0, fail: true}")
    found = running.outcomes(fresh, "alpha-prepare")
    assert found == {"alpha-prepare": ["failed", "ValueError: asked to fail, value 1.0; log: data/alpha/prepare.log"]}


def test_trap_3_a_stage_over_its_budget_is_stopped_and_nothing_of_it_is_left(fresh):
    factory.edit(fresh / "params.yaml", "prepare: {value: 1.0}", "prepare: {value: 1.0, sleep_s: 300}")
    factory.edit(fresh / "flows/alpha.py", 'prepare", budget_min=1', 'prepare", budget_min=0.02')
    outcome, message = running.outcomes(fresh, "alpha-prepare")["alpha-prepare"]
    assert outcome == "over-budget"
    assert "budget of 0.02 min" in message
    assert running.alive(fresh) == []
    assert not (fresh / "data/alpha/prepare").exists()


def test_trap_27_a_stage_that_runs_elsewhere_is_waited_for(fresh, tmp_path):
    count = tmp_path / "count"
    factory.edit(fresh / "params.yaml", *SLOW)
    other = dvc_in_background(fresh, "repro", "alpha-prepare", TOY_COUNT=str(count))
    wait_for(fresh / "background.log", "Running stage 'alpha-prepare'")
    refused = running.outcomes(fresh, "alpha-prepare", call="runner.run(steps[name], print, patience_s=0)")["alpha-prepare"]
    assert refused[0] == "failed"
    assert refused[1].startswith(f"already running: process {other.pid}, ")
    assert running.outcomes(fresh, "alpha-prepare", TOY_COUNT=str(count)) == {"alpha-prepare": ["up-to-date", ""]}
    assert other.wait(60) == 0
    assert count.read_text() == "prepare 1.0\n"


def test_end_stops_the_process_group_and_the_next_run_recovers(fresh, tmp_path):
    factory.edit(fresh / "params.yaml", "prepare: {value: 1.0}", "prepare: {value: 1.0, sleep_s: 300}")
    setup = (
        "import threading, time\nfrom pathlib import Path\nfrom flows.engine.execute import StoppedError\n"
        "from flows.engine.outcome import Ended\n"
        "def end():\n"
        "    while not Path('data/alpha/prepare.log').exists(): time.sleep(0.1)\n"
        "    runner.end()\n"
        "threading.Thread(target=end).start()\n"
        "def stopped(name):\n"
        "    try: return runner.run(steps[name], print)\n"
        "    except StoppedError as error: return Ended(name, 'failed', message=f'StoppedError {error}')\n"
    )
    found = running.outcomes(fresh, "alpha-prepare", "beta-prepare", setup=setup, call="stopped(name)")
    assert found["alpha-prepare"] == ["failed", "StoppedError alpha-prepare: stopped, the run is ending"]
    assert found["beta-prepare"] == ["failed", "StoppedError beta-prepare: not started, the run is ending"]
    assert running.alive(fresh) == []
    factory.edit(fresh / "params.yaml", ", sleep_s: 300", "")
    assert running.outcomes(fresh, "alpha-prepare") == {"alpha-prepare": ["executed", ""]}


def test_a_remote_is_asked_before_anything_is_executed(toy, tmp_path):
    ask = "from flows.engine.agenda import has_remote\n"
    assert running.outcomes(toy, "beta-train", setup=f"{ask}assert not has_remote(project)")["beta-train"][0] == "up-to-date"
    factory.dvc(toy, "remote", "add", "-d", "store", str(tmp_path / "store"))
    factory.dvc(toy, "push", "--run-cache")
    factory.run(toy, "rm", "-r", ".dvc/cache", "data", "dvc.lock")
    setup = f"{ask}assert has_remote(project)\nrunner = Runner(project, pull=True)"
    found = running.outcomes(toy, "shared-base", "alpha-prepare", "alpha-train", setup=setup, TOY_COUNT=str(tmp_path / "count"))
    assert {outcome for outcome, _ in found.values()} == {"restored"}
    assert not (tmp_path / "count").exists()


@pytest.mark.parametrize("workers", [1, 2, 3, 1000])
def test_trap_17_threads_are_divided_among_workers(workers, monkeypatch):
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    limits = thread_limits(workers)
    assert set(limits) == set(THREADS) >= {"PAPERS_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"}
    (share,) = {int(value) for value in limits.values()}
    assert share == 1 or share * workers <= cores()
    assert (share + 1) * workers > cores()


def test_a_lower_limit_of_the_persons_own_is_kept(monkeypatch):
    monkeypatch.setattr(execute, "cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MKL_NUM_THREADS", "64")
    assert thread_limits(2)["OMP_NUM_THREADS"] == "1"
    assert thread_limits(2)["MKL_NUM_THREADS"] == "4"
