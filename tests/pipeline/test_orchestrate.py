"""Whole runs of `papers run` through Prefect."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import factory
import pytest
import running
import yaml

FOUR = ("alpha", "beta", "gamma", "delta")

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("prefect")]


def papers_run(folder: Path, served: running.Served, *words: str, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
    done = factory.papers_command(folder, "run", *words, check=check, PREFECT_API_URL=served.api, **extra)
    assert "Traceback" not in done.stdout
    return done


def start_run(folder: Path, log: Path, *words: str, **extra: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "flows.engine.cli", "run", *words]
    with log.open("w") as out:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=factory.environment(folder, **extra),
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def lock(folder: Path) -> dict:
    return yaml.safe_load((folder / "dvc.lock").read_text())["stages"]


def verdicts(folder: Path) -> dict[str, set[str]]:
    card = json.loads((folder / "report/scorecard.json").read_text())
    return {paper["slug"]: {claim["verdict"] for claim in paper["claims"]} for paper in card["papers"]}


@pytest.fixture(scope="module")
def four(tmp_path_factory, served):
    """Four papers with a shared stage, run by two people at once, each with two workers; what was counted, and what they saw."""
    folder = factory.make_project(tmp_path_factory.mktemp("four"), FOUR, shared=True)
    factory.edit(folder / "tasks/toy/nodes.py", "prepare {params.value}\\n", "{params.value} {os.environ['OMP_NUM_THREADS']}\\n")
    factory.edit(folder / "params.yaml", "base: {value: 7.0}", "base: {value: 7.0, sleep_s: 3}")
    settings = {"PREFECT_API_URL": served.api, "TOY_COUNT": str(folder.parent / "count"), "OMP_NUM_THREADS": ""}
    logs = [folder.parent / "log1", folder.parent / "log2"]
    runs = [start_run(folder, log, *slugs, "--workers", "2", **settings) for log, slugs in zip(logs, (FOUR[:2], FOUR[2:]), strict=True)]
    statuses = [run.wait(240) for run in runs]
    seen = [log.read_text() for log in logs]
    assert statuses == [0, 0], "\n\n".join(seen)
    return folder, (folder.parent / "count").read_text().splitlines(), seen


def test_traps_1_and_27_stages_started_together_all_succeed_and_the_lock_holds_all(four):
    folder, _, seen = four
    stages = {f"{slug}-{stage}" for slug in FOUR for stage in ("prepare", "train", "evaluate", "results")}
    assert set(lock(folder)) >= stages | {"shared-base", "scorecard"}
    assert json.loads(factory.dvc(folder, "status", "--json").stdout or "{}").keys() <= {"scorecard", "track"}
    assert not any("Traceback" in text for text in seen)


def test_trap_2_a_shared_stage_runs_once_and_before_what_needs_it(four):
    _, counted, seen = four
    assert sorted(line.split()[0] for line in counted) == ["1.0", "2.0", "3.0", "4.0", "7.0"]
    (made,) = [text.splitlines() for text in seen if "| shared-base: done in" in text]
    done = next(place for place, line in enumerate(made) if "| shared-base: done in" in line)
    assert done < min(place for place, line in enumerate(made) if "-train | Running stage" in line)


def test_trap_17_stages_side_by_side_are_told_to_share_the_cores(four):
    _, counted, _ = four
    assert {line.split()[1] for line in counted} == {str(running.thread_share(2))}


def test_nothing_stale_starts_no_prefect(four, served):
    folder, _, _ = four
    papers_run(folder, served)
    assert verdicts(folder) == {slug: {"verified"} for slug in FOUR}
    before = served.ask("flow_runs/count")
    done = factory.papers_command(folder, "run", PREFECT_API_URL="http://127.0.0.1:9/api")
    assert done.stdout.startswith("cpu profile: 19 up-to-date in ")
    assert done.stderr == ""
    assert served.ask("flow_runs/count") == before


def test_traps_3_and_16_broken_papers_leave_the_others_verified_and_are_named(tmp_path, served):
    folder = factory.make_project(tmp_path / "toy", ("alpha", "beta", "gamma"))
    factory.edit(folder / "params.yaml", "prepare: {value: 1.0}", "prepare: {value: 1.0, sleep_s: 300}")
    factory.edit(folder / "flows/alpha.py", 'prepare", budget_min=1', 'prepare", budget_min=0.02')
    factory.edit(folder / "params.yaml", "value: 2.0}, train: {value: 0.5}", "value: 2.0}, train: {fail: true}")
    done = papers_run(folder, served, "--workers", "2", check=False)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "cpu profile: 2 of 3 papers failed (alpha, beta): alpha-prepare over-budget; beta-train failed"
    assert "  beta-train: ValueError: asked to fail; log: data/beta/train.log" in lines
    blocked = next(line for line in lines if line.startswith("  not run, since what they need failed: "))
    assert set(blocked.partition(": ")[2].split(", ")) == {
        "alpha-train",
        "alpha-evaluate",
        "alpha-results",
        "beta-evaluate",
        "beta-results",
    }
    assert verdicts(folder)["gamma"] == {"verified"}
    assert verdicts(folder)["alpha"] == {"inconclusive"}
    assert running.alive(folder) == []
    assert not (folder / "data/alpha/prepare").exists()

    run = served.flow_run("collection")
    assert run["state_type"] == "FAILED"
    assert run["state"]["message"] == "2 of 3 papers failed (alpha, beta): alpha-prepare over-budget; beta-train failed"
    states = {t["name"]: t["state_type"] for t in served.ask("task_runs/filter", flow_runs={"id": {"any_": [run["id"]]}})}
    assert {name for name, state in states.items() if state == "FAILED"} == {"alpha-prepare", "beta-train"}
    report = served.ask("artifacts/latest/filter", artifacts={"key": {"any_": ["report-collection"]}})[0]["data"]
    assert "| beta-train | failed |" in report


def test_a_terminated_run_leaves_nothing_running_and_the_next_one_recovers(tmp_path, served):
    folder = factory.make_project(tmp_path / "toy")
    factory.edit(folder / "params.yaml", "prepare: {value: 1.0}", "prepare: {value: 1.0, sleep_s: 300}")
    run = start_run(folder, tmp_path / "log", "alpha", PREFECT_API_URL=served.api)
    deadline = time.monotonic() + 60
    while not (folder / "data/alpha/prepare.log").exists():
        assert time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.1)
    run.send_signal(signal.SIGTERM)
    assert run.wait(60) == 130
    assert running.alive(folder) == []
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert served.flow_run("alpha")["state_type"] == "CRASHED"
    factory.edit(folder / "params.yaml", ", sleep_s: 300", "")
    assert running.outcomes(folder, "alpha-prepare") == {"alpha-prepare": ["executed", ""]}


def test_a_cosmetic_edit_costs_no_training_run(toy, served, tmp_path):
    with (toy / "tasks/toy/alpha.py").open("a") as file:
        file.write("# a comment\n")
    done = papers_run(toy, served, TOY_COUNT=str(tmp_path / "count"))
    assert done.stdout.startswith("cpu profile: 2 executed, 3 cosmetic, 6 up-to-date in ")  # train and what was stale because of it
    assert "scorecard | " in done.stderr  # the last two steps are always brought up to date
    assert not (tmp_path / "count").exists()
    assert json.loads(factory.dvc(toy, "status", "--json").stdout or "{}") == {}


def test_wrong_requests_are_refused_in_one_line(toy):
    unknown = factory.papers_command(toy, "run", "alhpa", check=False)
    assert unknown.returncode == 2
    assert unknown.stderr.strip() == "papers run: papers: unknown paper 'alhpa'; did you mean 'alpha'?"
    factory.edit(toy / "flows/alpha.py", 'needs=["train"]', 'needs=["train", "prepare"]')
    unsynced = factory.papers_command(toy, "run", check=False)
    assert unsynced.returncode == 2
    assert unsynced.stderr.strip() == "papers run: dvc.yaml: not what flows/ and params.yaml say; run `papers sync`"


def test_traps_12_and_13_a_first_run_without_a_server_succeeds_and_leaves_the_home_alone(fresh):
    """Only one of the papers runs: the scorecard and track make do with what is there."""
    done = factory.papers_command(fresh, "run", "alpha", PREFECT_HOME="", check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("cpu profile: 6 executed in ")
    assert done.stderr.splitlines()[0].startswith("starting Prefect for this run")
    assert verdicts(fresh) == {"alpha": {"verified"}, "beta": {"inconclusive"}}
    assert (fresh / ".prefect/prefect.db").is_file()
    assert not (fresh / ".home/.prefect").exists()
    assert running.alive(fresh) == []
    assert {path.name for path in (fresh / ".prefect").glob("*.log")} == set()
    assert "track" not in lock(fresh)
