"""The MLflow database: where it is, how it comes to be, and batched writing to it.

There is one database for all profiles, under one absolute address, so that no process ever makes a second one in its own
folder. It is made whole under a temporary name, by one process at a time: a first use by several would otherwise kill all but
one of them. Nothing here knows what is written; `mirror` and `stream` do.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flows.engine.project import Project

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

METRICS_PER_CALL, OTHERS_PER_CALL = 800, 100  # MLflow takes 100 parameters, 100 tags, and 1000 things in all
LONGEST_PARAM, LONGEST_TAG, LONGEST_KEY = 6000, 8000, 250
_PAGE = 1000

# What a run is (a stage, or an execution that holds stages), and who writes it (a mirror pass, or a stage that still runs).
KIND, STAGE, EXECUTION = "papers.kind", "stage", "execution"
WRITER, BY_MIRROR, BY_STREAM = "papers.writer", "mirror", "stream"
PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"
TRAINING_PAGES = {"mlflow.experimentKind": "custom_model_development"}  # which of its two sets of pages MLflow shows


class TrackingError(RuntimeError):
    """MLflow cannot be brought up to date; says what to do. Results are never affected."""


class Point(NamedTuple):
    """One value of one curve; `at` in milliseconds since 1970."""

    name: str
    value: float
    step: int
    at: int


def uri(project: Project) -> str:
    """The absolute address of the database."""
    return f"sqlite:///{project.database.resolve()}"


def artifacts(project: Project) -> Path:
    """The folder of all artifacts."""
    return project.database.resolve().parent / "artifacts"


@contextmanager
def locked(project: Project, name: str) -> Iterator[None]:
    """Hold a lock beside the database; the system frees it when the process ends, however it ends."""
    path = project.database.parent / f".{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def initialise(project: Project) -> None:
    """See to it that the database exists, complete and at home in this checkout; safe from any number of processes at once.

    After the checkout was moved or copied, the absolute places of artifacts in the database are rewritten.
    """
    with locked(project, "initialise"):
        if not project.database.is_file():
            _create(project)
        _come_home(project)


def connect(project: Project) -> MlflowClient:
    """A client of the database, which is made if need be.

    Raises:
        TrackingError: if the database cannot be used.
    """
    _quiet()
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        initialise(project)
        client = MlflowClient(tracking_uri=uri(project))
        client.search_experiments(max_results=1)
    except (MlflowException, sqlite3.Error, OSError) as error:
        raise TrackingError(
            f"{project.database} cannot be used ({' '.join(str(error).split())[:300]}); "
            f"if a newer MLflow made it outdated, `mlflow db upgrade {uri(project)}`; "
            f"else make it anew from DVC's outputs: `python -m flows.engine.track {project.profile} --rebuild`"
        ) from error
    return client


def experiments(client: MlflowClient) -> dict[str, Experiment]:
    """All experiments that are not deleted, by name."""
    return {e.name: e for e in client.search_experiments()}


def experiment(client: MlflowClient, project: Project, name: str) -> str:
    """Identifier of an experiment, which is made, or taken back from the bin, if need be."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            place = (artifacts(project) / name).as_uri()
            return str(client.create_experiment(name, artifact_location=place, tags=TRAINING_PAGES))
        except MlflowException:
            found = client.get_experiment_by_name(name)  # another process was quicker
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def runs(client: MlflowClient, experiment_ids: Sequence[str], where: str = "") -> list[Run]:
    """All runs that are not deleted, oldest first."""
    found: list[Run] = []
    token: str | None = None
    while experiment_ids:
        page = client.search_runs(list(experiment_ids), where, max_results=_PAGE, order_by=["attributes.start_time ASC"], page_token=token)
        found += page
        token = page.token
        if not token:
            break
    return found


def log(
    client: MlflowClient,
    run_id: str,
    *,
    metrics: Sequence[Point] = (),
    params: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
) -> None:
    """Write in as few calls as MLflow takes. Values that are not finite are left out."""
    from mlflow.entities import Metric, Param, RunTag

    numbers = [Metric(key(m.name), m.value, m.at, m.step) for m in metrics if math.isfinite(m.value)]
    texts = [Param(key(name), value[:LONGEST_PARAM]) for name, value in (params or {}).items()]
    labels = [RunTag(key(name), value[:LONGEST_TAG]) for name, value in (tags or {}).items()]
    calls = max(math.ceil(len(numbers) / METRICS_PER_CALL), math.ceil(max(len(texts), len(labels)) / OTHERS_PER_CALL))
    for call in range(calls):
        few = slice(call * OTHERS_PER_CALL, (call + 1) * OTHERS_PER_CALL)
        many = slice(call * METRICS_PER_CALL, (call + 1) * METRICS_PER_CALL)
        client.log_batch(run_id, metrics=numbers[many], params=texts[few], tags=labels[few])


def key(name: str) -> str:
    """A name that MLflow takes: other characters than letters, digits and `_-.: /` become underscores."""
    plain = re.sub(r"[^/\w.\- :]", "_", name)[:LONGEST_KEY]
    parts = [part for part in plain.split("/") if part not in ("", ".", "..")]
    return "/".join(parts) or "_"


def thin(points: Iterable[Point], most: int) -> list[Point]:
    """At most about `most` points per name, evenly spread, the last one kept; in the order in which they came."""
    by_name: dict[str, list[int]] = {}
    listed = list(points)
    for index, point in enumerate(listed):
        by_name.setdefault(point.name, []).append(index)
    kept: set[int] = set()
    for indices in by_name.values():
        kept.update(indices[:: math.ceil(len(indices) / most)])
        kept.add(indices[-1])
    return [listed[index] for index in sorted(kept)]


def flow_run_id() -> str:
    """Identifier of the Prefect flow run that this process belongs to, or nothing."""
    return os.environ.get("PREFECT__FLOW_RUN_ID", "")


def _quiet() -> None:
    """Settings that MLflow reads from the environment: no telemetry, and no connection kept to a file that may be replaced."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "NullPool")
    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _create(project: Project) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    temporary = project.database.resolve().with_name(".mlflow.db.new")
    for leftover in temporary.parent.glob(f"{temporary.name}*"):
        leftover.unlink()
    _quiet()
    store = SqlAlchemyStore(f"sqlite:///{temporary}", artifacts(project).as_uri())  # type: ignore[no-untyped-call]
    store.engine.dispose()
    temporary.replace(project.database)


def _come_home(project: Project) -> None:
    """Artifacts have absolute places in the database; they moved with the checkout, so their places do too."""
    home = artifacts(project).as_uri()
    with closing(sqlite3.connect(project.database, timeout=60)) as database:
        row = database.execute("SELECT artifact_location FROM experiments WHERE experiment_id = 0").fetchone()
        before = str(row[0]).removesuffix("/0") if row else home
        if before == home:
            return
        with database:
            for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
                database.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?",
                    (home, len(before) + 1, len(before) + 1, before + "/"),
                )
