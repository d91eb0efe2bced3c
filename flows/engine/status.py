"""`papers status`: one line per stale stage, with the reason and the expected minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flows.engine import dvc, plan, registry
from flows.engine.project import Project
from flows.engine.staleness import Reason, Stale, stale_steps


def report(project: Project, slugs: Sequence[str] = ()) -> str:
    """The status of all papers, or of some, as text.

    Raises:
        DeclarationError: for an unknown paper.
    """
    for slug in slugs:
        registry.paper(slug)
    steps = plan.build(project)
    stale, notes = find(project, steps)
    shown = [s for s in stale.values() if not slugs or s.step.slug in slugs]
    total = sum(1 for s in steps.values() if not slugs or s.slug in slugs)
    lines = [_line(s) for s in shown]
    if shown:
        absent = [s for s in shown if s.reasons and all(r.kind == "output" for r in s.reasons)]
        lines.append(f"{len(shown)} of {total} stages are stale, about {sum(s.minutes for s in shown):.1f} min; next: papers run")
        if absent and len(absent) == sum(1 for s in shown if s.reasons):
            lines.append("all that is missing is data: `dvc pull` fetches it where a remote has it")
    else:
        lines.append(f"all {total} stages are up to date")
    return "\n".join([*notes, *lines])


def find(project: Project, steps: dict[str, plan.Step]) -> tuple[dict[str, Stale], list[str]]:
    """Stale steps, with edits inside output folders that only DVC sees; while a stage runs, `dvc.lock` answers alone."""
    stale = stale_steps(project, steps)
    try:
        changed = dvc.status(project)
    except dvc.DvcError as error:
        if not error.busy:
            raise
        return stale, ["a stage is running; this is what dvc.lock says"]
    edited = {name: reasons for name in steps if (reasons := _edited(changed.get(name, [])))}
    if not edited:
        return stale, []
    found: dict[str, Stale] = {}
    minutes = {s.name: stale[s.name].minutes for s in steps.values() if s.name in stale}
    for name, step in steps.items():
        item = stale.get(name) or Stale(step, (), (), minutes.get(name, step.declared.budget(project.profile) if step.declared else 0.0))
        own = item.reasons or edited.get(name, ())
        above = tuple(u for u in step.upstream if u in found)
        if own or above:
            found[name] = replace(item, reasons=own, because_of=above)
    return found, []


def _edited(changes: Sequence[Any]) -> tuple[Reason, ...]:
    outs = {path: what for change in changes if isinstance(change, dict) for path, what in change.get("changed outs", {}).items()}
    return tuple(Reason("output", f"{path} was edited" if what == "modified" else f"{path} is not here") for path, what in outs.items())


def _line(stale: Stale) -> str:
    minutes = f"{stale.minutes:.1f} min" if stale.minutes >= 0.05 else "seconds"
    return f"stale  {stale.step.name:40} {minutes:>8}  {stale.why()}"
