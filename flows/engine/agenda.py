"""What a run has to do: DVC is asked once, before anything starts; what is clean is left out, what is cosmetic is accepted."""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass

from flows.engine import cosmetic, dvc, plan, registry, staleness, sync
from flows.engine.declare import DeclarationError
from flows.engine.outcome import Ended, Report
from flows.engine.plan import SCORECARD, TRACK, Step
from flows.engine.project import Project


@dataclass(frozen=True)
class Agenda:
    """What a run has to do.

    Attributes:
        project: checkout and profile.
        papers: by slug, the steps that a paper's results depend on, the results included.
        chosen: all steps of these papers, in topological order.
        todo: those of them that are stale, or may become so.
        accepted: those whose change was cosmetic; done already.
        last: the scorecard and track, where they have anything to do.
        pull: whether a remote is to be asked for bytes.
    """

    project: Project
    papers: Mapping[str, tuple[str, ...]]
    chosen: Mapping[str, Step]
    todo: Mapping[str, Step]
    accepted: tuple[str, ...]
    last: tuple[Step, ...]
    pull: bool

    def report(self, ended: Mapping[str, Ended], seconds: float) -> Report:
        """The report of a run in which these steps ended; the others are up to date."""
        known = {name: Ended(name, "cosmetic") for name in self.accepted} | dict(ended)
        order = [*self.chosen, SCORECARD, TRACK]
        steps = {name: known.get(name) or Ended(name, "up-to-date") for name in order}
        return Report(self.project.profile, steps, self.papers, seconds)


def draw_up(project: Project, slugs: list[str] | None, workers: int = 1) -> Agenda:
    """Find out what is to be done for some papers (None: all).

    Raises:
        DeclarationError: for an unknown paper, fewer than one worker, or a `dvc.yaml` that is not what `flows/` says.
    """
    if workers < 1:
        raise DeclarationError.of("workers", "must be 1 or more, got", workers)
    if project.profile == "smoke":
        sync.sync(project)
    elif wrong := sync.stale(project):
        names = ", ".join(str(path.relative_to(project.root)) for path in wrong)
        raise DeclarationError(f"{names}: not what flows/ and params.yaml say; run `papers sync`")
    steps = plan.build(project)
    papers = {slug: _with_upstream(steps, f"{registry.paper(slug).slug}-results") for slug in (slugs or registry.papers())}
    wanted = {name for names in papers.values() for name in names}
    chosen = {name: step for name, step in steps.items() if name in wanted}
    changed, accepted = _changed(project, steps, wanted)
    affected = plan.downstream(chosen, changed & wanted)
    todo = {name: step for name, step in chosen.items() if name in affected}
    last = tuple(steps[name] for name in (SCORECARD, TRACK) if todo or accepted or name in changed)
    return Agenda(project, papers, chosen, todo, accepted, last, has_remote(project))


def has_remote(project: Project) -> bool:
    """Whether DVC has a default remote; read from its configuration, without starting it."""
    for name in ("config", "config.local"):
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(project.home / ".dvc" / name, encoding="utf-8")
        if parser.get("core", "remote", fallback=""):
            return True
    return False


def _changed(project: Project, steps: dict[str, Step], wanted: set[str]) -> tuple[set[str], tuple[str, ...]]:
    """Steps that changed by themselves, and those that were accepted as cosmetic."""
    changed = _ask(project, steps)
    if not changed & wanted:
        return changed, ()
    stale = {name: item for name, item in staleness.stale_steps(project, steps).items() if name in wanted}
    try:
        accepted = cosmetic.accept(project, stale)
    except dvc.DvcError as error:
        if not error.busy:
            raise
        return changed, ()  # a stage is running: whatever is cosmetic is accepted by the next run
    return (_ask(project, steps), tuple(accepted)) if accepted else (changed, ())


def _ask(project: Project, steps: dict[str, Step]) -> set[str]:
    """Names of changed steps, from DVC, or from `dvc.lock` while a stage runs and DVC will not answer."""
    try:
        return set(dvc.status(project)) & set(steps)
    except dvc.DvcError as error:
        if not error.busy:
            raise
        return {name for name, item in staleness.stale_steps(project, steps).items() if item.reasons}


def _with_upstream(steps: Mapping[str, Step], name: str) -> tuple[str, ...]:
    """A step and everything that it needs, directly or not, in topological order."""
    found = {name}
    for step in reversed(list(steps.values())):
        if step.name in found:
            found.update(step.upstream)
    return tuple(n for n in steps if n in found)
