"""Child processes that serve on 127.0.0.1: started in a group of their own, waited for until they answer, ended without a trace."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from flows.engine.supervise import end_group

HOST = "127.0.0.1"
START_TIMEOUT_S = 180.0
STOP_GRACE_S = 20.0
_PR_SET_PDEATHSIG = 1


class ServerError(RuntimeError):
    """A server cannot start or has ended; the message says which, why, and what to do."""


@dataclass(frozen=True)
class Child:
    """A running server or worker, and where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raise if it has ended.

        Raises:
            ServerError: with the last lines of its log.
        """
        status = self.process.poll()
        if status is not None:
            raise ServerError(f"{self.name} ended with status {status}; {self.log} ends with:\n{self.tail()}")

    def tail(self, lines: int = 8) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def start(name: str, command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path) -> Child:
    """Start a child in a process group of its own; on Linux it ends when this process does, however that comes about."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent(),
        )
    return Child(name, process, log)


def wait_for(child: Child, url: str, timeout_s: float = START_TIMEOUT_S) -> None:
    """Wait until a child answers at `url`.

    Raises:
        ServerError: if it ends first, or does not answer in time.
    """
    deadline = time.monotonic() + timeout_s
    while not answers(url):
        child.check()
        if time.monotonic() > deadline:
            raise ServerError(f"{child.name} did not answer at {url} within {timeout_s:g} s; {child.log} ends with:\n{child.tail()}")
        time.sleep(0.2)


def answers(url: str) -> bool:
    """Whether a server answers at `url` with success."""
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(200 <= reply.status < 300)
    except (urllib.error.URLError, http.client.HTTPException, OSError):
        return False


def stop(child: Child, grace_s: float = STOP_GRACE_S) -> None:
    """End a child, its group, and what it started in other groups: TERM first, KILL after the grace period."""
    below = _descendants(child.process.pid)
    if child.process.poll() is None:
        child.process.terminate()
        try:
            child.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
    _, left = psutil.wait_procs(below, timeout=grace_s / 10)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(left, timeout=grace_s)
    for process in left:
        with contextlib.suppress(ProcessLookupError):
            end_group(os.getpgid(process.pid), 1.0)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """While inside, signals that ask this process to end are ignored: it is ending, and needs the time to do it well."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def check_port(port: int, what: str, option: str) -> None:
    """Refuse a port that is taken.

    Raises:
        ServerError: naming the port and the option that changes it.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ServerError(
                f"port {port} for {what} is taken ({error.strerror}); end what uses it, or choose another with {option}"
            ) from None


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _end_with_parent() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None, use_errno=True)
    return lambda: library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
