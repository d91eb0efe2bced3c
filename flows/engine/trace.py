"""From an MLflow run to the DVC stage that it shows, and from a stage to its runs.

`trace` answers for a run's identifier (or its beginning), or for a stage's name in DVC; `render` says the answer in text.
"""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flows.engine import dvc, plan, snapshot, staleness, tracking
from flows.engine.declare import PROFILES
from flows.engine.plan import Step
from flows.engine.project import Project
from flows.engine.tracking import EXECUTION, KIND, PARENT, TrackingError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_SHORTEST_PREFIX = 4


class TraceError(ValueError):
    """Nothing is known under this name; says which names come near."""


@dataclass(frozen=True)
class RunTrace:
    """A run in MLflow and where it comes from.

    Attributes:
        current: whether it shows what `dvc.lock` records now; None for an execution, whose stages answer for themselves.
        stale: why `dvc.lock` itself differs from the working tree, for a current run.
        children: names and identifiers of an execution's stages.
        url: address of its page, when `MLFLOW_TRACKING_URI` names a server.
    """

    run_id: str
    name: str
    kind: str
    status: str
    deleted: bool
    experiment: str
    profile: str
    started: str
    tags: Mapping[str, str]
    stage: str = ""
    folder: str = ""
    folder_here: bool = False
    current: bool | None = None
    stale: tuple[str, ...] = ()
    lock_entry: Mapping[str, Any] | None = None
    children: tuple[tuple[str, str], ...] = ()
    parent: str = ""
    url: str = ""


@dataclass(frozen=True)
class StageTrace:
    """A stage in DVC and the runs that show its executions, newest first."""

    stage: str
    profile: str
    cmd: str
    folder: str
    folder_here: bool
    lock_entry: Mapping[str, Any] | None
    stale: tuple[str, ...]
    runs: tuple[RunTrace, ...]
    experiment_url: str = ""


def trace(project: Project, what: str) -> RunTrace | StageTrace:
    """Where a run comes from, or which runs a stage has.

    Args:
        project: checkout and profile; a run is found whatever its profile.
        what: identifier of a run, or at least four characters of its beginning; or a stage (`<slug>-<stage>`).

    Raises:
        TraceError: for what is neither, with the nearest names.
        TrackingError: if the database cannot be used.
    """
    steps = {name: step for name, step in plan.build(project).items() if step.kind == "node"}
    if what in steps:
        return _stage(project, steps[what])
    if re.fullmatch(rf"[0-9a-f]{{{_SHORTEST_PREFIX},32}}", what):
        return _run(project, what, steps)
    raise _unknown(what, f"{project.profile} has no stage", list(steps))


def render(found: RunTrace | StageTrace) -> str:
    """The answer in lines for a person."""
    lines = _stage_lines(found) if isinstance(found, StageTrace) else _run_lines(found)
    width = max(len(label) for label, _ in lines)
    return "\n".join(f"{label:<{width}}  {text}".rstrip() for label, text in lines)


def _stage(project: Project, step: Step) -> StageTrace:
    entry = dvc.lock(project).get(step.name)
    runs: list[RunTrace] = []
    url = ""
    if project.database.is_file():
        client = tracking.connect(project)
        place = tracking.experiments(client).get(step.slug)
        if place:
            url = _url(place.experiment_id)
            where = f"tags.`dvc.stage` = '{step.name}' AND tags.profile = '{project.profile}'"
            runs = [_describe(project, run, place.name, step) for run in reversed(tracking.runs(client, [place.experiment_id], where))]
    return StageTrace(
        stage=step.name,
        profile=project.profile,
        cmd=step.cmd,
        folder=f"{_inside(project)}{step.folder}",
        folder_here=(project.home / step.folder).is_dir(),
        lock_entry=entry,
        stale=_reasons(project, step),
        runs=tuple(runs),
        experiment_url=url,
    )


def _run(project: Project, what: str, steps: Mapping[str, Step]) -> RunTrace:
    if not project.database.is_file():
        raise TraceError(f"{what!r} is no stage, and there is no MLflow database yet; make it with `dvc repro track`")
    client = tracking.connect(project)
    run = _find(client, what, list(steps))
    experiment = client.get_experiment(run.info.experiment_id).name
    tags = run.data.tags
    profile = tags.get("profile", "")
    if profile not in PROFILES:
        raise TraceError(f"run {run.info.run_id} of experiment {experiment!r} was not made by this collection (it has no profile)")
    own = project if profile == project.profile else Project(project.root, profile)
    if tags.get(KIND) == EXECUTION:
        where = f"tags.`{PARENT}` = '{run.info.run_id}'"
        children = [(c.data.tags.get("dvc.stage", ""), c.info.run_id) for c in tracking.runs(client, [run.info.experiment_id], where)]
        return _describe(own, run, experiment, None, tuple(children))
    step = (steps if own == project else plan.build(own)).get(tags.get("dvc.stage", ""))
    return _describe(own, run, experiment, step)


def _find(client: MlflowClient, what: str, stages: list[str]) -> Run:
    from mlflow.exceptions import MlflowException

    if len(what) == 32:
        try:
            return client.get_run(what)
        except MlflowException:
            pass
    places = [e.experiment_id for e in client.search_experiments()]
    found = [run for run in tracking.runs(client, places) if run.info.run_id.startswith(what)]
    if len(found) == 1:
        return found[0]
    if found:
        raise TraceError(f"{what!r} begins {len(found)} runs: {', '.join(run.info.run_id for run in found[:5])}; give more of it")
    raise _unknown(what, "no run and no stage is called", [run.info.run_id for run in tracking.runs(client, places)] + stages)


def _describe(project: Project, run: Run, experiment: str, step: Step | None, children: tuple[tuple[str, str], ...] = ()) -> RunTrace:
    tags = run.data.tags
    stage = tags.get("dvc.stage", "")
    entry = dvc.lock(project).get(stage) if stage else None
    key = (stage, tags.get("dvc.deps_md5", ""), tags.get("dvc.outs_md5", ""))
    shows_lock = bool(run.info.status == "FINISHED" and entry and step and snapshot.key_of(stage, entry) == key)
    current = None if tags.get(KIND) == EXECUTION else shows_lock
    folder = step.folder if step else next((str(out["path"]) for out in (entry or {}).get("outs", [])), "")
    return RunTrace(
        run_id=run.info.run_id,
        name=run.info.run_name or "",
        kind=tags.get(KIND, ""),
        status=run.info.status,
        deleted=run.info.lifecycle_stage == "deleted",
        experiment=experiment,
        profile=project.profile,
        started=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.info.start_time / 1000)),
        tags=dict(tags),
        stage=stage,
        folder=f"{_inside(project)}{folder}" if folder else "",
        folder_here=bool(folder) and (project.home / folder).is_dir(),
        current=current,
        stale=_reasons(project, step) if current and step else (),
        lock_entry=entry,
        children=children,
        parent=tags.get(PARENT, ""),
        url=_url(run.info.experiment_id, run.info.run_id),
    )


def _reasons(project: Project, step: Step) -> tuple[str, ...]:
    found = staleness.stale_steps(project, data=False).get(step.name)
    if found is None:
        return ()
    return tuple(str(reason) for reason in found.reasons) + tuple(f"upstream {name}" for name in found.because_of)


def _run_lines(found: RunTrace) -> list[tuple[str, str]]:
    tags = found.tags
    commit = tags.get("git.commit", "none") + (", with uncommitted changes" if tags.get("git.dirty") == "true" else "")
    lines = [
        ("run", f"{found.run_id}  {found.name}" + ("  (deleted)" if found.deleted else "")),
        ("status", f"{found.status.lower()}, {tags.get('outcome', 'outcome not known')}, {found.started}"),
        ("experiment", found.experiment),
        ("profile", f"{found.profile}, scale {tags.get('scale', 'not known')}"),
        ("git commit", commit),
    ]
    if tags.get("prefect.flow_run_id"):
        lines.append(("prefect", tags["prefect.flow_run_id"]))
    if found.url:
        lines.append(("page", found.url))
    if found.kind == EXECUTION:
        return [*lines, *(("stage", f"{name}  {run_id}") for name, run_id in found.children)]
    folder = found.folder or "no such stage any more"
    lines += [
        ("stage", found.stage),
        ("folder", folder + ("" if found.folder_here or not found.folder else " (not here; `dvc checkout` or `dvc pull` brings it)")),
        ("current", _currency(found)),
    ]
    return lines + _lock_lines(found.lock_entry)


def _currency(found: RunTrace) -> str:
    if found.current:
        return "yes" if not found.stale else f"yes, but dvc.lock is behind the working tree: {'; '.join(found.stale)}"
    if found.status != "FINISHED":
        return "no, the run has no finished results"
    if found.lock_entry is None:
        return "no, dvc.lock has no such stage"
    other = [
        f"{what} ({found.tags.get(f'dvc.{part}_md5', '')[:8]} then, {dvc.digest(found.lock_entry, part)[:8]} now)"
        for part, what in (("deps", "inputs"), ("outs", "outputs"))
        if found.tags.get(f"dvc.{part}_md5") != dvc.digest(found.lock_entry, part)
    ]
    return f"no, dvc.lock records other {' and '.join(other)}" if other else "no, the stage is not declared any more"


def _stage_lines(found: StageTrace) -> list[tuple[str, str]]:
    here = "" if found.folder_here else " (not here; `dvc checkout` or `dvc repro` brings it)"
    lines = [("stage", f"{found.stage}, {found.profile} profile"), ("command", found.cmd), ("folder", found.folder + here)]
    lines.append(("stale", "; ".join(found.stale) if found.stale else "no"))
    lines += _lock_lines(found.lock_entry)
    if found.experiment_url:
        lines.append(("experiment", found.experiment_url))
    if not found.runs:
        lines.append(("runs", "none in MLflow; `dvc repro track` logs what DVC holds"))
    for run in found.runs:
        mark = "current" if run.current else run.status.lower() if run.status != "FINISHED" else "past"
        commit = run.tags.get("git.commit", "")[:10] or "no commit"
        lines.append(("run", "  ".join(filter(None, [run.run_id, run.started, run.tags.get("outcome", ""), commit, mark, run.url]))))
    return lines


def _lock_lines(entry: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if entry is None:
        return [("dvc.lock", "no entry")]
    outs = ", ".join(f"{out['path']} {out.get('md5', '')}" for out in entry.get("outs", []))
    inputs = [dep for dep in entry.get("deps", []) if not dep["path"].endswith(".py")]
    lines = [("dvc.lock", outs)]
    return lines + [("input", f"{dep['path']} {dep.get('md5', '')}") for dep in inputs]


def _unknown(what: str, problem: str, known: list[str]) -> TraceError:
    near = difflib.get_close_matches(what, known, n=3, cutoff=0.5)
    near = near or [name for name in known if what and (name.startswith(what) or name.endswith(what))][:3]
    advice = f"did you mean {' or '.join(near)}?" if near else "give a stage of `dvc stage list`, or the identifier of an MLflow run"
    return TraceError(f"{problem} {what!r}; {advice}")


def _inside(project: Project) -> str:
    return "" if project.profile == "cpu" else f"{project.profile}/"


def _url(experiment_id: str, run_id: str = "") -> str:
    server = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not server.startswith(("http://", "https://")):
        return ""
    return f"{server.rstrip('/')}/#/experiments/{experiment_id}" + (f"/runs/{run_id}" if run_id else "")


__all__ = ["RunTrace", "StageTrace", "TraceError", "TrackingError", "render", "trace"]
