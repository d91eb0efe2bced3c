"""Dependencies point one way, and modules stay small."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TASKS = sorted((ROOT / "tasks").rglob("*.py"))
MODULES = sorted([*(ROOT / "flows").rglob("*.py"), *TASKS])
FORBIDDEN = {"prefect", "dvc", "mlflow", "flows"}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", TASKS, ids=str)
def test_nodes_know_no_orchestrator_and_no_flow(path):
    assert not {name.split(".")[0] for name in imported(path)} & FORBIDDEN


@pytest.mark.parametrize("path", sorted((ROOT / "tasks/common").glob("*.py")), ids=str)
def test_common_knows_no_domain(path):
    assert not {n for n in imported(path) if n.startswith("tasks.") and not n.startswith("tasks.common")}


@pytest.mark.parametrize("path", [p for p in MODULES if p.name == "__init__.py"], ids=str)
def test_package_files_hold_one_docstring_and_nothing_else(path):
    body = ast.parse(path.read_text()).body
    assert len(body) == 1
    assert isinstance(body[0], ast.Expr)


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_modules_stay_under_400_lines_and_have_telling_names(path):
    assert len(path.read_text().splitlines()) <= 400
    assert path.stem not in {"utils", "helpers", "misc"}


@pytest.mark.parametrize("path", TASKS, ids=str)
def test_no_global_seeds_and_no_pickle(path):
    text = path.read_text()
    assert not re.search(r"np\.random\.seed|(?<!fork_rng)torch\.manual_seed|random\.seed\(", text)
    assert not re.search(r"^import pickle|pickle\.dump|torch\.save\(|joblib\.dump", text, re.M)
