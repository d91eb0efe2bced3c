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
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from flows.engine import agenda, registry
from flows.engine.agenda import Agenda
from flows.engine.artifacts import publish
from flows.engine.declare import Profile
from flows.engine.execute import Runner
from flows.engine.outcome import Ended, Report
from flows.engine.plan import Step
from flows.engine.project import Project
from flows.engine.schedule import Schedule

if TYPE_CHECKING:
    from prefect import Flow, Task
    from prefect.client.schemas.objects import State
    from prefect.futures import PrefectFuture

COLLECTION = "collection"
FLOW_RUN_ID = "PREFECT__FLOW_RUN_ID"  # where the tracker looks for the flow run that a stage belongs to

Show = Callable[[str], None]


def paper_flow(slug: str) -> Flow[..., Any]:
    """The flow of one paper: its stages and the shared ones it needs, its results, the scorecard and the tracker."""
    return _flow(slug, [slug], f"{registry.load(slug).title}: stages, claims, scorecard.")


def collection_flow() -> Flow[..., Any]:
    """The flow of all papers."""
    return _flow(COLLECTION, None, "All papers: stages, claims, scorecard.")


def run(slugs: Sequence[str] | None, profile: str = "cpu", workers: int = 1) -> Report:
    """Run papers through Prefect; output goes to standard error.

    Where nothing is stale, nothing is started. Else Prefect's server is the one that is configured, the one of `papers serve`,
    or one that lasts as long as this process.

    Args:
        slugs: which papers (none: all).
        profile: `cpu`, `gpu` or `smoke`; the smoke project is written on demand.
        workers: how many stages run side by side; the cores are divided among them.

    Raises:
        DeclarationError: for an unknown paper or profile, or when `dvc.yaml` is not what `flows/` says.
        KeyboardInterrupt: when interrupted or terminated; whatever was running has been stopped then.
    """
    from flows.engine import prefect_settings

    project = Project.here(profile)
    chosen = list(dict.fromkeys(slugs or [])) or None
    with prefect_settings.terminable():
        work = agenda.draw_up(project, chosen, workers)
        if not work.todo and not work.last:
            return work.report({}, 0.0)
        prefect_settings.apply(project.root)
        name = chosen[0] if chosen and len(chosen) == 1 else COLLECTION
        made: list[Report] = []
        flow: Any = _flow(name, chosen, work=work, show=_print, keep=made.append)
        state: State[Any] = flow(profile=project.profile, workers=workers, return_state=True)
        if not made:
            state.result()  # raises what ended the flow before it had a report
    return made[0]


def _flow(
    name: str,
    slugs: list[str] | None,
    description: str = "",
    *,
    work: Agenda | None = None,
    show: Show | None = None,
    keep: Callable[[Report], None] | None = None,
) -> Flow[..., Any]:
    from prefect import flow

    @flow(name=name, description=description or None, persist_result=False)
    def papers(profile: Profile = "cpu", workers: int = 1) -> Any:
        """Run what is stale.

        Args:
            profile: cpu, gpu or smoke.
            workers: how many stages run side by side; the cores are divided among them.
        """
        from prefect.states import Completed, Failed

        project = Project.here(profile)
        todo = work or agenda.draw_up(project, slugs, workers)
        report = _orchestrate(todo, workers, show)
        publish(project, name, report)
        if keep:
            keep(report)
        kind = Completed if report.ok else Failed
        return kind(message=report.headline(), data=report.to_json())

    return papers


def _orchestrate(work: Agenda, workers: int, show: Show | None) -> Report:
    """Run everything on the agenda, inside a flow."""
    from prefect import get_run_logger
    from prefect.runtime import flow_run

    started = time.monotonic()
    get_run_logger().info("%d of %d stages are stale: %s", len(work.todo), len(work.chosen), ", ".join(work.todo) or "none")
    runner = Runner(work.project, extra={FLOW_RUN_ID: str(flow_run.id or "")}, pull=work.pull)
    try:
        ended = _run_all(runner, work, workers, show)
        for step in work.last:
            future = _task(step, runner.run_last, ended, show).submit(step.name)
            future.wait()
            if step.name not in ended:
                ended[step.name] = _lost(step.name, future)
    except BaseException:
        runner.end()
        raise
    return work.report(ended, time.monotonic() - started)


def _run_all(runner: Runner, work: Agenda, workers: int, show: Show | None) -> dict[str, Ended]:
    schedule = Schedule(work.todo, workers, work.project.profile)
    ended: dict[str, Ended] = {}
    futures: dict[str, PrefectFuture[Any]] = {}
    done: queue.SimpleQueue[str] = queue.SimpleQueue()
    while schedule.unfinished:
        for step in schedule.start():
            share = 1 if schedule.alone(step) else workers
            task = _task(step, partial(runner.run, workers=share), ended, show)
            # What it waits for has ended: this draws the edges of the graph in Prefect's pages.
            futures[step.name] = future = task.submit(
                step.name, return_state=False, wait_for=[futures[u] for u in step.upstream if u in futures]
            )
            future.add_done_callback(partial(_tell, done, step.name))
        name = done.get()
        if name not in ended:
            ended[name] = _lost(name, futures[name])
        for lost in schedule.end(ended[name]):
            ended[lost.name] = lost
            if show:
                show(f"{lost.name}: {lost.outcome}, {lost.message}")
    return ended


def _tell(done: queue.SimpleQueue[str], name: str, future: object) -> None:
    done.put(name)


def _task(step: Step, work: Callable[[Step, Show], Ended], ended: dict[str, Ended], show: Show | None) -> Task[[str], Any]:
    """A Prefect task that runs one step, tells its run log and the terminal, and notes how it ended in `ended`."""
    from prefect import get_run_logger, task
    from prefect.cache_policies import NO_CACHE
    from prefect.states import Completed, Failed

    device = step.declared.device if step.declared else "cpu"
    tags = [f"paper:{step.slug}"] if step.slug else []

    @task(name=step.name, task_run_name=step.name, tags=[*tags, device], cache_policy=NO_CACHE, persist_result=False)
    def run_step(name: str) -> Any:
        """One `dvc repro --single-item`."""
        logger = get_run_logger()

        def say(line: str) -> None:
            logger.info(line)
            if show:
                show(f"{name} | {line}")

        result = ended[name] = work(step, say)
        kind = Completed if result.ok else Failed
        return kind(message=f"{result.outcome}{': ' if result.message else ''}{result.message}", data=result.outcome)

    return run_step


def _lost(name: str, future: PrefectFuture[Any]) -> Ended:
    """How a step ended whose task broke before it could tell."""
    return Ended(name, "failed", message=f"its Prefect task ended as {future.state.name}: {future.state.message}")


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
