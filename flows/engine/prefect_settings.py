"""Prefect's settings for this collection, and the server that a run talks to.

Prefect keeps its database in `.prefect` of the checkout, so that a person's own Prefect is left alone, unless they say otherwise
by `PREFECT_HOME`, `PREFECT_PROFILE` or `PREFECT_API_URL`. Prefect reads its settings when it is first imported: call `apply` before.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from flows.engine import servers
from flows.engine.project import read_object

OWN = ("PREFECT_HOME", "PREFECT_PROFILE", "PREFECT_API_URL")
STATE = "server.json"


def defaults(root: Path) -> dict[str, str]:
    """Settings for any process of ours that uses Prefect; whatever is set already wins."""
    settings = {
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_CLI_PROMPT": "false",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    if not any(os.environ.get(name) for name in OWN):
        settings["PREFECT_HOME"] = str(home(root))
    return {name: value for name, value in settings.items() if not os.environ.get(name)}


def home(root: Path) -> Path:
    """Folder of Prefect's database and of the servers' logs."""
    return root / ".prefect"


def server_command(port: int, *, ui: bool = True) -> list[str]:
    """The command that starts a Prefect server."""
    words = [sys.executable, "-m", "prefect", "server", "start", "--host", servers.HOST, "--port", str(port)]
    return words if ui else [*words, "--no-ui"]


def api_url(port: int) -> str:
    """Address of the server's API."""
    return f"http://{servers.HOST}:{port}/api"


def apply(root: Path) -> str:
    """Settle this process's settings before Prefect is imported, and see to a server; returns its address.

    That is `PREFECT_API_URL`, else the server of `papers serve` in this checkout if it answers, else one that lasts until this
    process ends (its start takes 10 to 20 s on two cores).

    Raises:
        ServerError: if the temporary server does not start.
    """
    os.environ.update(defaults(root))
    url = os.environ.get("PREFECT_API_URL") or _running(root) or _temporary(root)
    os.environ["PREFECT_API_URL"] = url
    # The run prints its own lines; Prefect's go to its database.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    return url


def own(root: Path, url: str) -> None:
    """Settle this process's settings, before Prefect is imported, for a server of the checkout's own at `url`."""
    os.environ.pop("PREFECT_PROFILE", None)
    os.environ.update(defaults(root))
    os.environ["PREFECT_HOME"] = os.environ.get("PREFECT_HOME") or str(home(root))
    os.environ["PREFECT_API_URL"] = url


def remember(root: Path, url: str) -> None:
    """Note where the server of this checkout answers."""
    home(root).mkdir(exist_ok=True)
    (home(root) / STATE).write_text(json.dumps({"url": url}) + "\n", encoding="utf-8")


def forget(root: Path) -> None:
    """The server of this checkout has ended."""
    (home(root) / STATE).unlink(missing_ok=True)


@contextmanager
def terminable() -> Iterator[None]:
    """While inside, TERM and a closed terminal end the run like Ctrl-C does, so that nothing is left running."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _running(root: Path) -> str:
    url = str(read_object(home(root) / STATE).get("url", ""))
    return url if url.startswith("http") and servers.answers(f"{url}/health") else ""


def _temporary(root: Path) -> str:
    print("starting Prefect for this run (`make serve` in another terminal keeps it running)", file=sys.stderr)
    settings = {
        # Nightly runs are the business of the server that stays.
        "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
        "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
    }
    environment: Mapping[str, str] = {**os.environ, **settings}
    home(root).mkdir(exist_ok=True)
    with (home(root) / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two first runs at once would both create the database
        port = servers.free_port()
        child = servers.start("Prefect's server", server_command(port, ui=False), home(root) / f"temporary-{port}.log", environment, root)
        # Registered before Prefect is imported, so that it happens after Prefect has sent its last logs.
        atexit.register(_end, child)
        servers.wait_for(child, f"{api_url(port)}/health")
    return api_url(port)


def _end(child: servers.Child) -> None:
    servers.stop(child)
    child.log.unlink(missing_ok=True)
