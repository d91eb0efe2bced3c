"""Edits that change no result: comments, docstrings, formatting. They are accepted with `dvc commit` instead of a training run.

A stage qualifies when all that changed for it is modules whose syntax tree, docstrings aside, equals that of the version in git's
history whose MD5 stands in `dvc.lock`, and when its inputs and outputs are in the workspace, unedited. The limit of the method: a
node that reads its own docstring at run time would go unseen.
"""

from __future__ import annotations

import ast
import hashlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from flows.engine import dvc
from flows.engine.plan import Step
from flows.engine.project import Project
from flows.engine.record import md5
from flows.engine.staleness import Stale

HISTORY_DEPTH = 200


def accept(project: Project, stale: Mapping[str, Stale]) -> list[str]:
    """Commit every stale step that qualifies, upstream first.

    Args:
        project: checkout and profile.
        stale: stale steps in topological order, as `stale_steps` finds them.

    Returns:
        Names of the steps that are up to date now without having run; steps that were stale only because of them are among them.
    """
    candidates = [s.step for s in stale.values() if s.step.kind == "node" and s.reasons and _is_cosmetic(project, s)]
    if not candidates:
        return []
    changed = dvc.status(project)
    accepted: list[str] = []
    for name, item in stale.items():
        if not all(above in accepted for above in item.because_of):
            continue
        if item.step in candidates:
            if _workspace_is_whole(project, item.step, changed.get(name, [])):
                dvc.run(project, "commit", "-f", name)
                accepted.append(name)
        elif not item.reasons:
            accepted.append(name)
    return accepted


def same_tree(before: str, now: str) -> bool:
    """Whether two sources have the same syntax tree, docstrings aside; False if one does not parse."""
    try:
        return _dump(before) == _dump(now)
    except SyntaxError:
        return False


def _is_cosmetic(project: Project, stale: Stale) -> bool:
    locked = {d["path"]: d.get("md5") for d in dvc.lock(project).get(stale.step.name, {}).get("deps", [])}
    changed = [path for path in stale.step.code if (project.home / path).is_file() and md5(project.home / path) != locked.get(path)]
    only_modules = len(stale.reasons) == len(changed) and all(reason.kind == "module" for reason in stale.reasons)
    return only_modules and all(_file_is_cosmetic(project, path, str(locked.get(path))) for path in changed)


def _file_is_cosmetic(project: Project, path: str, digest: str) -> bool:
    relative = path.removeprefix(project.up)
    now = (project.root / relative).read_text(encoding="utf-8")
    for text in _versions(project.root, relative):
        if hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() == digest:
            return same_tree(text, now)
    return False


def _versions(root: Path, path: str) -> Iterator[str]:
    """The file's versions in git, newest first."""
    log = subprocess.run(
        ["git", "log", f"-{HISTORY_DEPTH}", "--format=%H", "--", path], cwd=root, capture_output=True, text=True, check=False
    )
    for commit in log.stdout.split():
        shown = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=root, capture_output=True, text=True, check=False)
        if shown.returncode == 0:
            yield shown.stdout


def _workspace_is_whole(project: Project, step: Step, changed: list[object]) -> bool:
    edited = any(isinstance(change, dict) and "changed outs" in change for change in changed)
    return not edited and all((project.home / path).exists() for path in (*step.data, *step.outs))


def _dump(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
            and isinstance(body[0].value.value, str)
        ):
            del body[0]
    return ast.dump(tree)
