"""Every paper's smoke pipeline, by real `dvc repro` in a fresh copy of the checkout."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows.engine import registry

pytestmark = pytest.mark.xdist_group("smoke")  # a paper's pipeline runs once, for all tests that look at it

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "pipeline"))

import factory


@pytest.fixture(scope="module", params=list(registry.papers()))
def smoke(request, tmp_path_factory) -> tuple[str, Path, dict[str, bytes]]:
    """A paper, a checkout in which its smoke pipeline has run, and the metrics of that run."""
    slug = request.param
    folder = tmp_path_factory.mktemp("smoke") / "checkout"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    factory.papers_command(folder, "sync", "--profile", "smoke")
    factory.dvc(folder, "--cd", "smoke", "repro", f"{slug}-results")
    return slug, folder, metrics(folder, slug)


def metrics(folder: Path, slug: str, name: str = "metrics.json") -> dict[str, bytes]:
    """What every stage reports, without the stage that measures speed, whose file is called `speed.json`."""
    return {p.parent.name: p.read_bytes() for p in sorted((folder / "smoke/data" / slug).glob(f"*/{name}"))}


@pytest.mark.e2e
def test_every_stage_reports_only_declared_metrics(smoke):
    slug, folder, found = smoke
    found = found | metrics(folder, slug, "speed.json")
    paper = registry.paper(slug)
    declared = [stage for stage in paper.stages if stage.node and "smoke" in stage.profiles]
    assert set(found) == {full for stage in declared for full, _ in stage.variants()}
    for full, text in found.items():
        names = {n for n in json.loads(text) if not n.endswith((".lo", ".hi", ".se", ".n"))}
        assert names <= paper.stage(full).metric_names(), full


@pytest.mark.e2e
def test_every_claim_is_judged_at_toy_scale(smoke):
    slug, folder, _ = smoke
    code = (
        "import json; from flows.engine import judge, registry; from flows.engine.checks import Evidence\n"
        "from flows.engine.project import Project\n"
        f"project = Project.here('smoke'); evidence = Evidence(judge.read_metrics(project, {slug!r}))\n"
        f"print(json.dumps([judge.judge_claim(c, evidence, 'smoke') for c in registry.paper({slug!r}).claims]))"
    )
    claims = json.loads(factory.run(folder, sys.executable, "-c", code).stdout)
    assert claims
    for claim in claims:
        assert claim["verdict"] in ("verified", "not reproduced", "inconclusive")
        assert claim["scale"] == "toy"
        assert claim["text"]


@pytest.mark.e2e
def test_figures_are_drawn(smoke):
    slug, folder, _ = smoke
    assert list((folder / "smoke/report/figures" / slug).glob("*.png"))


@pytest.mark.e2e
def test_trap_14_a_second_run_without_the_cache_gives_identical_metrics(smoke):
    slug, folder, before = smoke
    factory.dvc(folder, "--cd", "smoke", "repro", "-f", "--no-run-cache", f"{slug}-results")
    assert metrics(folder, slug) == before
