"""Import closures by other means than the engine's: the standard library's `modulefinder`, which follows byte code."""

from __future__ import annotations

from functools import cache
from modulefinder import ModuleFinder
from pathlib import Path


@cache
def closure(root: Path, module: str) -> frozenset[str]:
    """First-party files that a module imports, transitively, function-level imports and package `__init__` files included."""
    finder = ModuleFinder(path=[str(root)])
    package = module.rpartition(".")[0]
    finder.import_hook(module, None, ["*"] if not package else None)
    finder.import_hook(module)
    return frozenset(
        str(Path(found.__file__).relative_to(root))
        for found in finder.modules.values()
        if found.__file__ and Path(found.__file__).is_relative_to(root)
    )


def expected_stale(root: Path, pipeline: dict, path: str) -> set[str]:
    """Stages whose node's closure holds `path`, from the commands in `dvc.yaml`, and everything downstream of them."""
    stages = pipeline["stages"]
    direct = set()
    for name, stage in stages.items():
        words = stage["cmd"].split()
        if words[2] == "flows.engine.stage" and path in closure(root, words[4].partition(":")[0]):
            direct.add(name)
    return with_downstream(stages, direct)


def with_downstream(stages: dict, names: set[str]) -> set[str]:
    """The stages and all that read their outputs, directly or not."""
    outs = {out if isinstance(out, str) else next(iter(out)): name for name, s in stages.items() for out in s.get("outs", [])}

    def maker(dep: str) -> str | None:
        return next((name for out, name in outs.items() if dep == out or dep.startswith(out + "/")), None)

    found = set(names)
    while True:
        more = {n for n, s in stages.items() if any(maker(d) in found for d in s.get("deps", []))} - found
        if not more:
            return found
        found |= more
