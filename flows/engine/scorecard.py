"""The scorecard stage: judge every paper; write `report/scorecard.json`, the page, and the generated parts of README and docs.

`python -m flows.engine.scorecard <profile>`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from flows.engine import docs, judge, page, registry, staleness
from flows.engine.declare import Paper
from flows.engine.project import Project, read_yaml
from flows.engine.record import RunRecord
from tasks.common.formats import write_json

STALE, RESTORED, EXECUTED = "stale", "restored", "executed"


def write(project: Project) -> dict[str, Any]:
    """Judge and write everything that shows the verdicts; returns the scorecard."""
    papers = list(registry.papers().values())
    card = judge.scorecard(project, papers, {paper.slug: stage_rows(project, paper) for paper in papers})
    stale = stale_stages(project)
    for row in card["papers"]:
        row["stale"] = stale.get(row["slug"], [])
        row["fresh"] = not row["stale"]
    if project.profile == "cpu":
        docs.write_docs(project, card, papers)
        docs.write_readme(project, card)
    page.write_page(project, card, papers)
    write_json(project.scorecard, card)
    return card


def stale_stages(project: Project) -> dict[str, list[dict[str, str]]]:
    """By slug, the stages whose results are not those of the code, parameters and versions that are here, and why."""
    found: dict[str, list[dict[str, str]]] = {}
    for name, stale in staleness.stale_steps(project, data=False).items():
        if stale.step.kind == "node":
            found.setdefault(stale.step.slug, []).append({"name": name, "reason": stale.why()})
    return found


def stage_rows(project: Project, paper: Paper) -> list[dict[str, Any]]:
    """How long each stage took: by its run's own record where that belongs to `dvc.lock`, else as the last scorecard had it."""
    path = project.home / "dvc.lock"
    locked = (read_yaml(path) or {}).get("stages", {}) if path.is_file() else {}
    before = {row["name"]: row for p in _last(project) if p["slug"] == paper.slug for row in p.get("stages", [])}
    rows = []
    for stage in paper.stages:
        if project.profile not in stage.profiles or stage.shared:
            continue
        for full, _ in stage.variants():
            name = f"{paper.slug}-{full}"
            entry = locked.get(name)
            out = project.home / "data" / paper.slug / full
            record = RunRecord.read(out)
            metrics = next((f for f in (out / "metrics.json", out / "speed.json") if f.is_file()), out / "metrics.json")
            if entry and record and record.matches(entry, metrics):
                rows.append({"name": name, "minutes": round(record.seconds / 60, 2), "peak_gib": record.peak_gib, "outcome": EXECUTED})
            else:
                old = before.get(name, {})
                outcome = RESTORED if entry and metrics.is_file() else old.get("outcome", STALE) if entry else STALE
                rows.append({"name": name, "minutes": old.get("minutes"), "peak_gib": old.get("peak_gib"), "outcome": outcome})
    return rows


def _last(project: Project) -> list[dict[str, Any]]:
    try:
        papers: list[dict[str, Any]] = json.loads(project.scorecard.read_text(encoding="utf-8"))["papers"]
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        return []
    return papers


def main(words: list[str] | None = None) -> int:
    """Write the scorecard of the profile that the command line names."""
    (profile,) = sys.argv[1:] if words is None else words
    try:
        card = write(Project.here(profile))
    except docs.MarkerError as error:
        print(f"scorecard: {error}", file=sys.stderr)
        return 1
    counts: dict[str, int] = {}
    for paper in card["papers"]:
        for claim in paper["claims"]:
            counts[claim["verdict"]] = counts.get(claim["verdict"], 0) + 1
    print("scorecard: " + (", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())) or "no claims"), file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
