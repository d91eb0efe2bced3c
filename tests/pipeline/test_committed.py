"""What is committed agrees with the code: generated files, the lock, the results. No data is needed."""

from __future__ import annotations

import json

import factory
import pytest

from flows.engine import registry, staleness, sync
from flows.engine.checks import Evidence
from flows.engine.environment import disagreements, read_lock
from flows.engine.project import Project

CPU = Project(factory.ROOT)
GPU = Project(factory.ROOT, "gpu")


@pytest.mark.parametrize("project", [CPU, GPU], ids=["cpu", "gpu"])
def test_generated_files_are_what_the_declarations_say(project):
    assert sync.stale(project) == []


@pytest.mark.parametrize("profile", ["cpu", "gpu", "smoke"])
def test_trap_28_every_parameter_is_one_that_its_node_knows(profile):
    assert sync.unknown_parameters(Project(factory.ROOT, profile)) == []


def test_trap_22_the_lock_belongs_to_the_code():
    stale = staleness.stale_steps(CPU, data=False)
    assert {name: [str(reason) for reason in item.reasons] for name, item in stale.items()} == {}


@pytest.mark.parametrize("slug", list(registry.papers()))
def test_results_hold_no_undeclared_metric_and_every_one_that_a_claim_reads(slug):
    paper = registry.paper(slug)
    stored = json.loads((factory.ROOT / f"report/results/{slug}.json").read_text())
    names = {name for metrics in stored["stages"].values() for name in metrics}
    base = {n for n in names if not n.endswith((".lo", ".hi", ".se", ".n"))}
    shared = registry.shared_stages()
    assert base <= {n for stage in paper.stages for n in shared.get(stage.shared, stage).metric_names("cpu")}
    evidence = Evidence({name: value for metrics in stored["stages"].values() for name, value in metrics.items()})
    for claim in paper.claims:
        for check in (claim.check, *([claim.control.against(claim.check)] if claim.control else [])):
            assert check.judge(evidence).estimate is not None, f"{claim.id}: {check.judge(evidence).text}"


@pytest.mark.parametrize("slug", list(registry.papers()))
def test_figures_of_every_paper_are_kept_and_small(slug):
    figures = list((factory.ROOT / "docs/figures" / slug).glob("*.png"))
    assert figures
    assert all(f.stat().st_size < 400_000 for f in figures)
    assert {f"{name}.png" for name in registry.paper(slug).figures} <= {f.name for f in figures}


def test_trap_18_the_installed_packages_are_the_locked_ones():
    assert disagreements(read_lock(factory.ROOT / "requirements.lock")) == {}
