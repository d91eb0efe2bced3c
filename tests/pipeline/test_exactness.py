"""Editing something makes exactly the stages stale that it can influence, computed here by other means than the engine's."""

from __future__ import annotations

import json
from pathlib import Path

import factory
import independent
import pytest
import yaml

from flows.engine import plan
from flows.engine.project import Project


def stale_by_dvc(folder: Path, *, cd: str = "") -> set[str]:
    """What DVC says is changed, and everything downstream of it."""
    where = ["--cd", cd] if cd else []
    found = json.loads(factory.dvc(folder, *where, "status", "--json").stdout or "{}")
    return independent.with_downstream(pipeline(folder / cd)["stages"], set(found))


def stale_by_papers(folder: Path) -> set[str]:
    lines = factory.papers_command(folder, "status").stdout.splitlines()
    return {line.split()[1] for line in lines if line.startswith("stale ")}


def pipeline(folder: Path) -> dict:
    return yaml.safe_load((folder / "dvc.yaml").read_text())


@pytest.mark.parametrize("path", ["tasks/toy/alpha.py", "tasks/toy/arithmetic.py", "tasks/common/plotting.py", "tasks/common/__init__.py"])
def test_trap_6_a_module_edit_makes_exactly_its_importers_stale(toy, path):
    expected = independent.expected_stale(toy, pipeline(toy), path)
    with (toy / path).open("a") as file:
        file.write("\n\nADDED = 1\n")
    factory.papers_command(toy, "sync", "--check")
    assert stale_by_dvc(toy) == expected
    assert stale_by_papers(toy) == expected
    assert "alpha-train" in expected
    assert ("beta-train" in expected) == (path != "tasks/toy/alpha.py")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("flows/engine/stage.py", set()),
        ("flows/engine/supervise.py", set()),
        ("flows/engine/judge.py", {"scorecard"}),
        ("flows/alpha.py", {"scorecard"}),
    ],
)
def test_an_edit_of_the_engine_or_a_claim_never_makes_a_node_stale(toy, path, expected):
    with (toy / path).open("a") as file:
        file.write("\n\nADDED = 1\n")
    assert stale_by_dvc(toy) == expected
    assert stale_by_papers(toy) == expected


def test_a_parameter_of_evaluate_leaves_train_fresh(toy):
    factory.edit(
        toy / "params.yaml", "evaluate: {seed: 0}}, smoke: {prepare: {value: 1.5}}", "evaluate: {seed: 1}}, smoke: {prepare: {value: 1.5}}"
    )
    assert stale_by_dvc(toy) == {"alpha-evaluate", "alpha-results", "scorecard", "track"}
    assert stale_by_papers(toy) == stale_by_dvc(toy)
    assert "parameter alpha.cpu.evaluate.seed: 0 -> 1" in factory.papers_command(toy, "status", "alpha").stdout


def test_a_package_version_makes_exactly_the_importing_stages_stale(toy):
    text = (toy / "environment.yaml").read_text()
    old = yaml.safe_load(text)["matplotlib"]
    (toy / "environment.yaml").write_text(text.replace(f"matplotlib: '{old}'", "matplotlib: '99.0'"))
    users = {
        name
        for name, stage in pipeline(toy)["stages"].items()
        if any(isinstance(p, dict) and "matplotlib" in p.get("environment.yaml", []) for p in stage.get("params", []))
    }
    imports = {"tasks/common/plotting.py"}
    assert users == {n for n, s in pipeline(toy)["stages"].items() if imports & set(s.get("deps", [])) and "engine.stage" in s["cmd"]}
    assert stale_by_dvc(toy) == independent.with_downstream(pipeline(toy)["stages"], users)
    assert f"package matplotlib {old} -> 99.0" in factory.papers_command(toy, "status").stdout


def test_a_swapped_node_or_binding_makes_its_stage_stale(toy):
    factory.edit(toy / "flows/alpha.py", "tasks.toy.nodes:evaluate", "tasks.toy.nodes:train")
    factory.papers_command(toy, "sync")
    assert {"alpha-evaluate"} <= stale_by_dvc(toy)
    assert "alpha-train" not in stale_by_dvc(toy)
    assert "command" in factory.papers_command(toy, "status").stdout


def test_a_changed_budget_makes_nothing_but_the_scorecard_stale(toy):
    factory.edit(toy / "flows/alpha.py", "budget_min=1", "budget_min=2")
    factory.papers_command(toy, "sync")
    assert stale_by_dvc(toy) == {"scorecard"}


def test_trap_5_byte_code_makes_nothing_stale(toy):
    factory.run(toy, "python", "-c", "import tasks.toy.alpha, tasks.common.plotting", PYTHONDONTWRITEBYTECODE="")
    assert (toy / "tasks/toy/__pycache__").is_dir()
    assert stale_by_dvc(toy) == set()


def test_trap_25_a_frozen_stage_is_shown_as_stale(toy):
    factory.edit(toy / "params.yaml", "prepare: {value: 1.0}", "prepare: {value: 5.0}")
    factory.dvc(toy, "freeze", "alpha-train")
    assert {"alpha-prepare", "alpha-train"} <= stale_by_papers(toy)
    assert factory.papers_command(toy, "sync", "--check", check=False).returncode == 1


def test_trap_26_equal_output_cuts_off_what_comes_after(toy, tmp_path):
    factory.edit(toy / "params.yaml", "alpha: {cpu: {prepare: {value: 1.0}", "alpha: {cpu: {prepare: {value: 1.0, seed: 5}")
    done = factory.dvc(toy, "repro", "alpha-results", TOY_COUNT=str(tmp_path / "count"))
    assert (tmp_path / "count").read_text() == "prepare 1.0\n"
    assert [line.split("'")[1] for line in done.stdout.splitlines() if line.startswith("Running stage")] == ["alpha-prepare"]


def test_trap_15_other_profiles_leave_the_cpu_stages_fresh(toy):
    factory.papers_command(toy, "sync", "--profile", "smoke")
    factory.dvc(toy, "--cd", "smoke", "repro")
    factory.edit(toy / "params.yaml", "gpu: {prepare: {value: 1.25}}", "gpu: {prepare: {value: 9.0}}")
    factory.dvc(toy, "--cd", "gpu", "repro", "alpha-results")
    assert stale_by_dvc(toy) == set()
    assert stale_by_papers(toy) == set()
    assert json.loads((toy / "gpu/report/results/alpha.json").read_text())["stages"]["alpha-prepare"] == {"prepared.value": 9.0}
    assert json.loads((toy / "smoke/report/results/alpha.json").read_text())["stages"]["alpha-prepare"] == {"prepared.value": 1.5}
    assert json.loads((toy / "report/results/alpha.json").read_text())["stages"]["alpha-prepare"] == {"prepared.value": 1.0}
    assert factory.run(toy, "git", "status", "--porcelain", "--", "dvc.lock", "smoke", "report").stdout == ""


def test_trap_7_dependencies_of_the_real_pipeline_are_the_import_closures():
    for step in plan.build(Project(factory.ROOT)).values():
        if step.kind == "node" and step.declared:
            module = step.declared.node.partition(":")[0]
            assert set(step.code) == independent.closure(factory.ROOT, module), step.name


@pytest.mark.parametrize("stage", ["alpha-train", "shared-base"])
def test_trap_14_a_forced_run_without_the_cache_gives_equal_metrics(toy, stage):
    where = toy / "data" / stage.replace("-", "/", 1) / "metrics.json"
    before = where.read_bytes()
    factory.dvc(toy, "repro", "-f", "--no-run-cache", "-s", stage)
    assert where.read_bytes() == before
    assert stale_by_dvc(toy) <= {"track"}


def test_trap_23_dvc_lists_exactly_the_expected_stages(toy):
    listed = {line.split()[0] for line in factory.dvc(toy, "stage", "list").stdout.splitlines()}
    papers = {f"{slug}-{stage}" for slug in ("alpha", "beta") for stage in ("prepare", "train", "evaluate", "results")}
    assert listed == papers | {"shared-base", "scorecard", "track"}


def test_plots_show_curves_and_figures(toy):
    factory.dvc(toy, "plots", "show")
    page = (toy / "dvc_plots/index.html").read_text()
    assert "docs/figures/alpha/line.png" in page
    assert "alpha-prepare" in page
