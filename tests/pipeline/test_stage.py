from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import factory
import psutil
import pytest


def stage(folder: Path, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return factory.run(folder, sys.executable, "-m", "flows.engine.stage", *words, check=False, **extra)


PREPARE = ("cpu/alpha/prepare", "tasks.toy.nodes:prepare")


def test_a_stage_leaves_a_whole_folder_and_its_record_beside_it(fresh):
    done = stage(fresh, *PREPARE)
    assert done.returncode == 0, done.stderr
    out = fresh / "data/alpha/prepare"
    assert sorted(p.name for p in out.iterdir()) == ["curves.json", "history.parquet", "metrics.json", "value.json"]
    assert json.loads((out / "metrics.json").read_text()) == {"prepared.value": 1.0}
    assert json.loads((out / "curves.json").read_text())[1] == {"loss": 0.5, "step": 1}
    record = json.loads((out.parent / "prepare.run.json").read_text())
    assert record["versions"]["numpy"]
    assert record["code"]["tasks/toy/nodes.py"]
    assert record["params"] == {"alpha.cpu.prepare": {"value": 1.0}}
    timings = json.loads((out.parent / "prepare.timings.json").read_text())
    assert timings["seconds"] > 0
    assert timings["peak_memory_gib"] > 0
    left = {p.name for p in out.parent.iterdir()}
    assert left == {"prepare", "prepare.log", "prepare.run.json", "prepare.timings.json"}


def test_the_node_called_directly_writes_the_same_metrics(fresh):
    stage(fresh, *PREPARE)
    code = (
        "from pathlib import Path; from tasks.common.node import Inputs, NullLog; from tasks.toy.nodes import prepare, ToyParams\n"
        "out = Path('direct'); out.mkdir()\n"
        "metrics = prepare(ToyParams(value=1.0), Inputs(), out, NullLog())\n"
        "from tasks.common.formats import write_json; write_json(out / 'metrics.json', metrics)"
    )
    factory.run(fresh, sys.executable, "-c", code)
    assert (fresh / "direct/metrics.json").read_bytes() == (fresh / "data/alpha/prepare/metrics.json").read_bytes()


def test_a_failing_stage_says_what_and_where_in_one_line_and_leaves_no_output(fresh):
    factory.edit(fresh / "params.yaml", "prepare: {value: 1.0}", "prepare: {value: 1.0, fail: true}")
    done = stage(fresh, *PREPARE)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == "alpha-prepare: ValueError: asked to fail, value 1.0; log: data/alpha/prepare.log"
    assert {p.name for p in (fresh / "data/alpha").iterdir()} == {"prepare.log"}
    assert "Traceback" in (fresh / "data/alpha/prepare.log").read_text()


def test_an_older_folder_survives_a_failure_when_run_by_hand(toy):
    before = (toy / "data/alpha/prepare/metrics.json").read_bytes()
    factory.edit(toy / "params.yaml", "prepare: {value: 1.0}", "prepare: {value: 3.0, fail: true}")
    assert stage(toy, *PREPARE).returncode == 1
    assert (toy / "data/alpha/prepare/metrics.json").read_bytes() == before


def test_a_nan_metric_is_null_in_valid_json_and_its_claim_inconclusive(toy):
    factory.edit(toy / "params.yaml", "evaluate: {seed: 0}", "evaluate: {seed: 0, nan: true}")
    factory.dvc(toy, "repro")
    text = (toy / "data/alpha/evaluate/metrics.json").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))["extra.score"] is None
    card = json.loads((toy / "report/scorecard.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    claim = next(c for c in card["papers"][0]["claims"] if c["id"] == "extra")
    assert claim["verdict"] == "inconclusive"
    assert "extra.score" in claim["text"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cpu/alpha"], "expected <profile>/<slug>/<stage> <module:node>"),
        (["cup/alpha/prepare", PREPARE[1]], "unknown profile 'cup'; did you mean 'cpu'?"),
        (["cpu/alpha/prepare", "tasks.toy.nodes:prepar"], "has no function 'prepar'"),
        (["cpu/alpha/prepair", PREPARE[1]], "has no stage 'alpha-prepair'"),
        (["cpu/alpha/train", "tasks.toy.alpha:train", "prepare=data/alpha/prepare"], "data/alpha/prepare, is missing"),
        ([*PREPARE, "prepare="], "expected need=folder or --set=key=value, got 'prepare='"),
        ([*PREPARE, "--set=value=much"], "value: Input should be a valid number"),
    ],
)
def test_a_wrong_command_says_what_to_do(fresh, words, message):
    done = stage(fresh, *words)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (fresh / "data/alpha/prepare").exists()


def test_other_versions_than_the_locked_ones_are_refused(fresh):
    text = (fresh / "environment.yaml").read_text()
    version = next(line for line in text.splitlines() if line.startswith("numpy:"))
    (fresh / "environment.yaml").write_text(text.replace(version, "numpy: '1.0.0'"))
    done = stage(fresh, *PREPARE)
    assert done.returncode == 1
    assert "(the lock says 1.0.0); run `make setup`" in done.stderr


def test_another_checkouts_code_is_refused(fresh):
    done = stage(fresh, *PREPARE, PYTHONPATH="")
    assert done.returncode == 0, done.stderr  # the current folder comes first
    factory.dvc(fresh, "--cd", "gpu", "repro", "alpha-prepare")
    refused = factory.dvc(fresh, "--cd", "gpu", "repro", "-f", "alpha-prepare", check=False, PYTHONPATH=str(factory.ROOT))
    assert "but the code comes from" in refused.stderr


def test_trap_3_a_stage_over_its_budget_is_stopped_and_never_writes(fresh):
    factory.edit(fresh / "flows/alpha.py", '"tasks.toy.nodes:prepare", budget_min=1', '"tasks.toy.nodes:prepare", budget_min=0.02')
    factory.edit(fresh / "params.yaml", "prepare: {value: 1.0}", "prepare: {value: 1.0, sleep_s: 4.0}")
    done = stage(fresh, *PREPARE)
    assert done.returncode == 124
    assert "over its budget of 0.02 min" in done.stderr
    time.sleep(4.0)
    assert {p.name for p in (fresh / "data/alpha").iterdir()} == {"prepare.log"}
    assert not processes(fresh)


@pytest.mark.e2e
@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_trap_4_a_killed_dvc_leaves_no_orphan_and_the_next_run_recovers(fresh, shell):
    """With a shell that stays between dvc and the stage, and with one that the stage replaces."""
    factory.edit(fresh / "params.yaml", "prepare: {value: 1.0}", "prepare: {value: 1.0, sleep_s: 6.0}")
    command = [sys.executable, "-m", "dvc", "repro", "alpha-prepare"]
    dvc = subprocess.Popen(
        command, cwd=fresh, env=factory.environment(fresh, SHELL=shell), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: (fresh / "data/alpha/.prepare.partial").exists())
    wait_for(lambda: (fresh / "data/alpha/.prepare.history.jsonl").exists())
    dvc.send_signal(signal.SIGKILL)
    dvc.wait()
    wait_for(lambda: not processes(fresh))
    time.sleep(6.0)
    assert not (fresh / "data/alpha/prepare").exists()
    factory.edit(fresh / "params.yaml", "sleep_s: 6.0", "sleep_s: 0.0")
    factory.dvc(fresh, "repro", "alpha-results")
    assert json.loads((fresh / "data/alpha/prepare/metrics.json").read_text()) == {"prepared.value": 1.0}


def test_a_killed_supervisor_takes_its_child_along(fresh):
    factory.edit(fresh / "params.yaml", "prepare: {value: 1.0}", "prepare: {value: 1.0, sleep_s: 20.0}")
    command = [sys.executable, "-m", "flows.engine.stage", *PREPARE]
    supervisor = subprocess.Popen(command, cwd=fresh, env=factory.environment(fresh), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: (fresh / "data/alpha/.prepare.history.jsonl").exists())
    supervisor.send_signal(signal.SIGKILL)
    supervisor.wait()
    wait_for(lambda: not processes(fresh))


def test_a_terminated_stage_ends_its_group(fresh):
    factory.edit(fresh / "params.yaml", "prepare: {value: 1.0}", "prepare: {value: 1.0, sleep_s: 20.0}")
    command = [sys.executable, "-m", "flows.engine.stage", *PREPARE]
    supervisor = subprocess.Popen(command, cwd=fresh, env=factory.environment(fresh), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: (fresh / "data/alpha/.prepare.history.jsonl").exists())
    supervisor.terminate()
    assert supervisor.wait(timeout=20) == 1
    assert not processes(fresh)
    assert {p.name for p in (fresh / "data/alpha").iterdir()} == {"prepare.log"}


def processes(folder: Path) -> list[int]:
    """Processes whose working folder is the checkout."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == folder:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def wait_for(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
