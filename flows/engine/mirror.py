"""The mirror: MLflow shows what DVC holds, each stage's execution as exactly one run.

A pass compares the stages of the workspace with the runs in MLflow and logs what is missing. A run counts once its status is
FINISHED, which is written last; what a pass that was killed left behind is deleted, and logged again, by the next one. So a pass may
be repeated at any time, by anyone, and after DVC executed a stage, restored it from its cache or pulled it from a colleague.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flows.engine import claims_table, dvc, plan, snapshot, tracking
from flows.engine.declare import PROFILES
from flows.engine.plan import Step
from flows.engine.project import Project
from flows.engine.record import RunRecord
from flows.engine.snapshot import Key, Snapshot
from flows.engine.tracking import BY_MIRROR, BY_STREAM, EXECUTION, KIND, NOTE, PARENT, STAGE, WRITER, Point

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run

POINTS_PER_CURVE = 2000
RUNNING, FINISHED, KILLED = "RUNNING", "FINISHED", "KILLED"


@dataclass(frozen=True)
class Pass:
    """What a pass found and did.

    Attributes:
        stages: digests of every stage that MLflow now shows, by name.
        logged: identifiers of the runs that were new, by stage.
        adopted: those among them that were streamed while they ran.
    """

    stages: Mapping[str, Mapping[str, str]]
    logged: Mapping[str, str] = field(default_factory=dict)
    adopted: tuple[str, ...] = ()


def mirror(project: Project, only: Iterable[str] = (), flow_run_id: str = "") -> Pass:
    """Bring MLflow up to date with the workspace.

    Args:
        project: checkout and profile.
        only: slugs, to look at these papers and the shared stages that they use.
        flow_run_id: the Prefect flow run; by default the one that this process belongs to.

    Raises:
        TrackingError: if the database cannot be used.
    """
    held = _held(project, list(only))
    client = tracking.connect(project)
    with tracking.locked(project, "mirror"):
        known = _Known.of(client, project)
        for leftover in known.leftovers:
            client.delete_run(leftover.info.run_id)
        new = {name: (step, entry) for name, (step, entry) in held.items() if snapshot.key_of(name, entry) not in known.finished}
        taken = [snapshot.take(project, step, entry) for step, entry in new.values()]
        writer = _Writer(client, project, known, flow_run_id or tracking.flow_run_id())
        for paper in sorted({shot.paper for shot in taken} | (known.open_parents.keys() & {s.slug for s, _ in held.values()})):
            writer.execution(paper, [shot for shot in taken if shot.paper == paper])
        _settle_streams(client, project, held, known, set(writer.adopted))
    digests = {name: dict(zip(("deps", "outs"), snapshot.key_of(name, entry)[1:], strict=True)) for name, (_, entry) in held.items()}
    return Pass(digests, writer.logged, tuple(writer.adopted))


def rebuild(project: Project) -> Pass:
    """Delete the database and all artifacts, and mirror again, from DVC's outputs alone, every profile that has some."""
    with tracking.locked(project, "mirror"), tracking.locked(project, "initialise"):
        for path in project.database.parent.glob("*"):
            if path.is_dir():
                shutil.rmtree(path)
            elif not path.name.endswith((".lock", ".json")):
                path.unlink()
    others = [Project(project.root, profile) for profile in PROFILES if profile != project.profile]
    for other in others:
        if dvc.lock(other):
            mirror(other)
    return mirror(project)


def _held(project: Project, only: list[str]) -> dict[str, tuple[Step, dict[str, Any]]]:
    """Stages whose recorded outputs are in the workspace, with their lock entries."""
    locked = dvc.lock(project)
    steps = [step for step in plan.build(project, only).values() if step.kind == "node"]
    return {step.name: (step, locked[step.name]) for step in steps if snapshot.present(project, step, locked.get(step.name))}


@dataclass(frozen=True)
class _Known:
    """The runs that MLflow holds for a profile, by what they mean to a pass."""

    finished: dict[Key, str]
    leftovers: list[Run]
    open_parents: dict[str, str]
    streamed: dict[str, Run]

    @classmethod
    def of(cls, client: MlflowClient, project: Project) -> _Known:
        places = [e.experiment_id for e in tracking.experiments(client).values()]
        known = cls({}, [], {}, {})
        for run in tracking.runs(client, places, f"tags.profile = '{project.profile}' AND tags.`{WRITER}` != ''"):
            tags, status = run.data.tags, run.info.status
            if status == FINISHED and tags.get(KIND) == STAGE:
                key = (tags.get("dvc.stage", ""), tags.get("dvc.deps_md5", ""), tags.get("dvc.outs_md5", ""))
                known.finished.setdefault(key, run.info.run_id)
            elif tags[WRITER] == BY_STREAM:
                known.streamed[run.info.run_id] = run
            elif status == RUNNING and tags.get(KIND) == STAGE:
                known.leftovers.append(run)
            elif status == RUNNING:
                known.open_parents[tags.get("paper", "")] = run.info.run_id
        return known


class _Writer:
    """Writes the executions of one pass."""

    def __init__(self, client: MlflowClient, project: Project, known: _Known, flow_run_id: str) -> None:
        self._client, self._project, self._known = client, project, known
        self._common = {"profile": project.profile, WRITER: BY_MIRROR, **snapshot.git_state(project.root)}
        if flow_run_id:
            self._common["prefect.flow_run_id"] = flow_run_id
        self.logged: dict[str, str] = {}
        self.adopted: list[str] = []

    def execution(self, paper: str, shots: list[Snapshot]) -> None:
        """One paper's new stages under one parent; the parent is finished last."""
        place = tracking.experiment(self._client, self._project, paper)
        self._client.set_experiment_tag(place, NOTE, claims_table.about(paper))
        tags = {**self._common, "paper": paper, "scale": snapshot.scale(self._project, paper)}
        parent = self._known.open_parents.get(paper) or self._new_parent(place, paper, shots, tags)
        for shot in shots:
            self.logged[shot.name] = self._stage(place, parent, shot, tags)
        rows = claims_table.claims(self._project, paper)
        finishing: dict[str, str] = {}
        if rows:
            title = f"Claims of {paper}, {self._project.profile} profile"
            self._client.log_dict(parent, {"claims": rows}, "claims.json")
            self._client.log_text(parent, claims_table.as_html(title, rows), "claims.html")
            finishing[NOTE] = claims_table.as_markdown(rows)
        at = _ms(time.time())
        points = [Point(name, value, 0, at) for name, value in claims_table.numbers(rows).items()] if rows else []
        if shots:
            finishing["outcome"] = "executed" if any(s.outcome == "executed" for s in shots) else "restored"
        tracking.log(self._client, parent, metrics=points, tags=finishing)
        self._client.set_terminated(parent, FINISHED, end_time=max([at, *(_ms(s.ended_at) for s in shots)]))

    def _new_parent(self, place: str, paper: str, shots: list[Snapshot], tags: Mapping[str, str]) -> str:
        began = min(shot.started_at for shot in shots)
        name = f"{paper} {self._project.profile} {time.strftime('%Y-%m-%d %H:%M', time.localtime(began))}"
        run = self._client.create_run(place, start_time=_ms(began), tags={**tags, KIND: EXECUTION}, run_name=name)
        return str(run.info.run_id)

    def _stage(self, place: str, parent: str, shot: Snapshot, tags: Mapping[str, str]) -> str:
        """One stage's run: a new one, or the one that was streamed. Its status, which makes it count, is written last."""
        own = {**tags, KIND: STAGE, PARENT: parent, "dvc.stage": shot.name, "outcome": shot.outcome}
        own |= {"dvc.deps_md5": shot.key[1], "dvc.outs_md5": shot.key[2], "dvc.cmd_md5": shot.cmd_md5}
        own |= {"mlflow.source.name": shot.node, "mlflow.source.type": "LOCAL", "mlflow.source.git.commit": tags["git.commit"]}
        if shot.seed is not None:
            own["seed"] = str(shot.seed)
        streamed = self._known.streamed.get(shot.streamed_as)
        if streamed:
            run_id = str(streamed.info.run_id)
            own[WRITER] = BY_STREAM  # until it is finished, the next pass may adopt it again
            tracking.log(self._client, run_id, tags=own)
            self.adopted.append(run_id)
        else:
            run_id = str(self._client.create_run(place, start_time=_ms(shot.started_at), tags=own, run_name=shot.name).info.run_id)
        tracking.log(self._client, run_id, metrics=list(_points(self._client, shot, streamed)), params=shot.params)
        if shot.inputs:
            self._client.log_inputs(run_id, datasets=[_dataset(i) for i in shot.inputs])
        for figure in shot.figures:
            self._client.log_artifact(run_id, str(figure), "figures")
        self._client.set_terminated(run_id, FINISHED, end_time=_ms(shot.ended_at))
        return run_id


def _points(client: MlflowClient, shot: Snapshot, streamed: Run | None) -> Iterator[Point]:
    """Curves (less what was streamed), then final metrics and timings.

    A final metric that shares its name with a curve is that curve's last value: it goes to the last step, unless it stands there.
    """
    at = _ms(shot.ended_at)
    curves = tracking.thin((Point(name, value, step, at) for step, name, value in shot.curves()), POINTS_PER_CURVE)
    there: set[tuple[str, int, float]] = set()
    for name in streamed.data.metrics if streamed else ():
        there.update((m.key, m.step, m.value) for m in client.get_metric_history(streamed.info.run_id, name))  # type: ignore[union-attr]
    last: dict[str, Point] = {}
    for point in curves:
        key = tracking.key(point.name)
        last[key] = max(last.get(key, point), point, key=lambda p: p.step)
        mark = (key, point.step, point.value)
        if mark not in there:
            there.add(mark)
            yield point
    for name, value in (*shot.metrics.items(), *((f"timing.{k}", v) for k, v in shot.timings.items())):
        before = last.get(tracking.key(name))
        if before is None or before.value != value:
            yield Point(name, value, before.step if before else 0, at + 1 if before else at)


def _dataset(given: snapshot.Input) -> DatasetInput:
    import json

    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = json.dumps({"uri": given.folder, "dvc_md5": given.md5})
    profile = json.dumps({"files": given.files, "bytes": given.size})
    name = given.folder.removeprefix("data/")
    dataset = Dataset(name=name, digest=given.md5[:36], source_type="local", source=source, profile=profile)
    return DatasetInput(dataset, [InputTag("mlflow.data.context", given.need), InputTag("dvc.md5", given.md5)])


def _settle_streams(client: MlflowClient, project: Project, held: Mapping[str, Any], known: _Known, adopted: set[str]) -> None:
    """Runs that were streamed and that no stage owns: of a stage that failed, or that made again what MLflow shows already."""
    left = {run_id: run for run_id, run in known.streamed.items() if run_id not in adopted}
    if not left:
        return
    for name, (step, entry) in held.items():
        record = RunRecord.read(project.home / step.folder)
        again = snapshot.key_of(name, entry) in known.finished
        if record and again and record.mlflow_run_id in left and record.matches(entry, project.home / step.metrics_file):
            client.delete_run(left.pop(record.mlflow_run_id).info.run_id)
    for run_id, run in left.items():
        if run.info.status == RUNNING and not _follower_lives(run.data.tags):
            tracking.log(client, run_id, tags={"outcome": "abandoned"})
            client.set_terminated(run_id, KILLED)


def _follower_lives(tags: Mapping[str, str]) -> bool:
    """Whether the process that streams a run still runs; one of another machine is given the benefit of the doubt."""
    import psutil

    if tags.get("stream.host") != socket.gethostname():
        return True
    try:
        return abs(psutil.Process(int(tags["stream.pid"])).create_time() - float(tags["stream.started"])) < 2.0
    except (psutil.Error, KeyError, ValueError):
        return False


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
