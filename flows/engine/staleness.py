"""Which stages are stale, and why, in words: read from `dvc.lock` and the working tree, without running anything.

DVC says the same in its own terms and remains the judge. This answer is there while a stage runs (when `dvc status` is busy), in
a clone without data, and with the old and the new value side by side.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from flows.engine import dvc, plan
from flows.engine.plan import Step
from flows.engine.project import Project, read_mapping, read_object, rows
from flows.engine.record import md5


@dataclass(frozen=True)
class Reason:
    """One thing that changed: `kind` is `module`, `parameter`, `package`, `input`, `command`, `output` or `new`."""

    kind: str
    what: str
    before: str = ""
    now: str = ""

    def __str__(self) -> str:
        change = f" {self.before} -> {self.now}" if self.before or self.now else ""
        colon = ":" if change and self.kind == "parameter" else ""
        return f"{self.kind} {self.what}{colon}{change}".strip()


@dataclass(frozen=True)
class Stale:
    """A stale step: its own reasons, the stale steps above it, and how long it is expected to take."""

    step: Step
    reasons: tuple[Reason, ...]
    because_of: tuple[str, ...] = ()
    minutes: float = 0.0

    def why(self, most: int = 5) -> str:
        """The reasons in one line; of many, the first few and how many more there are."""
        if not self.reasons:
            return f"after {', '.join(self.because_of)}"
        more = f"; and {len(self.reasons) - most} more" if len(self.reasons) > most else ""
        return "; ".join(map(str, self.reasons[:most])) + more


def stale_steps(project: Project, steps: dict[str, Step] | None = None, *, data: bool = True) -> dict[str, Stale]:
    """Stale steps in topological order.

    Args:
        project: checkout and profile.
        steps: the plan, if it is at hand.
        data: whether a missing output counts; without it, the record alone is judged (a clone without data can be up to date).
    """
    steps = steps or plan.build(project)
    locked = dvc.lock(project)
    expected = expected_minutes(project)
    found: dict[str, Stale] = {}
    for name, step in steps.items():
        reasons = tuple(_reasons(project, step, locked, steps, data))
        above = tuple(u for u in step.upstream if u in found)
        if reasons or above:
            budget = step.declared.budget(project.profile) if step.declared else 0.0
            found[name] = Stale(step, reasons, above, expected.get(name, budget))
    return found


def expected_minutes(project: Project) -> dict[str, float]:
    """Minutes that each step took, from the committed scorecard."""
    stages = [stage for paper in rows(read_object(project.scorecard).get("papers")) for stage in rows(paper.get("stages"))]
    return {str(s.get("name")): float(s["minutes"]) for s in stages if isinstance(s.get("minutes"), int | float)}


def _reasons(project: Project, step: Step, locked: Mapping[str, Any], steps: Mapping[str, Step], data: bool) -> list[Reason]:
    entry = locked.get(step.name)
    if entry is None:
        return [Reason("new", "stage, never run")]
    reasons = []
    if entry.get("cmd") != step.cmd:
        reasons.append(Reason("command", "", str(entry.get("cmd")), step.cmd))
    reasons += _code_reasons(project, step, entry)
    reasons += _data_reasons(project, step, entry, locked, steps)
    reasons += _value_reasons(project, step, entry)
    if data or not step.cached:
        reasons += _output_reasons(project, step, entry, data)
    return reasons


def _code_reasons(project: Project, step: Step, entry: Mapping[str, Any]) -> list[Reason]:
    old = {d["path"]: d.get("md5") for d in entry.get("deps", []) if d["path"].endswith(".py")}
    reasons = []
    for path in step.code:
        shown = path.removeprefix(project.up)
        if path not in old:
            reasons.append(Reason("module", f"{shown} (new import)"))
        elif not (project.home / path).is_file():
            reasons.append(Reason("module", f"{shown} (deleted)"))
        elif md5(project.home / path) != old[path]:
            reasons.append(Reason("module", shown))
    reasons += [Reason("module", f"{p.removeprefix(project.up)} (no longer imported)") for p in old if p not in step.code]
    return reasons


def _data_reasons(
    project: Project, step: Step, entry: Mapping[str, Any], locked: Mapping[str, Any], steps: Mapping[str, Step]
) -> list[Reason]:
    old = {d["path"]: d.get("md5") for d in entry.get("deps", []) if not d["path"].endswith(".py")}
    made = {o["path"]: o.get("md5") for e in locked.values() for o in e.get("outs", [])}
    reasons = []
    for path in step.data:
        now = made.get(path)
        file = project.home / path
        if now is None and file.is_file():
            now = md5(file)  # a file inside a cached folder, or one that git keeps
        elif file.is_file() and not any(path in s.outs and s.cached for s in steps.values()):
            now = md5(file)
        if path not in old:
            reasons.append(Reason("input", f"{path} (new)"))
        elif now is not None and now != old[path]:
            reasons.append(Reason("input", path))
    reasons += [Reason("input", f"{p} (no longer needed)") for p in old if p not in step.data]
    return reasons


def _value_reasons(project: Project, step: Step, entry: Mapping[str, Any]) -> list[Reason]:
    reasons = []
    for file, keys, kind in (("params.yaml", step.params, "parameter"), ("environment.yaml", step.packages, "package")):
        old = entry.get("params", {}).get(f"{project.up}{file}", {})
        values = _values(project.root / file)
        for key in keys:
            now = _lookup(values, key)
            if key not in old:
                reasons.append(Reason(kind, f"{key} (new)", now=_show(now)))
            elif old[key] != now:
                reasons += _differences(kind, key, old[key], now)
        reasons += [Reason(kind, f"{key} (no longer tracked)") for key in old if key not in keys]
    return reasons


def _output_reasons(project: Project, step: Step, entry: Mapping[str, Any], data: bool) -> list[Reason]:
    reasons = []
    for out in entry.get("outs", []):
        path = project.home / out["path"]
        kept_by_git = step.kind == "results" or out["path"].endswith("scorecard.json")
        if not path.exists():
            if data or kept_by_git:
                reasons.append(Reason("output", f"{out['path']} is not here"))
        elif path.is_file() and not step.cached and md5(path) != out.get("md5"):
            reasons.append(Reason("output", f"{out['path']} was edited"))
    return reasons


def _differences(kind: str, key: str, before: Any, now: Any) -> list[Reason]:
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted({*before, *now}, key=str)
        return [r for n in names if before.get(n) != now.get(n) for r in _differences(kind, f"{key}.{n}", before.get(n), now.get(n))]
    return [Reason(kind, key, _show(before), _show(now))]


def _show(value: Any) -> str:
    return "absent" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


def _lookup(values: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(values, dict):
            return None
        values = values.get(part)
    return values


def _values(path: Path) -> Any:
    return _read(path, path.stat().st_mtime_ns) if path.is_file() else {}


@cache
def _read(path: Path, _mtime_ns: int) -> Any:
    return read_mapping(path)
