"""The scorecard stage on toy checkouts: the documented form, what is stale, and files that cannot take their generated part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import factory
import pytest

from flows.engine import staleness
from flows.engine.project import Project

pytestmark = pytest.mark.e2e

CLAIM = {"id", "statement", "paper_says", "ours", "interval", "n_seeds", "verdict", "scale", "control"}
PAPER = {"slug", "title", "arxiv", "profile", "claims", "deviations", "stages"}


def judged(folder: Path) -> dict[str, dict[str, Any]]:
    factory.run(folder, "python", "-m", "flows.engine.scorecard", "cpu")
    return stored(folder)


def stored(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["slug"]: row for row in json.loads((folder / "report/scorecard.json").read_text())["papers"]}


def shown(folder: Path) -> list[bytes]:
    names = ("report/scorecard.json", "report/index.html", "README.md", "docs/papers/alpha.md", "docs/papers/beta.md")
    return [(folder / name).read_bytes() for name in names]


def test_the_json_has_the_documented_form(finished: Path):
    papers = stored(finished)
    assert set(papers) == {"alpha", "beta"}
    for row in papers.values():
        assert set(row) >= PAPER
        assert (row["fresh"], row["stale"], row["ran"]) == (True, [], True)
        assert all(set(claim) >= CLAIM for claim in row["claims"])
        assert all(set(stage) == {"name", "minutes", "peak_gib", "outcome"} for stage in row["stages"])
        assert set(row["claims"][0]["control"]) >= {"name", "ours", "lost_effect"}
    claim = papers["alpha"]["claims"][0]
    assert claim["control"]["lost_effect"] is True
    assert (claim["relation"], claim["threshold"], claim["threshold_interval"]) == (">=", 1.0, [1.0, 1.0])
    assert claim["interval"][0] < claim["ours"] < claim["interval"][1]


def test_the_results_of_a_changed_module_are_stale_and_keep_their_verdicts(toy: Path):
    before = stored(toy)
    factory.edit(toy / "tasks/toy/alpha.py", "nodes.train(params", "nodes.train( params")
    after = judged(toy)
    assert [entry["name"] for entry in after["alpha"]["stale"]] == ["alpha-train", "alpha-evaluate"]
    assert after["alpha"]["stale"][0]["reason"] == "module tasks/toy/alpha.py"
    assert after["alpha"]["fresh"] is False
    assert after["alpha"]["claims"] == before["alpha"]["claims"]
    assert after["beta"] == before["beta"]
    assert "(stale)" in (toy / "README.md").read_text()
    assert "`alpha-train` (module tasks/toy/alpha.py)" in (toy / "docs/papers/alpha.md").read_text()


def test_a_changed_shared_stage_makes_every_paper_stale_that_needs_it(toy: Path):
    factory.edit(toy / "params.yaml", "value: 7.0", "value: 8.0")
    papers = judged(toy)
    for slug, row in papers.items():
        assert {"name": f"{slug}-train", "reason": "after shared-base"} in row["stale"]


def test_judging_again_changes_nothing(toy: Path):
    before = shown(toy)
    judged(toy)
    assert shown(toy) == before


def test_a_changed_template_makes_the_scorecard_stale_and_nothing_else(toy: Path):
    factory.edit(toy / "flows/engine/templates/page.css", "--yes: #17714a", "--yes: #17714b")
    assert list(json.loads(factory.dvc(toy, "status", "--json").stdout)) == ["scorecard"]
    code = (
        "from flows.engine import staleness; from flows.engine.project import Project\n"
        "print(*(f'{n}: {s.reasons[0]}' for n, s in staleness.stale_steps(Project.here()).items()))"
    )
    said = factory.run(toy, "python", "-c", code).stdout.strip()
    assert said == "scorecard: input flows/engine/templates/page.css"


@pytest.mark.parametrize(
    ("file", "marker"),
    [("README.md", "<!-- scorecard:end -->"), ("docs/papers/beta.md", "<!-- figures:begin -->")],
)
def test_a_lost_marker_is_named_and_the_scorecard_stays(toy: Path, file: str, marker: str):
    before = (toy / "report/scorecard.json").read_bytes()
    factory.edit(toy / file, marker, "")
    done = factory.dvc(toy, "repro", "--force", "--single-item", "scorecard", check=False)
    assert done.returncode != 0
    assert f"{file}: marker {marker} must stand there once, found 0 times" in done.stderr
    assert "Traceback" not in done.stderr
    assert (toy / "report/scorecard.json").read_bytes() == before


def test_expected_minutes_come_from_the_scorecard(finished: Path):
    names = {stage["name"] for row in stored(finished).values() for stage in row["stages"]}
    assert set(staleness.expected_minutes(Project(finished))) == names
