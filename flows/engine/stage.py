"""Run one stage: `python -m flows.engine.stage <profile>/<slug>/<stage> <module:node> [--set=key=value] [need=folder ...]`.

DVC calls this. The process that DVC started supervises: it forks a child that leads a process group of its own, watches its time
budget, its memory and whether DVC still lives, and moves the finished folder into place. The child runs the node. Nothing here
influences a node's results: the same node called directly writes the same `metrics.json`.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import time
import traceback
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flows.engine import supervise
from flows.engine.declare import DeclarationError
from flows.engine.project import ENVIRONMENT, PARAMS, Project, folder, read_mapping, section
from flows.engine.record import RunRecord, StageLog, write_metrics
from tasks.common.formats import read_json, write_json
from tasks.common.node import Inputs, Metrics, Params

FAILED, OVER_BUDGET, ORPHANED = 1, 124, 125
SIDE = ".side.json"  # what the child hands over beside its outputs; written last

Node = Callable[[Params, Inputs, Path, Any], Metrics]


class StageError(RuntimeError):
    """A stage cannot start or its node broke the contract; one line that says what to do."""


@dataclass(frozen=True)
class Binding:
    """What the command line says of a stage."""

    profile: str
    slug: str
    stage: str
    node: str
    fixed: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, words: list[str]) -> Binding:
        """Parse the command's words.

        Raises:
            StageError: for anything that is not as `papers sync` writes it.
        """
        if len(words) < 2 or words[0].count("/") != 2 or ":" not in words[1]:
            raise StageError(
                f"expected <profile>/<slug>/<stage> <module:node> [need=folder ...], got {' '.join(words)!r}; run `papers sync`"
            )
        profile, slug, stage = words[0].split("/")
        fixed: dict[str, str] = {}
        needs: dict[str, str] = {}
        for word in words[2:]:
            target, text = (fixed, word[6:]) if word.startswith("--set=") else (needs, word)
            key, equals, value = text.partition("=")
            if not (key and equals and value):
                raise StageError(f"expected need=folder or --set=key=value, got {word!r}; run `papers sync`")
            target[key] = value
        return cls(profile, slug, stage, words[1], fixed, needs)


def main(words: list[str] | None = None) -> int:
    """Run the stage that the command line names; returns the exit status."""
    try:
        binding = Binding.parse(sys.argv[1:] if words is None else words)
        project = Project.here(binding.profile)
        _check_checkout(project)
        return run(project, binding)
    except (StageError, DeclarationError, OSError) as error:
        print(f"stage not started: {error}", file=sys.stderr)
        return FAILED


def run(project: Project, binding: Binding) -> int:
    """Run a stage under supervision and move its folder into place when it is whole."""
    out = project.home / folder(binding.slug, binding.stage)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    log_path = out.with_name(f"{out.name}.log")
    entry = _pipeline_entry(project, f"{binding.slug}-{binding.stage}")
    expected = _versions(project, entry)
    _check_versions(expected)
    budget = _budget(binding)
    live = out.with_name(f".{out.name}.history.jsonl")
    live.unlink(missing_ok=True)
    started = time.time()
    result = supervise.run(
        lambda: _child(project, binding, partial, live),
        log_path=log_path,
        budget_s=budget * 60,
        streamer=_streamer(project, binding, live),
    )
    name = f"{binding.slug}-{binding.stage}"
    if result.status == 0 and not (partial / SIDE).is_file():
        result = replace(result, outcome="failed", status=FAILED, last_error="the node ended its process before it returned")
    if result.status != 0:
        shutil.rmtree(partial, ignore_errors=True)
        live.unlink(missing_ok=True)
        print(f"{name}: {_reason(result, budget)}; log: {log_path.relative_to(project.home)}", file=sys.stderr)
        return {"over-budget": OVER_BUDGET, "orphaned": ORPHANED}.get(result.outcome, FAILED)
    side = read_json(partial / SIDE)
    (partial / SIDE).unlink()
    _move_into_place(partial, out)
    live.unlink(missing_ok=True)
    record = RunRecord(
        stage=name,
        code=_digests(project, entry),
        params=_params_of(project, entry),
        versions=expected,
        metrics_sha256=RunRecord.digest(_metrics_path(out)),
        seconds=round(result.seconds, 3),
        cpu_seconds=round(result.cpu_seconds, 3),
        peak_gib=round(result.peak_bytes / 2**30, 3),
        started_at=round(started, 3),
        seed=side["seed"],
        mlflow_run_id=result.stream_id,
    )
    timings = {"seconds": record.seconds, "cpu_seconds": record.cpu_seconds, "peak_memory_gib": record.peak_gib, **side["timings"]}
    write_json(out.with_name(f"{out.name}.timings.json"), timings)
    record.write(out)
    print(f"{name}: done in {result.seconds:.1f} s, peak {record.peak_gib:.2f} GiB", file=sys.stderr)
    return 0


def call_node(node: str, values: Mapping[str, Any], inputs: Inputs, out: Path, log: Any, *, metrics_name: str = "metrics.json") -> Metrics:
    """Import a node, validate its parameters, run it and write its metrics: all that a stage is, without supervision.

    Raises:
        StageError: if parameters are refused, a need's folder is missing, or the node breaks the contract.
    """
    from pydantic import ValidationError

    for need, where in inputs.items():
        if not where.is_dir():
            raise StageError(f"the folder of need {need!r}, {where}, is missing; run its stage first (`dvc repro` does)")
    try:
        params = params_type(node)(**values)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, p['loc'])) or 'parameters'}: {p['msg']}, got {p['input']!r}" for p in error.errors())
        raise StageError(f"{PARAMS}: {problems}") from None
    metrics = load_node(node)(params, inputs, out, log)
    write_metrics(out / metrics_name, metrics, node)
    return metrics


def load_node(node: str) -> Node:
    """The function that `module:function` names.

    Raises:
        StageError: if it is not there.
    """
    module, _, function = node.partition(":")
    try:
        return typing.cast(Node, getattr(importlib.import_module(module), function))
    except AttributeError:
        raise StageError(f"{module} has no function {function!r}; correct the node in flows/ and run `papers sync`") from None


def params_type(node: str) -> type[Params]:
    """The parameter model of a node, from the annotation of its first argument.

    Raises:
        StageError: if the annotation is not a `Params` model.
    """
    function = load_node(node)
    module = sys.modules[function.__module__]
    first = next(iter(function.__annotations__.values()), None)
    model = getattr(module, first, None) if isinstance(first, str) else first
    if not (isinstance(model, type) and issubclass(model, Params)):
        raise StageError(f"{node}: its first argument must be annotated with a Params model, got {first!r}")
    return model


def _child(project: Project, binding: Binding, partial: Path, live: Path) -> int:
    metrics_name = "speed.json" if binding.stage == "evaluate-speed" else "metrics.json"
    inputs = Inputs({need: project.home / where for need, where in binding.needs.items()})
    declared = _declared_name(binding)
    from flows.engine.plan import params_path

    values = {**(section(project.root, params_path(binding.slug, binding.profile, declared)) or {}), **binding.fixed}
    if binding.profile == "smoke":
        os.environ.setdefault("PAPERS_THREADS", "1")  # seconds of work: a pool would spend more on starting
    try:
        with StageLog(partial, live) as log:
            call_node(binding.node, values, inputs, partial, log, metrics_name=metrics_name)
    except StageError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except Exception as error:
        traceback.print_exc()
        print(f"error: {type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return FAILED
    write_json(partial / SIDE, {"timings": log.timings, "seed": values.get("seed")})
    return 0


def _declared_name(binding: Binding) -> str:
    """The stage's name without the fan-out values, under which its parameters stand."""
    name = binding.stage
    for value in reversed(list(binding.fixed.values())):
        name = name.removesuffix(f"-{value}")
    return name


def _budget(binding: Binding) -> float:
    """Minutes, from the declaration; a stage that is not declared (any more) gets what the gpu profile gets."""
    from flows.engine import registry
    from flows.engine.declare import GPU_BUDGET_MIN

    try:
        if binding.slug == "shared":
            return registry.shared_stages()[_declared_name(binding)].budget(binding.profile)
        return registry.load(binding.slug).stage(binding.stage).budget(binding.profile)
    except (KeyError, ModuleNotFoundError):
        return GPU_BUDGET_MIN


def _reason(result: supervise.Result, budget: float) -> str:
    if result.outcome == "over-budget":
        return f"stopped, over its budget of {budget:g} min (raise budget_min in flows/, or lower its parameters)"
    if result.outcome == "orphaned":
        return "stopped, because the dvc that started it has ended"
    if result.outcome == "stopped":
        return "stopped by a signal"
    return result.last_error or f"failed with exit status {result.status}"


def _check_checkout(project: Project) -> None:
    """Refuse to run one checkout's pipeline with another checkout's code."""
    here = Path(__file__).resolve().parents[2]
    if here != project.root:
        raise StageError(
            f"this is {project.root}, but the code comes from {here}; start dvc from the checkout's own .venv, or use `papers run`"
        )


def _pipeline_entry(project: Project, name: str) -> dict[str, Any]:
    path = project.home / "dvc.yaml"
    stages = (read_mapping(path) if path.is_file() else {}).get("stages")
    entry = stages.get(name) if isinstance(stages, dict) else None
    if not isinstance(entry, dict):
        raise StageError(f"{path} has no stage {name!r}; run `papers sync --profile {project.profile}`")
    return entry


def _digests(project: Project, entry: dict[str, Any]) -> dict[str, str]:
    from flows.engine.record import md5

    return {dep: md5(project.home / dep) for dep in entry.get("deps", []) if dep.endswith(".py")}


def _tracked(project: Project, entry: dict[str, Any], file: str) -> list[str]:
    keys: list[str] = []
    for item in entry.get("params", []):
        if isinstance(item, dict):
            keys += item.get(f"{project.up}{file}", [])
        elif file == PARAMS and not project.up:
            keys.append(item)
    return keys


def _params_of(project: Project, entry: dict[str, Any]) -> dict[str, Any]:
    return {key: section(project.root, tuple(key.split("."))) for key in _tracked(project, entry, PARAMS)}


def _versions(project: Project, entry: dict[str, Any]) -> dict[str, str]:
    keys = _tracked(project, entry, ENVIRONMENT)
    if not keys:
        return {}
    versions = read_mapping(project.root / ENVIRONMENT)
    if absent := [key for key in keys if key not in versions]:
        raise StageError(f"{ENVIRONMENT} has no {', '.join(absent)}; run `papers sync`")
    return {key: str(versions[key]) for key in keys}


def _check_versions(expected: dict[str, str]) -> None:
    from flows.engine.environment import disagreements

    wrong = disagreements(expected)
    if wrong:
        seen = ", ".join(f"{name} {found} (the lock says {expected[name]})" for name, found in wrong.items())
        raise StageError(f"installed packages are not those of requirements.lock: {seen}; run `make setup`")


def _streamer(project: Project, binding: Binding, live: Path) -> list[str]:
    return [sys.executable, "-m", "flows.engine.stream", f"{binding.profile}/{binding.slug}/{binding.stage}", str(live)]


def _metrics_path(out: Path) -> Path:
    path = out / "metrics.json"
    return path if path.is_file() else out / "speed.json"


def _move_into_place(partial: Path, out: Path) -> None:
    if out.exists():
        old = out.with_name(f".{out.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        out.rename(old)
        partial.rename(out)
        shutil.rmtree(old)
    else:
        partial.rename(out)


if __name__ == "__main__":
    raise SystemExit(main())
