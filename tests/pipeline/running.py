"""Servers, runs and processes for tests: `papers serve` for a toy checkout, Prefect's API, what is still alive."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import factory
import psutil


@dataclass(frozen=True)
class Served:
    """A checkout that is being served."""

    folder: Path
    prefect: str
    mlflow: str
    output: str

    @property
    def api(self) -> str:
        return f"{self.prefect}/api"

    def ask(self, path: str, **body: Any) -> Any:
        """POST to Prefect's API."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.api}/{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.load(reply)

    def flow_run(self, name: str) -> dict[str, Any]:
        """The newest run of a flow."""
        begun = {"state": {"type": {"not_any_": ["SCHEDULED"]}}}
        flow = {"name": {"any_": [name]}}
        found = self.ask("flow_runs/filter", flows=flow, flow_runs=begun, sort="START_TIME_DESC", limit=1)
        assert found, f"no run of flow {name}"
        return found[0]


ENDED_WITHIN_S = 180  # three servers, each of which may take its grace period twice


def serve(folder: Path) -> Iterator[Served]:
    """Serve a checkout until the generator is resumed, then interrupt it and see to it that nothing is left."""
    ports = [free_port(), free_port()]
    words = [sys.executable, "-m", "flows.engine.cli", "serve", "--prefect-port", str(ports[0]), "--mlflow-port", str(ports[1])]
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=factory.environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=_end_with_parent,
        text=True,
        start_new_session=True,
    )
    try:
        said = ""
        for line in process.stdout or ():
            said += line
            if line.startswith("Ctrl-C"):
                break
        assert process.poll() is None, said
        yield Served(folder, f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}", said)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(ENDED_WITHIN_S) == 0
        assert [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE] == []
        assert not (folder / ".prefect/server.json").exists()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(ENDED_WITHIN_S)


def outcomes(
    folder: Path, *names: str, setup: str = "", call: str = "runner.run(steps[name], print)", **extra: str
) -> dict[str, list[str]]:
    """Run steps of a checkout one by one, without Prefect; returns outcome and message of each."""
    code = (
        "import json, sys\n"
        "from flows.engine import plan\nfrom flows.engine.execute import Runner\nfrom flows.engine.project import Project\n"
        "project = Project.here(); steps = plan.build(project); runner = Runner(project)\n"
        f"{setup}\n"
        f"ended = [{call} for name in {list(names)!r}]\n"
        "print('ENDED ' + json.dumps({e.name: [e.outcome, e.message] for e in ended}))"
    )
    done = factory.run(folder, sys.executable, "-c", code, **extra)
    found = re.search(r"^ENDED (.*)$", done.stdout, re.M)
    assert found, done.stdout + done.stderr
    return json.loads(found[1])


def alive(folder: Path) -> list[str]:
    """Command lines of the processes that work in a checkout."""
    found = []
    for process in psutil.process_iter(["cwd", "cmdline", "status"]):
        where = process.info["cwd"] or ""
        if process.info["status"] != psutil.STATUS_ZOMBIE and Path(where).is_relative_to(folder):
            found.append(" ".join(process.info["cmdline"] or []))
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def thread_share(workers: int) -> int:
    """Threads per stage that leave no core with two."""
    return max(1, len(os.sched_getaffinity(0)) // workers)


def _end_with_parent() -> None:
    """Interrupt the servers when the tests are killed, which leaves no time for a fixture's end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGINT, 0, 0, 0)
