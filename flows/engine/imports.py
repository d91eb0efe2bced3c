"""What a module depends on: its first-party import closure and the third-party packages that the closure imports."""

from __future__ import annotations

import re
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from flows.engine.declare import DeclarationError

if TYPE_CHECKING:
    from grimp import ImportGraph

FIRST_PARTY = ("flows", "tasks")
# Packages whose versions count wherever a package that requires them is imported, since they do its arithmetic or its files.
NUMERICAL = ("numpy", "scipy", "torch", "numba", "pandas", "scikit-learn", "pyarrow")


@cache
def import_graph(root: Path) -> ImportGraph:
    """The import graph of the checkout at `root`, function-level imports included."""
    import sys

    import grimp

    sys.path.insert(0, str(root))
    try:
        return grimp.build_graph(*FIRST_PARTY, include_external_packages=True, cache_dir=None)
    except (grimp.exceptions.SourceSyntaxError, UnicodeDecodeError, SyntaxError) as error:
        raise DeclarationError(f"a module of flows/ or tasks/ is not Python: {_where(root, error)}") from error
    finally:
        sys.path.remove(str(root))


def _where(root: Path, error: Exception) -> str:
    """What is wrong, with the files that cannot be read where the message names none."""
    if not isinstance(error, UnicodeDecodeError):
        return str(error)
    paths = (path for name in FIRST_PARTY for path in sorted((root / name).rglob("*.py")))
    return f"{', '.join(str(p.relative_to(root)) for p in paths if not _is_utf8(p))}: {error}"


def _is_utf8(path: Path) -> bool:
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


def closure(root: Path, module: str) -> tuple[str, ...]:
    """Files (relative to `root`) of a module, all it imports transitively, and the `__init__` of every package on the way.

    Raises:
        ModuleNotFoundError: if the module is not in the checkout.
    """
    graph = import_graph(root)
    if module not in graph.modules:
        raise ModuleNotFoundError(f"module {module} is not in {root}; is there a file {module.replace('.', '/')}.py?")
    modules = {module} | {m for m in graph.find_upstream_modules(module) if m.split(".")[0] in FIRST_PARTY}
    packages = {".".join(m.split(".")[:depth]) for m in modules for depth in range(1, m.count(".") + 1)}
    return tuple(sorted(_file(root, m) for m in modules | packages))


def third_party(root: Path, module: str) -> tuple[str, ...]:
    """Names, as in `environment.yaml`, of the packages that the closure of a module imports, and of the numerical ones under them."""
    graph = import_graph(root)
    first = {module} | {m for m in graph.find_upstream_modules(module) if m.split(".")[0] in FIRST_PARTY}
    imported = {name.split(".")[0] for m in first for name in graph.find_modules_directly_imported_by(m)} - set(FIRST_PARTY)
    direct = {normal(d) for name in imported for d in _distributions().get(name, ())}
    below = {n for n in NUMERICAL if any(n in _requirements(d) for d in direct)}
    return tuple(sorted(direct | below))


def normal(name: str) -> str:
    """Normalised name of a distribution, without dots (DVC reads a dot in a key as nesting)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _file(root: Path, module: str) -> str:
    base = Path(*module.split("."))
    package = base / "__init__.py"
    return str(package if (root / package).is_file() else base.with_suffix(".py"))


@cache
def _distributions() -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())


@cache
def _requirements(distribution: str) -> frozenset[str]:
    """Everything that a distribution requires, transitively, extras left out."""
    from packaging.requirements import Requirement

    seen: set[str] = set()
    waiting = [distribution]
    while waiting:
        try:
            lines = metadata.requires(waiting.pop()) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, lines):
            name = normal(requirement.name)
            if name not in seen and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
                seen.add(name)
                waiting.append(name)
    return frozenset(seen)
