"""The command line of DVC, and its lock file: actions by subprocess, reading by parsing.

DVC's own Python interface is neither promised stable nor thread-safe, so nothing here imports it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from flows.engine.declare import DeclarationError
from flows.engine.project import Project, read_mapping

MESSAGE_LENGTH = 600
LOCK_MESSAGES = ("Unable to acquire lock", "is busy, it is being blocked by")


class DvcError(RuntimeError):
    """A dvc command failed; `busy` tells the two lock messages, which are worth a retry, from all others."""

    def __init__(self, command: Sequence[str], status: int, output: str) -> None:
        errors = [line for line in output.splitlines() if line.startswith("ERROR")]
        own = [line.strip() for line in output.splitlines() if line.strip() and line not in errors]
        if any("exited with" in line for line in errors):
            errors = [*own[-2:], *errors]  # the last words of what DVC ran say why
        words = " ".join(errors or output.split())
        super().__init__(f"`{' '.join(command)}` failed ({status}): {words[:MESSAGE_LENGTH] or 'no output'}")
        self.status, self.output = status, output

    @property
    def busy(self) -> bool:
        """Whether another dvc held a lock."""
        return any(message in self.output for message in LOCK_MESSAGES)


def environment(root: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment for a dvc started by us: this interpreter's folder first, this checkout's code, quiet and offline."""
    here = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": os.pathsep.join([here, os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")])),
        "DVC_NO_ANALYTICS": "1",
        "DO_NOT_TRACK": "1",
        **(extra or {}),
    }


def command(project: Project, *words: str) -> list[str]:
    """A dvc command for a profile, that waits for DVC's lock instead of dying of it."""
    place = [] if project.profile == "cpu" else ["--cd", project.profile]
    return [sys.executable, "-m", "dvc", "--wait-for-lock", *place, *words]


def run(project: Project, *words: str, extra: Mapping[str, str] | None = None) -> str:
    """Run a dvc command to its end and return its standard output.

    Raises:
        DvcError: if it fails.
    """
    made = command(project, *words)
    done = subprocess.run(made, cwd=project.root, env=environment(project.root, extra), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DvcError(["dvc", *words], done.returncode, done.stdout + done.stderr)
    return done.stdout


def status(project: Project) -> dict[str, list[Any]]:
    """`dvc status --json`: directly changed stages with what changed.

    Raises:
        DvcError: also when a stage is running, whatever flag is given (`busy` is then true).
    """
    text = run(project, "status", "--json")
    found: dict[str, list[Any]] = json.loads(text or "{}")
    return found


def lock(project: Project) -> dict[str, dict[str, Any]]:
    """Entries of `dvc.lock` by step; empty when there is none yet."""
    path = project.home / "dvc.lock"
    if not path.is_file():
        return {}
    return _lock(path, path.stat().st_mtime_ns)


@cache
def _lock(path: Path, _mtime_ns: int) -> dict[str, dict[str, Any]]:
    stages = read_mapping(path).get("stages") or {}
    if not isinstance(stages, dict) or not all(_is_entry(entry) for entry in stages.values()):
        raise DeclarationError(f"{path}: not as DVC writes it; restore it (`git checkout {path.name}`), then `dvc repro`")
    return stages


def _is_entry(entry: Any) -> bool:
    """Whether a stage's entry has the form that DVC gives it."""
    if not isinstance(entry, dict) or not isinstance(entry.get("params", {}), dict):
        return False
    lists = [entry.get("deps", []), entry.get("outs", [])]
    whole = all(isinstance(items, list) and all(isinstance(i, dict) and "path" in i for i in items) for items in lists)
    return whole and all(isinstance(values, dict) for values in entry.get("params", {}).values())


def digest(entry: Mapping[str, Any], part: str) -> str:
    """Digest of a lock entry: `deps` (command, dependencies and parameters) or `outs`."""
    import hashlib

    if part == "outs":
        content: Any = sorted((out["path"], out.get("md5")) for out in entry.get("outs", []))
    else:
        content = [entry.get("cmd"), sorted((d["path"], d.get("md5")) for d in entry.get("deps", [])), entry.get("params", {})]
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
