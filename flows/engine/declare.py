"""What a paper is: stages, claims and deviations, checked when the module that declares them is imported.

This module only describes. It does not know DVC, Prefect or MLflow, imports no node, and reads nothing but source text.
"""

from __future__ import annotations

import ast
import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flows.engine.checks import SUFFIXES, Check

if TYPE_CHECKING:
    from prefect import Flow

Profile = Literal["cpu", "gpu", "smoke"]
Scale = Literal["toy", "reduced", "paper"]
PROFILES: tuple[Profile, ...] = ("cpu", "gpu", "smoke")
SCALES: tuple[Scale, ...] = ("toy", "reduced", "paper")
KINDS = ("prepare", "warmstart", "train", "evaluate")
SMOKE_BUDGET_MIN = 2.0
GPU_BUDGET_MIN = 24 * 60.0

_SLUG = re.compile(r"[a-z][a-z0-9_]*")
_VARIANT = re.compile(r"[a-z][a-z0-9_]*(-[a-z0-9_]+)*")


class DeclarationError(ValueError):
    """A paper is declared wrongly; the message says what was wrong, the value seen, and what to do."""

    @classmethod
    def of(cls, where: str, what: str, seen: object, known: Sequence[str] = (), hint: str = "") -> DeclarationError:
        """The one shape of all messages of this module."""
        close = difflib.get_close_matches(str(seen), list(known), n=1)
        advice = f"did you mean {close[0]!r}?" if close else hint or (f"known: {', '.join(known)}" if known else "")
        return cls(f"{where}: {what} {seen!r}" + (f"; {advice}" if advice else ""))


@dataclass(frozen=True)
class Stage:
    """A node bound in a paper.

    Attributes:
        name: `prepare`, `warmstart`, `train` or `evaluate`, or one of these with a variant (`train-dbvi`).
        node: `package.module:function`; empty for an alias of a shared stage.
        needs: names of stages of the same paper whose folders the node reads; a fanned-out stage stands for all its variants.
        shared: name of a stage of `flows/shared.py` that this name stands for.
        budget_min: minutes after which the stage is stopped, one number for cpu or one per profile.
        device: where it runs in the gpu profile.
        over: fan-out, one parameter and its values: `{"method": ("dbvi", "ddvi")}` declares `train-dbvi` and `train-ddvi`.
        metrics: every metric the node may report, braces expand: `"{ui,naive}.coverage.{ames,hotel}"`.
        metrics_in: metrics that it reports in one profile only, where profiles use different data.
        curves: names in its training history that `dvc plots` draws.
        profiles: in which profiles the stage exists.
    """

    name: str
    node: str = ""
    needs: Sequence[str] = ()
    shared: str = ""
    budget_min: float | Mapping[str, float] = 10.0
    device: Literal["cpu", "gpu"] = "cpu"
    over: Mapping[str, Sequence[str]] = field(default_factory=dict)
    metrics: Sequence[str] = ()
    metrics_in: Mapping[Profile, Sequence[str]] = field(default_factory=dict)
    curves: Sequence[str] = ()
    profiles: Sequence[Profile] = PROFILES

    @property
    def kind(self) -> str:
        """The name without its variant; the section of `params.yaml` that holds its parameters."""
        return self.name.split("-", 1)[0]

    def variants(self) -> list[tuple[str, dict[str, str]]]:
        """(full name, fixed parameters) of every stage that this one declares."""
        if not self.over:
            return [(self.name, {})]
        keys = list(self.over)
        return [
            ("-".join([self.name, *values]), dict(zip(keys, values, strict=True)))
            for values in itertools.product(*(self.over[key] for key in keys))
        ]

    def budget(self, profile: str) -> float:
        """Minutes that the stage may take in a profile."""
        if isinstance(self.budget_min, Mapping):
            return float(self.budget_min.get(profile, GPU_BUDGET_MIN if profile == "gpu" else SMOKE_BUDGET_MIN))
        return {"cpu": self.budget_min, "gpu": GPU_BUDGET_MIN, "smoke": SMOKE_BUDGET_MIN}[profile]

    def metric_names(self, profile: Profile | None = None) -> frozenset[str]:
        """All declared metric names, braces expanded, of one profile or of any."""
        named = [patterns for name, patterns in self.metrics_in.items() if profile in (None, name)]
        return frozenset(name for patterns in (self.metrics, *named) for pattern in patterns for name in expand(pattern))


@dataclass(frozen=True)
class Control:
    """A negative control: the method with its key idea switched off, which must lose the effect.

    Attributes:
        name: what was switched off, for people.
        swap: the claim's own check, asked of other arms: parts of the tested metrics' names and what replaces them.
        check: a check of its own, where swapping names cannot say it.
    """

    name: str
    swap: Mapping[str, str] = field(default_factory=dict)
    check: Check | None = None

    def against(self, claim: Check) -> Check:
        """The check that the control must fail."""
        return self.check or claim.swapped(self.swap)


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    Attributes:
        id: identifier, unique in the paper.
        statement: the claim in our words.
        paper_says: the paper's own number or sentence.
        check: predicate on metrics, judged with its uncertainty.
        scale: at which scale the cpu profile tests it (`gpu_scale` for the gpu profile; smoke is always `toy`).
        why_scale: why that scale can show the effect.
        control: the negative control, if the claim has an effect that can be switched off.
    """

    id: str
    statement: str
    paper_says: str
    check: Check
    scale: Scale
    why_scale: str
    control: Control | None = None
    gpu_scale: Scale = "paper"

    def scale_in(self, profile: str) -> Scale:
        """The scale label of a verdict reached in a profile."""
        return "toy" if profile == "smoke" else self.gpu_scale if profile == "gpu" else self.scale


@dataclass(frozen=True)
class Deviation:
    """What we do otherwise than the paper, and why."""

    what: str
    because: str


@dataclass(frozen=True)
class Paper:
    """A paper as a pipeline; validated on construction.

    Attributes:
        slug: name of the module, of the folders and of the section in `params.yaml`.
        title: the paper's title.
        arxiv: arXiv identifier; empty where the paper is on OpenReview alone.
        openreview: OpenReview identifier.
        stages: in any order; `needs` orders them.
        claims: what the paper says, as checks.
        deviations: where we differ.
        summary: two or three sentences for the page.
        figures: names of figures to show first, best first.
        apply: `package.module:function` of the tool that `papers apply` runs on a person's own data; empty if there is none.

    Raises:
        DeclarationError: for anything wrong, with the value seen and a hint.
    """

    slug: str
    title: str
    arxiv: str
    stages: Sequence[Stage]
    claims: Sequence[Claim] = ()
    deviations: Sequence[Deviation] = ()
    summary: str = ""
    openreview: str = ""
    figures: Sequence[str] = ()
    apply: str = ""

    def __post_init__(self) -> None:
        _validate(self)

    def stage(self, full_name: str) -> Stage:
        """The declaration behind a full stage name (`train-dbvi`)."""
        for stage in self.stages:
            if any(full_name == name for name, _ in stage.variants()):
                return stage
        known = [name for s in self.stages for name, _ in s.variants()]
        raise DeclarationError.of(self.slug, "unknown stage", full_name, known)

    def flow(self) -> Flow[..., Any]:
        """The Prefect flow of this paper, as deployments name it (`flows/<slug>.py:flow`)."""
        # Not an import statement: declaring a paper must not make the scorecard depend on what runs it.
        flow: Flow[..., Any] = import_module("flows.engine.orchestrate").paper_flow(self.slug)
        return flow


def braces(*options: object) -> str:
    """The pattern of any of these: `{a,b}` of a and b.

    Example:
        >>> expand(f"{braces('ui', 'naive')}.coverage")
        ['ui.coverage', 'naive.coverage']
    """
    return "{" + ",".join(map(str, options)) + "}"


def expand(pattern: str) -> list[str]:
    """Expand `{a,b}` alternatives like a shell does: `"{ui,naive}.coverage"` gives two names."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if not found:
        return [pattern]
    head, tail = pattern[: found.start()], pattern[found.end() :]
    return [name for option in found[1].split(",") for name in expand(head + option + tail)]


def _validate(paper: Paper) -> None:
    if not _SLUG.fullmatch(paper.slug):
        raise DeclarationError.of("paper", "bad slug", paper.slug, hint="use lower-case letters, digits and underscores")
    if not (paper.arxiv or paper.openreview):
        raise DeclarationError.of(paper.slug, "nobody could find the paper, arxiv is", paper.arxiv, hint="give arxiv= or openreview=")
    names = [name for stage in paper.stages for name, _ in _variants(paper.slug, stage)]
    for name in names:
        if names.count(name) > 1:
            raise DeclarationError.of(paper.slug, "two stages are called", name, hint="give one a variant, train-<variant>")
    for stage in paper.stages:
        where = f"{paper.slug}, stage {stage.name!r}"
        if stage.kind not in KINDS:
            raise DeclarationError.of(where, "unknown kind of stage", stage.kind, KINDS)
        _validate_stage(where, stage, [*names, *(s.name for s in paper.stages)])
    _refuse_cycles(paper.slug, {stage.name: {paper_stage(paper, need) for need in stage.needs} for stage in paper.stages})
    _validate_claims(paper)
    if paper.apply:
        check_node(f"{paper.slug}, apply", paper.apply)
    for deviation in paper.deviations:
        if not deviation.because.strip():
            raise DeclarationError.of(paper.slug, "deviation without a reason", deviation.what, hint="say why in `because`")


def validate_shared(stages: Sequence[Stage]) -> None:
    """Refuse stages of `flows/shared.py` that are declared wrongly.

    Raises:
        DeclarationError: for anything wrong, with the value seen and a hint.
    """
    shared = "flows/shared.py"
    names = [name for stage in stages for name, _ in _variants(shared, stage)]
    for name in names:
        if names.count(name) > 1:
            raise DeclarationError.of(shared, "two stages are called", name, hint="call one otherwise")
    for stage in stages:
        where = f"{shared}, stage {stage.name!r}"
        if stage.shared or set(stage.profiles) != set(PROFILES):
            raise DeclarationError.of(where, "takes no shared= and no profiles=, got", stage.shared or stage.profiles)
        _validate_stage(where, stage, [other.name for other in stages])
    _refuse_cycles(shared, {stage.name: set(stage.needs) for stage in stages})


def _variants(where: str, stage: Stage) -> list[tuple[str, dict[str, str]]]:
    """The stages that a declaration stands for, after a look at how its fan-out is written."""
    for key, values in stage.over.items():
        if isinstance(values, str) or not values or not all(isinstance(value, str) for value in values):
            hint = 'write over={"method": ("first", "second")}, values as text'
            raise DeclarationError.of(f"{where}, stage {stage.name!r}", f"over {key!r} must list texts, got", values, hint=hint)
    for name, _ in stage.variants():
        if not _VARIANT.fullmatch(name):
            raise DeclarationError.of(f"{where}, stage {stage.name!r}", "bad name", name, hint="lower-case letters, digits, _ and -")
    return stage.variants()


def _validate_stage(where: str, stage: Stage, known: list[str]) -> None:
    if bool(stage.node) == bool(stage.shared):
        raise DeclarationError.of(where, "needs either a node or shared=, got", (stage.node, stage.shared), hint="give exactly one")
    for need in stage.needs:
        if need not in known:
            raise DeclarationError.of(where, "unknown need", need, known)
    budgets = stage.budget_min.values() if isinstance(stage.budget_min, Mapping) else [stage.budget_min]
    if not all(b > 0 for b in budgets):
        raise DeclarationError.of(where, "budget must be more than 0 minutes, got", stage.budget_min)
    for profile in (*stage.profiles, *stage.metrics_in, *(stage.budget_min if isinstance(stage.budget_min, Mapping) else ())):
        if profile not in PROFILES:
            raise DeclarationError.of(where, "unknown profile", profile, PROFILES)
    if stage.node:
        check_node(where, stage.node)


def _refuse_cycles(where: str, waiting: dict[str, set[str]]) -> None:
    while waiting:
        ready = [name for name, needs in waiting.items() if not needs & waiting.keys()]
        if not ready:
            raise DeclarationError.of(where, "stages need each other", " -> ".join(sorted(waiting)), hint="remove one need")
        for name in ready:
            del waiting[name]


def paper_stage(paper: Paper, need: str) -> str:
    """Name of the declaration that a need (a stage or one of its variants) refers to."""
    return need if any(s.name == need for s in paper.stages) else paper.stage(need).name


def _validate_claims(paper: Paper) -> None:
    # Variants of a fanned-out stage report the same names, so that no claim can mean one of them.
    declared = sorted(name for stage in paper.stages if not stage.over for name in stage.metric_names())
    fanned = {name for stage in paper.stages if stage.over for name in stage.metric_names()}
    for name in sorted({n for n in declared if declared.count(n) > 1 or n in fanned}):
        raise DeclarationError.of(paper.slug, "two stages declare the metric", name, hint="call one otherwise")
    ids = [claim.id for claim in paper.claims]
    for claim in paper.claims:
        where = f"{paper.slug}, claim {claim.id!r}"
        if ids.count(claim.id) > 1:
            raise DeclarationError.of(where, "two claims share the id", claim.id)
        if not (claim.statement.strip() and claim.paper_says.strip() and claim.why_scale.strip()):
            raise DeclarationError.of(where, "statement, paper_says and why_scale must say something, got", claim.statement)
        for scale in (claim.scale, claim.gpu_scale):
            if scale not in SCALES:
                raise DeclarationError.of(where, "unknown scale", scale, SCALES)
        checks = [claim.check, *([claim.control.against(claim.check)] if claim.control else [])]
        for metric in sorted(frozenset().union(*(check.metrics() for check in checks))):
            if metric not in declared and not metric.endswith(SUFFIXES):
                raise DeclarationError.of(where, "unknown metric", metric, declared, hint="declare it in the stage's `metrics`")
        if claim.control and claim.control.against(claim.check) == claim.check:
            raise DeclarationError.of(
                where, "the control asks the claim's own check", claim.control.name, hint="swap an arm that occurs in it"
            )


def check_node(where: str, node: str) -> None:
    """Refuse a node that does not exist, from the source text, without importing it.

    Raises:
        DeclarationError: if the module or the function is not there, with the nearest name.
    """
    module, _, function = node.partition(":")
    if not function or not module.startswith("tasks."):
        raise DeclarationError.of(where, "bad node", node, hint="write tasks.<domain>.<module>:<function>")
    functions = _functions_of(module)
    if functions is None:
        raise DeclarationError.of(where, "no such module", module, hint=f"is there a file {module.replace('.', '/')}.py?")
    if function not in functions:
        raise DeclarationError.of(where, f"no function in {module} called", function, functions)


@cache
def _functions_of(module: str) -> tuple[str, ...] | None:
    path = Path(__file__).parents[2].joinpath(*module.split(".")).with_suffix(".py")
    if not path.is_file():
        return None
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise DeclarationError(f"{module.replace('.', '/')}.py{line}: is not Python ({error})") from None
    return tuple(n.name for n in tree.body if isinstance(n, ast.FunctionDef))
