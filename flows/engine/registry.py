"""Which papers there are: every module of `flows/` that declares one, and the stages that they share."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from pathlib import Path

from flows.engine.declare import DeclarationError, Paper, Stage

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
    stages: list[Stage] = importlib.import_module("flows.shared").stages
    return {stage.name: stage for stage in stages}


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
    module = importlib.import_module(f"flows.{slug}")
    declared = getattr(module, "paper", None)
    if not isinstance(declared, Paper):
        raise DeclarationError.of(f"flows/{slug}.py", "declares no paper, `paper` is", declared, hint="write paper = Paper(...)")
    if declared.slug != slug:
        raise DeclarationError.of(
            f"flows/{slug}.py", "declares a paper called", declared.slug, hint=f"call it {slug!r}, or rename the file"
        )
    return declared
