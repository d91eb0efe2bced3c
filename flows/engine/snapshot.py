"""What DVC holds of a stage, as plain data for a tracker: identity, parameters, numbers, curves, figures, inputs.

Everything is read from `dvc.lock`, the stage's folder, and the record beside it. This module knows no tracker.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flows.engine import dvc, registry
from flows.engine.declare import SCALES
from flows.engine.plan import SHARED, Step
from flows.engine.project import Project, read_object
from flows.engine.record import RunRecord, md5

Outcome = Literal["executed", "restored"]
Key = tuple[str, str, str]

# What a result is made of; changes elsewhere (dvc.lock, reports) leave the code as committed.
SOURCES = ("flows", "tasks", "params.yaml", "environment.yaml", "requirements.lock", "dvc.yaml", "gpu/dvc.yaml")


@dataclass(frozen=True)
class Input:
    """A folder that the stage read: the name of the need, the folder, and DVC's digest of it."""

    need: str
    folder: str
    md5: str
    size: int = 0
    files: int = 0


@dataclass(frozen=True)
class Snapshot:
    """A stage's outputs and where they come from. Times are seconds since 1970."""

    name: str
    paper: str
    node: str
    key: Key
    cmd_md5: str
    outcome: Outcome
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    timings: Mapping[str, float]
    inputs: tuple[Input, ...]
    figures: tuple[Path, ...]
    history: Path | None
    started_at: float
    ended_at: float
    seed: int | None = None
    streamed_as: str = ""

    def curves(self) -> Iterator[tuple[int, str, float]]:
        """(step, name, value) of the training history."""
        if self.history is None:
            return
        from tasks.common.formats import read_parquet

        frame = read_parquet(self.history)
        for step, name, value in zip(frame["step"], frame["name"], frame["value"], strict=True):
            if math.isfinite(value):
                yield int(step), str(name), float(value)


def key_of(name: str, entry: Mapping[str, Any]) -> Key:
    """What makes two executions the same: stage, digest of all that went in, digest of what came out."""
    return name, dvc.digest(entry, "deps"), dvc.digest(entry, "outs")


def present(project: Project, step: Step, entry: Mapping[str, Any] | None) -> bool:
    """Whether the stage's folder is here and is the one that `dvc.lock` records.

    Looked up in DVC's listing of the folder, where the cache holds it; a folder whose numbers are others (it was just made anew
    and not yet recorded, or edited) does not count.
    """
    metrics = project.home / step.metrics_file
    if entry is None or not metrics.is_file():
        return False
    digest = next((str(out.get("md5", "")) for out in entry.get("outs", []) if out["path"] == step.folder), "")
    listing = project.root / ".dvc" / "cache" / "files" / "md5" / digest[:2] / digest[2:]
    try:
        files = {item["relpath"]: item["md5"] for item in json.loads(listing.read_text(encoding="utf-8"))}
    except (OSError, ValueError):
        return True
    return files.get(metrics.name) == md5(metrics)


def take(project: Project, step: Step, entry: Mapping[str, Any]) -> Snapshot:
    """The snapshot of a stage that is `present`."""
    out = project.home / step.folder
    metrics = project.home / step.metrics_file
    record = RunRecord.read(out)
    own = record if record and record.matches(entry, metrics) else None
    now = time.time()
    history = out / "history.parquet"
    return Snapshot(
        name=step.name,
        paper=step.slug,
        node=next((word for word in shlex.split(str(entry.get("cmd", ""))) if word.startswith("tasks.")), ""),
        key=key_of(step.name, entry),
        cmd_md5=hashlib.md5(str(entry.get("cmd")).encode(), usedforsecurity=False).hexdigest(),
        outcome="executed" if own else "restored",
        params=parameters(step, entry),
        metrics=_numbers(metrics),
        timings=_numbers(out.with_name(f"{out.name}.timings.json")) if own else {},
        inputs=tuple(_inputs(entry)),
        figures=tuple(sorted((out / "figures").glob("*.png"))),
        history=history if history.is_file() else None,
        started_at=own.started_at if own else now,
        ended_at=own.started_at + own.seconds if own else now,
        seed=own.seed if own else None,
        streamed_as=own.mlflow_run_id if own else "",
    )


def parameters(step: Step, entry: Mapping[str, Any]) -> dict[str, str]:
    """Parameters of a lock entry by their short names (`lr`, `model.width`), and `package.<name>` for versions."""
    found: dict[str, str] = {}
    for word in shlex.split(str(entry.get("cmd", ""))):
        if word.startswith("--set="):
            name, _, value = word.removeprefix("--set=").partition("=")
            found[name] = value
    for file, values in entry.get("params", {}).items():
        for key, value in values.items():
            if Path(file).name == "environment.yaml":
                found[f"package.{key}"] = str(value)
            else:
                found.update(_flat("" if key in step.params else key, value))
    return found


def scale(project: Project, slug: str) -> str:
    """At which scales a paper's claims are tested in this profile; for shared stages, those of all papers that use them."""
    if project.profile == "smoke":
        return "toy"
    papers = registry.papers()
    chosen = [p for p in papers.values() if p.slug == slug or (slug == SHARED and any(s.shared for s in p.stages))]
    seen = {claim.scale_in(project.profile) for paper in chosen for claim in paper.claims}
    return ", ".join(s for s in SCALES if s in seen) or "none"


def git_state(root: Path) -> dict[str, str]:
    """Tags that say which commit the checkout is at, and whether what results are made of differs from it."""
    commit = _git(root, "rev-parse", "HEAD")
    if not commit:
        return {"git.commit": "none", "git.dirty": "unknown"}
    changed = _git(root, "status", "--porcelain", "--", *SOURCES)
    return {"git.commit": commit, "git.dirty": "true" if changed else "false"}


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _numbers(path: Path) -> dict[str, float]:
    """Finite numbers of a flat JSON file; none if it is not there or not JSON."""
    return {name: float(v) for name, v in read_object(path).items() if isinstance(v, int | float) and math.isfinite(v)}


def _inputs(entry: Mapping[str, Any]) -> Iterator[Input]:
    needs = {folder: need for need, _, folder in (word.partition("=") for word in shlex.split(str(entry.get("cmd", "")))) if folder}
    for dep in entry.get("deps", []):
        if dep["path"] in needs:
            yield Input(needs[dep["path"]], dep["path"], str(dep.get("md5", "")), int(dep.get("size", 0)), int(dep.get("nfiles", 1)))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), inner)
    elif prefix:
        yield prefix, value if isinstance(value, str) else json.dumps(value, default=str)
