"""Workspaces as DVC leaves them, written by hand: a lock file, folders, records; no DVC and no node has to run."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.engine import plan, registry, tracking
from flows.engine.checks import at_least
from flows.engine.declare import Claim, Paper, Stage
from flows.engine.plan import Step
from flows.engine.project import Project, results
from flows.engine.record import RunRecord
from flows.engine.tracking import KIND, STAGE
from tasks.common.formats import write_json, write_parquet

NODE = "tasks.common.statistics:summarise"
PNG = b"\x89PNG\r\n\x1a\n"


class Workspace:
    """A checkout with made-up stages; every `put` is an execution that DVC recorded.

    Args:
        root: where it is to be.
        profile: whose stages are put.
        database: an empty MLflow database to start with.
    """

    def __init__(self, root: Path, profile: str = "cpu", database: Path | None = None) -> None:
        self.root = root
        (root / "flows").mkdir(parents=True, exist_ok=True)
        self.project = Project(root, profile)  # type: ignore[arg-type]
        if database:
            self.project.database.parent.mkdir()
            shutil.copyfile(database, self.project.database)
        self.steps: dict[str, Step] = {}
        self.values: dict[str, Any] = {}
        self.entries: dict[str, Any] = {}
        (root / "params.yaml").touch()

    def put(
        self,
        slug: str,
        stage: str,
        *,
        metrics: Mapping[str, float | None] | None = None,
        params: Mapping[str, Any] | None = None,
        needs: Sequence[str] = (),
        history: Sequence[tuple[int, str, float]] = (),
        figures: Sequence[str] = (),
        timings: Mapping[str, float] | None = None,
        streamed: str = "",
        executed: bool = True,
    ) -> Path:
        """Write a stage's outputs, its lock entry and, if it was executed here, the record of its run; returns its folder."""
        name, where, key = f"{slug}-{stage}", f"data/{slug}/{stage}", f"{slug}.{self.project.profile}.{stage}"
        bindings = [f"{need.split('/')[-1]}=data/{need}" for need in needs]
        cmd = " ".join(["python -m flows.engine.stage", f"{self.project.profile}/{slug}/{stage}", NODE, *bindings])
        out = self.project.home / where
        shutil.rmtree(out, ignore_errors=True)
        write_json(out / "metrics.json", metrics if metrics is not None else {f"{stage}.value": 1.0})
        if history:
            _write_history(out / "history.parquet", history)
        for figure in figures:
            (out / "figures").mkdir(exist_ok=True)
            (out / "figures" / f"{figure}.png").write_bytes(PNG)
        values, versions = dict(params or {"seed": 0}), {"numpy": "2.4.6"}
        self.steps[name] = Step(
            name, "node", slug, stage, cmd, params=(key,), packages=("numpy",), data=tuple(f"data/{n}" for n in needs), outs=(where,)
        )
        self.entries[name] = {
            "cmd": cmd,
            "deps": [{"path": f"data/{n}", "md5": self._digest(f"data/{n}"), "size": 10, "nfiles": 2} for n in needs],
            "params": {f"{self.project.up}params.yaml": {key: values}, f"{self.project.up}environment.yaml": versions},
            "outs": [{"path": where, "md5": self._digest(where)}],
        }
        self.values[key] = values
        self._write()
        if executed:
            digest = RunRecord.digest(out / "metrics.json")
            RunRecord(name, {}, {key: values}, versions, digest, 2.5, 2.0, 0.5, 1_700_000_000.0, seed=7, mlflow_run_id=streamed).write(out)
            write_json(out.with_name(f"{stage}.timings.json"), {"seconds": 2.5, **(timings or {})})
        else:
            RunRecord.path(out).unlink(missing_ok=True)
        return out

    def listing(self, folder: str, files: Mapping[str, str]) -> None:
        """Put DVC's listing of a folder into the cache: name -> md5."""
        digest = self._digest(folder)
        path = self.root / ".dvc/cache/files/md5" / digest[:2] / digest[2:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([{"relpath": name, "md5": md5} for name, md5 in files.items()]))

    def _digest(self, folder: str) -> str:
        """Something that changes when the folder's content does."""
        content = b"".join(p.read_bytes() for p in sorted((self.project.home / folder).rglob("*")) if p.is_file())
        return hashlib.md5(content).hexdigest() + ".dir"

    def _write(self) -> None:
        (self.project.home / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": self.entries}))
        nested: dict[str, Any] = {}
        for key, values in self.values.items():
            slug, profile, stage = key.split(".")
            nested.setdefault(slug, {}).setdefault(profile, {})[stage] = values
        (self.root / "params.yaml").write_text(yaml.safe_dump(nested))
        (self.root / "environment.yaml").write_text("numpy: '2.4.6'\n")


def declare(monkeypatch: pytest.MonkeyPatch, *workspaces: Workspace) -> None:
    """Let the engine see these workspaces' stages, and a paper `alpha` with one claim on `ours`."""
    claim = Claim("large", "It is large | very.", "more than 1", at_least("ours", 1.0), scale="toy", why_scale="a number is a number")
    alpha = Paper("alpha", "Alpha", "0000.00000", [Stage("train", NODE, metrics=["ours"])], claims=[claim])

    def build(project: Project, only: Sequence[str] = ()) -> dict[str, Step]:
        steps = {n: s for w in workspaces if w.project == project for n, s in w.steps.items()}
        return {n: s for n, s in steps.items() if not only or s.slug in only}

    monkeypatch.setattr(plan, "build", build)
    monkeypatch.setattr(registry, "papers", lambda: {"alpha": alpha})


def alpha(root: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace with one paper of two stages, and a copy of a database."""
    made = Workspace(root, database=database)
    history = [(step, "loss", 1.0 / (step + 1)) for step in range(0, 50, 5)]
    made.put("alpha", "prepare", metrics={"rows": 4})
    made.put("alpha", "train", metrics={"ours": 3.5, "none": None}, needs=["alpha/prepare"], history=history, figures=["line"],
             params={"lr": 0.1, "net": {"width": 8, "layers": [1, 2]}}, timings={"steps_per_s": 4.0})  # fmt: skip
    write_json(made.root / results("alpha"), {"stages": {"alpha-train": {"ours": 3.5}}})
    declare(monkeypatch, made)
    return made


def runs(project: Project, kind: str = STAGE, where: str = "") -> list[Any]:
    """Runs in MLflow, oldest first."""
    client = tracking.connect(project)
    places = [e.experiment_id for e in tracking.experiments(client).values()]
    return tracking.runs(client, places, f"tags.`{KIND}` = '{kind}'" + (f" AND {where}" if where else ""))


def stage_run(project: Project, name: str) -> Any:
    """The one run of a stage."""
    (run,) = runs(project, where=f"tags.`dvc.stage` = '{name}'")
    return run


def _write_history(path: Path, history: Sequence[tuple[int, str, float]]) -> None:
    import pandas as pd

    frame = pd.DataFrame(list(history), columns=["step", "name", "value"])
    write_parquet(path, frame.astype({"step": "int64", "value": "float64"}))
