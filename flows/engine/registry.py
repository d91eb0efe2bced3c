"""Which papers there are: every module of `flows/` that declares one, and the stages that they share."""

from __future__ import annotations

import importlib
import sys
import traceback
from functools import cache
from pathlib import Path
from types import ModuleType

from flows.engine.declare import DeclarationError, Paper, Stage, validate_shared

NOT_PAPERS = ("__init__", "shared", "collection")


@cache
def papers() -> dict[str, Paper]:
    """All papers by slug, in alphabetical order.

    Raises:
        DeclarationError: if a module of `flows/` declares no paper, or one of another name.
    """
    found: dict[str, Paper] = {}
    for path in sorted(Path(__file__).parents[1].glob("*.py")):
        if path.stem not in NOT_PAPERS:
            found[path.stem] = load(path.stem)
    return found


def paper(slug: str) -> Paper:
    """One paper.

    Raises:
        DeclarationError: for an unknown slug, with the nearest one.
    """
    try:
        return papers()[slug]
    except KeyError:
        raise DeclarationError.of("papers", "unknown paper", slug, list(papers())) from None


@cache
def shared_stages() -> dict[str, Stage]:
    """The stages of `flows/shared.py` by name."""
    stages = getattr(imported("flows.shared"), "stages", None)
    if not isinstance(stages, list | tuple):
        raise DeclarationError.of("flows/shared.py", "declares no stages, `stages` is", stages, hint="write stages = [Stage(...)]")
    validate_shared(stages)
    return {stage.name: stage for stage in stages}


def imported(name: str) -> ModuleType:
    """A module of `flows/`.

    Raises:
        DeclarationError: if it cannot be imported, naming the file, the line and what is wrong there.
        ModuleNotFoundError: if there is no such module.
    """
    path = Path(__file__).parents[2].joinpath(*name.split(".")).with_suffix(".py")
    if not path.is_file():
        raise ModuleNotFoundError(f"no module {name}; there is no file {path}", name=name)
    try:
        return importlib.import_module(name)
    except DeclarationError:
        raise
    except Exception as error:
        seen = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else seen[-1].lineno if seen else None
        where = f"flows/{path.name}" + (f", line {line}" if line else "")
        what = error.msg if isinstance(error, SyntaxError) else error
        raise DeclarationError(f"{where}: cannot be imported ({type(error).__name__}: {what})") from error


def forget() -> None:
    """Read all declarations again, after files changed (used by `papers new` and tests)."""
    for cached in (papers, shared_stages):
        cached.cache_clear()
    for name in [m for m in sys.modules if m.startswith("flows.") and not m.startswith("flows.engine")]:
        del sys.modules[name]


def load(slug: str) -> Paper:
    """Import one paper's module without the others.

    Raises:
        DeclarationError: if it declares no paper, or one of another name.
        ModuleNotFoundError: if there is no such module.
    """
    module = imported(f"flows.{slug}")
    declared = getattr(module, "paper", None)
    if not isinstance(declared, Paper):
        raise DeclarationError.of(f"flows/{slug}.py", "declares no paper, `paper` is", declared, hint="write paper = Paper(...)")
    if declared.slug != slug:
        raise DeclarationError.of(
            f"flows/{slug}.py", "declares a paper called", declared.slug, hint=f"call it {slug!r}, or rename the file"
        )
    return declared
