"""Run a function in a forked child that leads its own process group, and see to it that nothing of it outlives its welcome.

The child is stopped when it is over its budget, when whoever started this process has ended, or when this process is asked to
end. On Linux the child also dies if this process is killed outright, and what it started in other groups (daemons) ends with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO, Literal

import psutil

Outcome = Literal["done", "failed", "over-budget", "orphaned", "stopped"]

POLL_S = 0.2
GRACE_S = 5.0
STREAM_AFTER_S = 30.0
LONGEST_LINE = 65536
DRAIN_S = 1.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True)
class Result:
    """How the child ended; `status` is 0 only for `done`."""

    outcome: Outcome
    status: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    last_error: str = ""
    stream_id: str = ""


def run(work: Callable[[], int], *, log_path: Path, budget_s: float, streamer: Sequence[str] = ()) -> Result:
    """Run `work` in a child and wait for it.

    Args:
        work: returns the exit status; its output goes to standard error and to `log_path`.
        log_path: the log, started anew.
        budget_s: seconds after which the group is stopped.
        streamer: a command that follows the stage once it has run for half a minute, ended with it; it may print one line.
    """
    starters = _starters()
    _control_process(_PR_SET_CHILD_SUBREAPER, 1)
    others = {process.pid for process in psutil.Process().children()}
    reader, writer = os.pipe()
    terminal = sys.stderr.isatty()
    started, cpu_before = time.monotonic(), _children_cpu()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _be_child(work, reader, writer, terminal)
    os.close(writer)
    watch = _Watch(pid, reader, log_path, started, started + budget_s, starters, list(streamer), others)
    previous = {sig: signal.signal(sig, watch.on_signal) for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        status, outcome = watch.wait()
    finally:
        watch.end()
        os.close(reader)
        for sig, handler in previous.items():
            signal.signal(sig, handler)
        _control_process(_PR_SET_CHILD_SUBREAPER, 0)
    return Result(
        outcome=outcome,
        status=status,
        seconds=time.monotonic() - started,
        cpu_seconds=_children_cpu() - cpu_before,
        peak_bytes=watch.peak,
        last_error=_killed_by(status) or watch.last_error,
        stream_id=watch.stream_id,
    )


def end_group(pgid: int, grace_s: float = GRACE_S) -> None:
    """TERM to every process of a group, KILL to those that are left after the grace period."""
    for sig, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s)):
        try:
            os.killpg(pgid, sig)
        except (ProcessLookupError, PermissionError):
            return
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if not _alive(pgid):
                return
            time.sleep(0.05)


class _Watch:
    """The supervising side of one child."""

    def __init__(
        self,
        pid: int,
        reader: int,
        log: Path,
        started: float,
        deadline: float,
        starters: list[psutil.Process],
        streamer: list[str],
        others: set[int],
    ) -> None:
        self.pid, self.starters, self.started, self.deadline = pid, starters, started, deadline
        self.peak, self.last_error, self.stream_id = 0, "", ""
        self._reader, self._log, self._streamer, self._others = reader, log, streamer, others
        self._follower: subprocess.Popen[str] | None = None
        self._stop: Outcome | None = None
        self._next_sample = 0.0

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop = "stopped"

    def wait(self) -> tuple[int, Outcome]:
        with self._log.open("wb") as log, selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            output = _Output(self._reader, log)
            open_, status = True, None
            while status is None:
                if open_ and selector.select(POLL_S):
                    open_ = output.copy()
                elif not open_:
                    time.sleep(POLL_S / 10)
                self._look()
                if self._stop:
                    end_group(self.pid)
                    _reap(self.pid)
                    status = 1
                    break
                status = _reap(self.pid)
            self.end()  # before the rest is read: whatever the node forgot may print for ever
            until = time.monotonic() + DRAIN_S
            while open_ and time.monotonic() < until and selector.select(0):
                open_ = output.copy()
            output.finish()
            self.last_error = output.last_error
        self._end_follower(done=status == 0 and not self._stop)
        if self._stop:
            return 1, self._stop
        return status, "done" if status == 0 else "failed"

    def end(self) -> None:
        """End whatever is left of the child's group, and what it started in other groups, which is this process's to end now."""
        end_group(self.pid, 1.0)
        _reap(self.pid)
        kept = {*self._others, *([self._follower.pid] if self._follower else [])}
        left = [process for child in psutil.Process().children() if child.pid not in kept for process in _family(child)]
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for process in left:
            _reap(process.pid)

    def _look(self) -> None:
        now = time.monotonic()
        if now > self.deadline:
            self._stop = self._stop or "over-budget"
        if not all(_lives(process) for process in self.starters):
            self._stop = self._stop or "orphaned"
        if now >= self._next_sample:
            self._next_sample = now + 0.5
            self.peak = max(self.peak, _group_memory(self.pid))
            if self._streamer and self._follower is None and now > self.started + STREAM_AFTER_S:
                self._follower = self._follow()

    def _follow(self) -> subprocess.Popen[str]:
        """Start the streamer in a session of its own: signals to the stage's group reach it through this process alone."""
        return subprocess.Popen(self._streamer, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True)

    def _end_follower(self, *, done: bool) -> None:
        """TERM to a streamer whose stage is done, INT to one whose stage failed."""
        if self._follower is None:
            return
        self._follower.send_signal(signal.SIGTERM if done else signal.SIGINT)
        try:
            out, _ = self._follower.communicate(timeout=30)
            self.stream_id = out.strip().splitlines()[-1] if out.strip() else ""
        except subprocess.TimeoutExpired:
            self._follower.kill()


class _Output:
    """What the child prints: passed on as it comes, kept in the log line by line, a redrawn line as it was last.

    Whoever reads it may be gone, and the disk may be full: the stage goes on.
    """

    def __init__(self, reader: int, log: BinaryIO) -> None:
        self._reader = reader
        self._log: BinaryIO | None = log
        self._terminal: BinaryIO | None = sys.stderr.buffer
        self._line = b""
        self.last_error = ""

    def copy(self) -> bool:
        """Copy what is there; False when nothing will come any more."""
        data = os.read(self._reader, 65536)
        if not data:
            return False
        self._terminal = _written(self._terminal, data)
        *lines, rest = (self._line + data).split(b"\n")
        if len(rest) > LONGEST_LINE:
            rest = _as_seen(rest)
        if len(rest) > LONGEST_LINE:
            lines.append(rest)
            rest = b""
        self._line = rest
        self._keep(lines)
        return True

    def finish(self) -> None:
        """Keep a last line that was not ended."""
        if self._line:
            self._keep([self._line])

    def _keep(self, lines: list[bytes]) -> None:
        seen = [_as_seen(line) for line in lines]
        for line in seen:
            if line.startswith(b"error: "):
                self.last_error = line.removeprefix(b"error: ").decode(errors="replace")
        self._log = _written(self._log, b"".join(line + b"\n" for line in seen))


def _as_seen(line: bytes) -> bytes:
    """A line as a terminal shows it in the end, after carriage returns."""
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1]


def _written(file: BinaryIO | None, data: bytes) -> BinaryIO | None:
    """Write at once; None if the file takes no more."""
    try:
        if file and data:
            file.write(data)
            file.flush()
    except (OSError, ValueError):
        return None
    return file


def _be_child(work: Callable[[], int], reader: int, writer: int, terminal: bool) -> None:
    """Never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        supervisor = os.getppid()
        _die_with_parent()
        if os.getppid() != supervisor:
            os._exit(1)
        os.close(reader)
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        os.close(writer)
        os.environ["PAPERS_TERMINAL"] = "1" if terminal else "0"
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        status = work()
    except BaseException as error:
        print(f"error: {type(error).__name__}: {' '.join(str(error).split())}".rstrip(": "), file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _starters() -> list[psutil.Process]:
    """Who must live for this process to go on: its parent and, where a shell stands between, the dvc that started that."""
    above = psutil.Process().parents()
    for number, process in enumerate(above):
        try:
            words = process.cmdline()
        except psutil.Error:
            break
        if any(Path(word).name == "dvc" for word in words[:4]):
            return above[: number + 1]
    return above[:1]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _die_with_parent() -> None:
    _control_process(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _control_process(option: int, value: int) -> None:
    """Linux's `prctl` for this process; nothing elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _killed_by(status: int) -> str:
    """What ended a child that could not say so itself."""
    if status <= 128 or status - 128 not in set(signal.Signals):
        return ""
    name = signal.Signals(status - 128).name
    return f"killed by {name}" + (", which the system sends when memory runs out" if name == "SIGKILL" else "")


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def _reap(pid: int) -> int | None:
    """Exit status of the child if it has ended (128 + signal when it was killed), else None."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 1
    if done == 0:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _alive(pgid: int) -> bool:
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == pgid and process.status() != psutil.STATUS_ZOMBIE:
                return True
        except (psutil.Error, ProcessLookupError):
            continue
    return False


def _group_memory(pid: int) -> int:
    """Bytes in memory that belong to the child and its descendants (pages that they share count for each)."""
    total = 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.Error:
                continue
    except psutil.Error:
        return total
    return total


def _children_cpu() -> float:
    times = os.times()
    return times.children_user + times.children_system
