"""Show a long stage's curves in MLflow while it runs: `python -m flows.engine.stream <profile>/<slug>/<stage> <live.jsonl>`.

The stage's supervisor starts this after half a minute. It opens a run, follows the file to which the stage appends its history,
and ends with the stage: on TERM (the stage is done) it writes what is left and prints the run's identifier, so that the mirror can
adopt the run; on INT (the stage failed), or when its supervisor is gone, the run ends as FAILED. Whatever goes wrong here stays here:
no message, exit status 0.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

from flows.engine import tracking
from flows.engine.project import Project
from flows.engine.tracking import BY_STREAM, KIND, STAGE, WRITER, Point

if TYPE_CHECKING:
    from mlflow import MlflowClient

BATCH_S = 2.0
POLL_S = 0.2
POINTS_PER_BATCH = 100
NICENESS = 10


class Follower:
    """What is new in a file of history rows, one JSON object per line (`step`, `at`, values by name); the file may come later."""

    def __init__(self, live: Path) -> None:
        self._live = live
        self._read = 0

    def points(self) -> list[Point]:
        """The values of all whole lines since the last call; a line that is not such a row is passed over."""
        if not self._live.is_file():
            return []
        with self._live.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        found: list[Point] = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                row = json.loads(line)
                step, at = int(row.pop("step")), int(row.pop("at") * 1000)
                found += [Point(str(name), float(value), step, at) for name, value in row.items()]
        return found


class Stream:
    """One run that is written while its stage runs."""

    def __init__(self, project: Project, slug: str, stage: str, live: Path) -> None:
        self._project, self._slug, self._stage, self._live = project, slug, stage, live
        self._supervisor = os.getppid()
        self._ended: Literal["", "done", "failed"] = ""
        self._opening = False

    def listen(self) -> None:
        """From now on, TERM says that the stage is done and INT that it failed."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def follow(self) -> str:
        """Write until the stage has ended; returns the run's identifier for adoption, empty if the stage failed."""
        client = tracking.connect(self._project)
        place = tracking.experiment(client, self._project, self._slug)
        self._opening = True
        run_id = self._open(client, place)
        follower = Follower(self._live)
        while not self._ended:
            self._write(client, run_id, follower)
            self._wait(BATCH_S)
        self._write(client, run_id, follower)
        if self._ended == "done":
            return run_id
        client.set_terminated(run_id, "FAILED")
        return ""

    def _open(self, client: MlflowClient, place: str) -> str:
        import psutil

        tags = {
            KIND: STAGE,
            WRITER: BY_STREAM,
            "paper": self._slug,
            "profile": self._project.profile,
            "dvc.stage": f"{self._slug}-{self._stage}",
            "stream.host": socket.gethostname(),
            "stream.pid": str(os.getpid()),
            "stream.started": f"{psutil.Process().create_time():.2f}",
        }
        if flow_run := tracking.flow_run_id():
            tags["prefect.flow_run_id"] = flow_run
        return str(client.create_run(place, tags=tags, run_name=f"{self._slug}-{self._stage}").info.run_id)

    def _write(self, client: MlflowClient, run_id: str, follower: Follower) -> None:
        points = tracking.thin(follower.points(), POINTS_PER_BATCH)
        if points:
            with contextlib.suppress(Exception):  # the mirror adds what did not get through
                tracking.log(client, run_id, metrics=points)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._ended and time.monotonic() < until:
            time.sleep(POLL_S)
            if os.getppid() != self._supervisor:
                self._ended = "failed"

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._opening:
            os._exit(0)  # there is no run yet, and the stage must not wait for one
        self._ended = "done" if number == signal.SIGTERM else "failed"


def main(words: list[str] | None = None) -> int:
    """Follow the stage that the command line names; never fails."""
    with contextlib.suppress(Exception):
        where, live = sys.argv[1:] if words is None else words
        profile, slug, stage = where.split("/")
        stream = Stream(Project.here(profile), slug, stage, Path(live))
        stream.listen()
        os.nice(NICENESS)
        run_id = stream.follow()
        if run_id:
            print(run_id, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
