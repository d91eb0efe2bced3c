"""The Prefect flows: one per paper, and one of all papers. Prefect decides when; DVC decides whether.

A flow asks DVC once, before anything starts, what has changed, and skips the rest. Each remaining step is a task, and each task
one DVC command (`execute`). One broken stage stops what needs it and nothing else; the scorecard and the tracker run at the end
in any case, and the flow ends failed, naming papers and stages.

Papers run side by side in one process here (`workers`). For more machines, give each paper's deployment to a Prefect work pool
(process, Docker, Kubernetes) whose workers have a clone of their own, with a DVC remote for the bytes: a flow then pulls what
others have pushed before it runs anything. Tasks are closures over one checkout, so they are threads, not Dask or Ray tasks.
"""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flows.engine import cosmetic, dvc, plan, registry, staleness, sync
from flows.engine.declare import DeclarationError, Profile
from flows.engine.execute import Runner
from flows.engine.outcome import Ended, Report
from flows.engine.plan import SCORECARD, TRACK, Step
from flows.engine.project import Project
from flows.engine.schedule import Schedule

if TYPE_CHECKING:
    from prefect import Flow, Task
    from prefect.futures import PrefectFuture

COLLECTION = "collection"
FLOW_RUN_ID = "PAPERS_FLOW_RUN_ID"

Show = Callable[[str], None]


def paper_flow(slug: str) -> Flow[..., Any]:
    """The flow of one paper: its stages and the shared ones it needs, its results, the scorecard and the tracker."""
    return _flow(slug, [slug], f"{registry.load(slug).title}: stages, claims, scorecard.")


def collection_flow() -> Flow[..., Any]:
    """The flow of all papers."""
    return _flow(COLLECTION, None, "All papers: stages, claims, scorecard.")


def run(slugs: Sequence[str] | None, profile: str, workers: int = 1) -> Report:
    """Run papers through Prefect, with a server for the moment where none is configured or running; output goes to standard error.

    Args:
        slugs: which papers (None or none: all).
        profile: `cpu`, `gpu` or `smoke`; the smoke project is written on demand.
        workers: how many stages run side by side; the cores are divided among them.

    Raises:
        DeclarationError: for an unknown paper or profile, or when `dvc.yaml` is not what `flows/` says.
        KeyboardInterrupt: when interrupted or terminated; whatever was running has been stopped then.
    """
    from flows.engine import prefect_settings

    project = Project.here(profile)
    chosen = list(dict.fromkeys(slugs or [])) or None
    for slug in chosen or []:
        registry.paper(slug)
    _check(project, workers)
    prefect_settings.apply(project.root)
    name = chosen[0] if chosen and len(chosen) == 1 else COLLECTION
    report: list[Report] = []
    flow = _flow(name, chosen, "", show=lambda line: print(line, file=sys.stderr), keep=report.append)
    with prefect_settings.quiet(), prefect_settings.terminable():
        state = flow(profile=project.profile, workers=workers, return_state=True)
    if not report:
        raise DeclarationError(f"the flow ended before any stage: {state.message}")
    return report[0]


def _flow(
    name: str, slugs: list[str] | None, description: str, *, show: Show | None = None, keep: Callable[[Report], None] | None = None
) -> Flow[..., Any]:
    from prefect import flow

    @flow(name=name, description=description, persist_result=False)
    def papers(profile: Profile = "cpu", workers: int = 1) -> Any:
        """Run what is stale.

        Args:
            profile: cpu, gpu or smoke.
            workers: how many stages run side by side.
        """
        from prefect.states import Completed, Failed

        project = Project.here(profile)
        _check(project, workers)
        report = _orchestrate(project, slugs, workers, show)
        _publish(project, name, report)
        if keep:
            keep(report)
        kind = Completed if report.ok else Failed
        return kind(message=report.headline(), data=report.to_json())

    return papers


def _check(project: Project, workers: int) -> None:
    """Refuse what would only fail later.

    Raises:
        DeclarationError: for a number of workers below 1, or a `dvc.yaml` that is not what `flows/` says.
    """
    if workers < 1:
        raise DeclarationError.of("workers", "must be 1 or more, got", workers)
    if project.profile == "smoke":
        sync.sync(project)
    elif wrong := sync.stale(project):
        names = ", ".join(str(path.relative_to(project.root)) for path in wrong)
        raise DeclarationError(f"{names} differ from flows/ and params.yaml; run `papers sync`")


def _orchestrate(project: Project, slugs: list[str] | None, workers: int, show: Show | None) -> Report:
    from prefect.runtime import flow_run

    started = time.monotonic()
    steps = plan.build(project)
    papers = {slug: _with_upstream(steps, f"{slug}-results") for slug in (slugs or registry.papers())}
    wanted = {name for names in papers.values() for name in names}
    chosen = {name: step for name, step in steps.items() if name in wanted}
    changed, accepted = _changed(project, steps, chosen)
    ended = {name: Ended(name, "cosmetic") for name in accepted}
    todo = {n: s for n, s in steps.items() if n in plan.downstream(steps, changed & wanted) and n in wanted}
    _logger().info("%d of %d stages to look at", len(todo), len(chosen))
    run_id = str(flow_run.id or "")
    runner = Runner(project, extra={FLOW_RUN_ID: run_id} if run_id else {}, pull=_has_remote(project))
    try:
        ended |= _run_all(runner, Schedule(todo, workers, project.profile), workers, show)
        for name in (SCORECARD, TRACK):
            if todo or accepted or name in changed:
                ended[name] = _task(runner.run_last, steps[name], show)(name, [])
    except BaseException:
        runner.end()
        raise
    order = [*chosen, SCORECARD, TRACK]
    everything = {name: ended.get(name) or Ended(name, "up-to-date") for name in order}
    return Report(project.profile, everything, papers, time.monotonic() - started)
