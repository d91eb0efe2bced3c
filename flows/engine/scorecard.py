"""The scorecard stage: judge every paper; write `report/scorecard.json`, the page, and the generated parts of README and docs.

`python -m flows.engine.scorecard <profile>`.
"""

from __future__ import annotations

import sys
from typing import Any

from flows.engine import docs, dvc, judge, page, registry, staleness
from flows.engine.declare import DeclarationError, Paper
from flows.engine.project import Project, read_object, rows
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
    locked = dvc.lock(project)
    last = rows(read_object(project.scorecard).get("papers"))
    before = {row.get("name"): row for p in last if p.get("slug") == paper.slug for row in rows(p.get("stages"))}
    found = []
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
                found.append({"name": name, "minutes": round(record.seconds / 60, 2), "peak_gib": record.peak_gib, "outcome": EXECUTED})
            else:
                old = before.get(name, {})
                outcome = RESTORED if entry and metrics.is_file() else old.get("outcome", STALE) if entry else STALE
                kept = {key: old.get(key) if isinstance(old.get(key), int | float) else None for key in ("minutes", "peak_gib")}
                found.append({"name": name, **kept, "outcome": outcome})
    return found


def main(words: list[str] | None = None) -> int:
    """Write the scorecard of the profile that the command line names."""
    (profile,) = sys.argv[1:] if words is None else words
    try:
        card = write(Project.here(profile))
    except (docs.MarkerError, DeclarationError) as error:
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
