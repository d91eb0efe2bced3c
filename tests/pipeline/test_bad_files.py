"""Files that a merge, an editor or a full disk left broken: one line that says which, never a traceback; what can be made anew is."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import factory
import pytest

from flows.engine import dvc, judge, plan, registry, staleness
from flows.engine.declare import DeclarationError, Stage, validate_shared
from flows.engine.project import Project, section
from flows.engine.record import RunRecord, StageLog, write_metrics

BROKEN = [
    "",
    "[]",
    "3",
    '"x"',
    "{",
    '{"papers": null, "stages": [1]}',
    '{"papers": [3], "stages": {"a": 5}}',
    "<<<<<<< HEAD\n{}\n=======\n",
]
NODE = "tasks.tabular.rdatasets:load_table"


@pytest.fixture
def bare(tmp_path: Path) -> Project:
    (tmp_path / "flows").mkdir()
    (tmp_path / "params.yaml").write_text("")
    (tmp_path / "report/results").mkdir(parents=True)
    return Project(tmp_path)


@pytest.mark.parametrize("text", BROKEN)
def test_results_scorecard_and_records_that_cannot_be_read_count_as_missing(bare, text):
    for name in ("report/results/alpha.json", "report/scorecard.json", "train.run.json"):
        (bare.root / name).write_bytes(text.encode() + b"\xff" if text == "3" else text.encode())
    assert judge.read_metrics(bare, "alpha") == {}
    assert staleness.expected_minutes(bare) == {}
    assert RunRecord.read(bare.root / "train") is None


def test_what_is_no_number_or_reported_twice_is_missing_for_a_claim(bare):
    stages = {"a-train": {"x": "1", "y": True, "z": 2}, "a-train-other": {"z": 3, "w": 4}}
    (bare.root / "report/results/a.json").write_text(json.dumps({"stages": stages}))
    assert judge.read_metrics(bare, "a") == {"x": None, "y": None, "z": None, "w": 4.0}


@pytest.mark.parametrize(
    "text", ["- 1", "stages: [1]", "stages:\n  a:\n", "stages: {a: {deps: [{md5: 3}]}}", "a: 1\n<<<<<<< HEAD\n", "\xff"]
)
def test_a_broken_lock_file_says_so(bare, text):
    (bare.root / "dvc.lock").write_text(text, encoding="latin-1")
    with pytest.raises(DeclarationError, match=r"dvc\.lock"):
        dvc.lock(bare)
    (bare.root / "dvc.lock").write_text("schema: '2.0'\nstages:\n")
    assert dvc.lock(bare) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "must be a mapping, got a list"),
        ("a: 3", r"section a must be a mapping, got 3"),
        ("a: {cpu: [train]}", r"section a\.cpu must be a mapping"),
        ("a: {cpu: {train: {1: 2}}}", "must hold names of parameters, got 1"),
        ("a: \xff", "not YAML"),
    ],
)
def test_a_broken_section_of_the_parameters_says_so(bare, text, message):
    (bare.root / "params.yaml").write_text(text, encoding="latin-1")
    with pytest.raises(DeclarationError, match=message):
        section(bare.root, ("a", "cpu", "train"))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("flows/alpha.py", "\ndef x(:\n", "flows/alpha.py, line"),
        ("flows/alpha.py", "\nfoo\n", "NameError: name 'foo' is not defined"),
        ("flows/shared.py", "\nimport nope\n", "flows/shared.py, line"),
        ("tasks/toy/alpha.py", "\ndef x(:\n", "tasks/toy/alpha.py, line"),
        ("tasks/toy/unused.py", "\ndef x(:\n", "unused.py"),
    ],
)
def test_a_module_that_is_not_python_is_named_in_one_line(finished, tmp_path, file, text, message):
    here = tmp_path / "toy"
    shutil.copytree(finished, here, ignore=shutil.ignore_patterns("data", ".dvc", ".git"))
    with (here / file).open("a") as module:
        module.write(text)
    done = factory.papers_command(here, "sync", "--check", check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([Stage("base", NODE), Stage("base", NODE)], "two stages are called 'base'"),
        ([Stage("a", NODE, needs=["b"]), Stage("b", NODE, needs=["a"])], "stages need each other"),
        ([Stage("Base", NODE)], "bad name 'Base'"),
        ([Stage("base")], "needs either a node or shared="),
        ([Stage("base", NODE, over={"seed": (0, 1)})], "over 'seed' must list texts"),  # type: ignore[dict-item]
        ([Stage("base", NODE, over={"seed": "abc"})], "over 'seed' must list texts"),
        ([Stage("base", NODE, over={"seed": ("a b",)})], "bad name 'base-a b'"),
    ],
)
def test_shared_stages_are_checked_like_those_of_papers(stages, message):
    with pytest.raises(DeclarationError, match=message):
        validate_shared(stages)


def test_a_stage_and_its_variants_have_sections_of_their_own(monkeypatch):
    names = {"evaluate", "evaluate-speed", "train-one"}
    monkeypatch.setattr(registry, "load", lambda slug: type("Declared", (), {"stages": [Stage(name, NODE) for name in names]}))
    paths = {name: plan.params_path("a", "cpu", name)[2:] for name in names}
    assert paths == {"evaluate": ("evaluate",), "evaluate-speed": ("evaluate-speed",), "train-one": ("train", "one")}


@pytest.mark.parametrize(
    ("metrics", "message"),
    [(None, "must return a dict of metrics, got None"), ({1: 1.0}, "must be text, got 1"), ({"a": 10**400}, "larger than any number")],
)
def test_a_node_that_returns_something_else_is_told_what(tmp_path, metrics, message):
    with pytest.raises(TypeError, match=message):
        write_metrics(tmp_path / "metrics.json", metrics, "node")


def test_figures_keep_to_their_folder(tmp_path):
    with pytest.raises(ValueError, match="plain file name"), StageLog(tmp_path / "out", tmp_path / "live") as log:
        log.figure("../../x", None)


def test_a_node_that_ends_its_process_has_failed(fresh):
    factory.edit(
        fresh / "tasks/toy/nodes.py",
        "    if params.fail:\n        raise ValueError(f",
        "    os._exit(0)\n    if params.fail:\n        raise ValueError(f",
    )
    words = ("cpu/alpha/prepare", "tasks.toy.nodes:prepare")
    done = factory.run(fresh, sys.executable, "-m", "flows.engine.stage", *words, check=False)
    assert done.returncode == 1
    assert "alpha-prepare: the node ended its process before it returned" in done.stderr
    assert {p.name for p in (fresh / "data/alpha").iterdir()} == {"prepare.log"}


def test_a_failed_dvc_command_passes_on_why():
    ran = dvc.DvcError(["dvc", "repro"], 255, "Running stage 'track':\n> track\ntrack: no database\nERROR: failed: track, exited with 1\n")
    assert "track: no database ERROR: failed" in str(ran)
    parsed = dvc.DvcError(["dvc", "status"], 255, "'dvc.lock' is invalid.\n\n  662 a: 1\n")
    assert "'dvc.lock' is invalid. 662 a: 1" in str(parsed)
