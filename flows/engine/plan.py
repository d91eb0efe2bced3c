"""The graph of a profile: every paper's stages as steps that DVC runs, in an order in which nothing precedes what it needs.

A step is what `dvc.yaml` says of a stage, before it is written down. This module knows names, folders and dependencies, not how
anything is run.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any, Literal

from flows.engine import imports, registry
from flows.engine.declare import DeclarationError, Paper, Stage, check_node, paper_stage
from flows.engine.project import PARAMS, Project, folder, results, section

Kind = Literal["node", "results", "scorecard", "track"]

SHARED = "shared"
SCORECARD = "scorecard"
TRACK = "track"
SPEED_STAGE = "evaluate-speed"


@dataclass(frozen=True)
class Step:
    """A stage as DVC knows it. Paths are relative to the project's home.

    Attributes:
        name: DVC's name, `<slug>-<stage>`, `shared-<name>`, `<slug>-results`, `scorecard` or `track`.
        kind: what runs: a node, or one of the engine's own last stages.
        slug: the paper, `shared`, or empty for the scorecard and track.
        stage: the stage's full name in its paper.
        cmd: the command, which holds the whole binding.
        upstream: names of the steps whose outputs it reads.
        code: files of the import closure.
        data: outputs of other steps that it reads.
        params: keys of `params.yaml` that are tracked.
        packages: keys of `environment.yaml` that are tracked.
        outs: outputs; the first is the folder of a node's stage.
        cached: whether DVC keeps the bytes (else they are kept by git, or made again).
        declared: the declaration, for a node.
    """

    name: str
    kind: Kind
    slug: str
    stage: str
    cmd: str
    upstream: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    params: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    outs: tuple[str, ...] = ()
    cached: bool = True
    declared: Stage | None = None

    @property
    def folder(self) -> str:
        """The output folder of a node's stage."""
        return self.outs[0]

    @property
    def metrics_file(self) -> str:
        """Where the stage's numbers are, relative to the project's home."""
        return f"{self.folder}/{'speed' if self.stage == SPEED_STAGE else 'metrics'}.json"


def build(project: Project, only: Iterable[str] = ()) -> dict[str, Step]:
    """All steps of a profile, in topological order.

    Args:
        project: checkout and profile.
        only: slugs, to leave other papers' steps out (their shared stages stay, the scorecard and track go).

    Raises:
        DeclarationError: for anything that the declarations get wrong together.
    """
    chosen = list(only)
    papers = [registry.paper(slug) for slug in chosen] if chosen else list(registry.papers().values())
    steps: dict[str, Step] = {}
    for stage in registry.shared_stages().values():
        for step in _shared_steps(project, stage):
            steps[step.name] = step
    for paper in papers:
        for step in _paper_steps(project, paper):
            steps[step.name] = step
    if not chosen:
        for step in (_scorecard(project, papers), _track(project, papers, steps)):
            steps[step.name] = step
    used = _needed(steps) if chosen else set(steps)
    order = TopologicalSorter({name: [u for u in step.upstream if u in steps] for name, step in steps.items() if name in used})
    return {name: steps[name] for name in order.static_order()}


def downstream(steps: dict[str, Step], names: Iterable[str]) -> set[str]:
    """`names` and every step that needs one of them, directly or not. `steps` is in topological order."""
    found = set(names)
    for name, step in steps.items():
        if found.intersection(step.upstream):
            found.add(name)
    return found


def params_path(slug: str, profile: str, declared_name: str) -> tuple[str, ...]:
    """Where the parameters of a declared stage stand: `train-bellman` has `<slug>.<profile>.train.bellman`.

    Beside a stage that is called `train` alone, it has `<slug>.<profile>.train-bellman`: a section is one stage's, so that an edit
    makes that stage stale and no other.
    """
    kind, _, variant = declared_name.partition("-")
    if not variant or kind in _declared_names(slug):
        return (slug, profile, declared_name)
    return (slug, profile, kind, variant)


def _declared_names(slug: str) -> set[str]:
    if slug == SHARED:
        return set(registry.shared_stages())
    try:
        return {stage.name for stage in registry.load(slug).stages if stage.node}  # an alias of a shared stage has no section
    except ModuleNotFoundError:
        return set()  # a paper that is not declared any more


def check_sections(project: Project) -> None:
    """Refuse sections of `params.yaml` that no paper, profile or stage reads.

    Raises:
        DeclarationError: naming the section and the nearest known one.
    """
    from flows.engine.project import parameters

    owners: dict[str, list[str]] = {slug: [s.name for s in p.stages if s.node] for slug, p in registry.papers().items()}
    owners[SHARED] = list(registry.shared_stages())
    for slug, profiles in parameters(project.root).items():
        if slug not in owners:
            raise DeclarationError.of(PARAMS, "section of no paper", slug, list(owners))
        check_paper_sections(slug, _mapping(profiles, slug), owners[slug])


def check_paper_sections(slug: str, profiles: dict[str, Any], declared: list[str]) -> None:
    """Refuse unknown profiles and stages in a paper's section of `params.yaml`."""
    from flows.engine.declare import PROFILES

    for profile, sections in profiles.items():
        if profile not in PROFILES:
            raise DeclarationError.of(f"{PARAMS}, {slug}", "unknown profile", profile, PROFILES)
        for kind, values in _mapping(sections, slug, profile).items():
            bare, _, variant = kind.partition("-") if isinstance(kind, str) else (kind, "", "")
            variants = [name.split("-", 1)[1] for name in declared if name.startswith(f"{kind}-")]
            if variant and kind in declared and bare not in declared:
                hint = f"write {variant} inside the section {bare}"
                raise DeclarationError.of(f"{PARAMS}, {slug}.{profile}", "stage without a section of its own", kind, hint=hint)
            if kind not in declared and not variants:
                raise DeclarationError.of(
                    f"{PARAMS}, {slug}.{profile}", "section of no stage", kind, sorted({d.split("-")[0] for d in declared})
                )
            if kind not in declared:
                for variant in _mapping(values, slug, profile, kind):
                    if variant not in variants:
                        raise DeclarationError.of(f"{PARAMS}, {slug}.{profile}.{kind}", "section of no stage", variant, variants)


def _mapping(value: Any, *where: object) -> dict[Any, Any]:
    """A section of `params.yaml`, none when it is empty."""
    if value is not None and not isinstance(value, dict):
        raise DeclarationError.of(PARAMS, f"section {'.'.join(map(str, where))} must be a mapping, got", value)
    return value or {}


def _shared_steps(project: Project, stage: Stage) -> list[Step]:
    check_node(f"flows/shared.py, stage {stage.name!r}", stage.node)
    known = registry.shared_stages()
    for need in stage.needs:
        if need not in known:
            raise DeclarationError.of(f"flows/shared.py, stage {stage.name!r}", "unknown need", need, list(known))
    bindings = {n: (f"{SHARED}-{n}", folder(SHARED, n)) for need in stage.needs for n, _ in known[need].variants()}
    return [_node_step(project, SHARED, stage, full, fixed, bindings) for full, fixed in stage.variants()]


def _paper_steps(project: Project, paper: Paper) -> list[Step]:
    steps: list[Step] = []
    shared = registry.shared_stages()
    for stage in paper.stages:
        if stage.shared and stage.shared not in shared:
            raise DeclarationError.of(f"{paper.slug}, stage {stage.name!r}", "unknown shared stage", stage.shared, list(shared))
    stages = {s.name: s for s in paper.stages if project.profile in s.profiles}
    for stage in stages.values():
        if stage.shared:
            continue
        bindings: dict[str, tuple[str, str]] = {}
        for need in stage.needs:
            if paper_stage(paper, need) not in stages:
                continue
            bindings.update(_binding(paper, stages[paper_stage(paper, need)], need))
        steps += [_node_step(project, paper.slug, stage, full, fixed, bindings) for full, fixed in stage.variants()]
    return [*steps, _results_step(project, paper, steps)]


def _binding(paper: Paper, needed: Stage, need: str) -> dict[str, tuple[str, str]]:
    """Name of the need -> (step, folder), for each variant that the need stands for."""
    if needed.shared:
        target = registry.shared_stages()[needed.shared]
        many = [n for n, _ in target.variants()]
        alias = {n: need if len(many) == 1 else n.replace(needed.shared, need, 1) for n in many}
        return {alias[n]: (f"{SHARED}-{n}", folder(SHARED, n)) for n in many}
    return {n: (f"{paper.slug}-{n}", folder(paper.slug, n)) for n, _ in needed.variants() if need in (n, needed.name)}


def _node_step(project: Project, slug: str, stage: Stage, full: str, fixed: dict[str, str], bindings: dict[str, tuple[str, str]]) -> Step:
    module = stage.node.partition(":")[0]
    words = ["python", "-m", "flows.engine.stage", f"{project.profile}/{slug}/{full}", stage.node]
    words += [f"--set={key}={value}" for key, value in fixed.items()]
    words += [f"{need}={where}" for need, (_, where) in bindings.items()]
    path = params_path(slug, project.profile, stage.name)
    return Step(
        name=f"{slug}-{full}",
        kind="node",
        slug=slug,
        stage=full,
        cmd=shlex.join(words),
        upstream=tuple(sorted({step for step, _ in bindings.values()})),
        code=tuple(project.up + f for f in imports.closure(project.root, module)),
        data=tuple(sorted({where for _, where in bindings.values()})),
        params=(".".join(path),) if section(project.root, path) is not None else (),
        packages=tuple(p for p in imports.third_party(project.root, module) if p in locked(project)),
        outs=(folder(slug, full),),
        declared=stage,
    )


def _results_step(project: Project, paper: Paper, steps: list[Step]) -> Step:
    return Step(
        name=f"{paper.slug}-results",
        kind="results",
        slug=paper.slug,
        stage="results",
        cmd=f"python -m flows.engine.results {project.profile}/{paper.slug}",
        upstream=tuple(s.name for s in steps),
        data=tuple(sorted(s.folder for s in steps)),
        outs=(results(paper.slug), project.figures(paper.slug)),
        cached=False,
    )


def _scorecard(project: Project, papers: list[Paper]) -> Step:
    own = {p for name in ("scorecard", "registry") for p in imports.closure(project.root, f"flows.engine.{name}")}
    own |= {"flows/shared.py", *(f"flows/{p.slug}.py" for p in papers)}
    return Step(
        name=SCORECARD,
        kind="scorecard",
        slug="",
        stage=SCORECARD,
        cmd=f"python -m flows.engine.scorecard {project.profile}",
        upstream=tuple(f"{p.slug}-results" for p in papers),
        code=tuple(project.up + f for f in sorted(own)),
        data=(*(project.up + f for f in templates(project)), *(results(p.slug) for p in papers)),
        outs=("report/scorecard.json", "report/index.html"),
        cached=False,
    )


def _track(project: Project, papers: list[Paper], steps: dict[str, Step]) -> Step:
    nodes = [s for s in steps.values() if s.kind == "node"]
    return Step(
        name=TRACK,
        kind="track",
        slug="",
        stage=TRACK,
        cmd=f"python -m flows.engine.track {project.profile}",
        upstream=(*(s.name for s in nodes), *(f"{p.slug}-results" for p in papers)),
        data=(*(s.metrics_file for s in nodes), *(results(p.slug) for p in papers)),
        outs=("tracking/mirror.json",),
        cached=False,
    )


def templates(project: Project) -> list[str]:
    """The files that the page is drawn with; no import leads to them."""
    found = (project.root / "flows" / "engine" / "templates").glob("page.*")
    return sorted(path.relative_to(project.root).as_posix() for path in found)


def _needed(steps: dict[str, Step]) -> set[str]:
    wanted = {name for name, step in steps.items() if step.slug != SHARED}
    waiting = list(wanted)
    while waiting:
        for name in steps[waiting.pop()].upstream:
            if name not in wanted:
                wanted.add(name)
                waiting.append(name)
    return wanted


def locked(project: Project) -> dict[str, str]:
    """Public versions of all locked packages, from `requirements.lock`, by normalised name."""
    from flows.engine.environment import read_lock

    return read_lock(project.root / "requirements.lock")
