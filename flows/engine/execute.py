"""Run one step: one `dvc --wait-for-lock repro --single-item <step>`, in a process group of its own.

DVC decides whether anything is to be done; what it prints tells what it did. A step that another process is running is waited
for. This module knows nothing of the order of steps (whoever calls must have seen to what a step needs), and nothing of Prefect.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from flows.engine import dvc
from flows.engine.outcome import Ended, Outcome
from flows.engine.plan import Step
from flows.engine.project import Project
from flows.engine.stage import OVER_BUDGET
from flows.engine.supervise import end_group

Say = Callable[[str], None]

THREADS = (
    "PAPERS_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
STOP_GRACE_S = 15.0  # longer than a stage's supervisor takes to end the node's own group
PAUSE_S = (0.5, 3.0)
PATIENCE_MIN = 2.0


class StoppedError(RuntimeError):
    """The run was asked to end."""


def cores() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_limits(workers: int) -> dict[str, str]:
    """Environment that keeps `workers` stages side by side from using more threads than there are cores.

    A lower limit that is already set is kept.
    """
    share = max(1, cores() // workers)
    return {name: str(min(share, _limit(os.environ.get(name, "")) or share)) for name in THREADS}


class Runner:
    """Runs steps, from several threads if need be; `end` stops all that are running.

    Args:
        project: checkout and profile.
        extra: more variables for every step's environment.
        pull: whether DVC should fetch what its remote holds before it runs anything.
    """

    def __init__(self, project: Project, *, extra: dict[str, str] | None = None, pull: bool = False) -> None:
        self._project, self._extra, self._pull = project, extra or {}, pull
        self._lock = threading.Lock()
        self._live: set[int] = set()
        self._ending = threading.Event()

    def run(self, step: Step, say: Say, *, workers: int = 1, patience_s: float | None = None) -> Ended:
        """Run a step to its end, waiting while another process holds what it needs.

        Args:
            step: what it needs must be there.
            say: receives every line of output.
            workers: among how many stages the cores are divided.
            patience_s: how long to wait for another process (default: the step's time budget, and at least two minutes).

        Raises:
            StoppedError: if `end` was called.
        """
        started = time.monotonic()
        budget = step.declared.budget(self._project.profile) if step.declared else 0.0
        deadline = started + (max(budget, PATIENCE_MIN) * 60 if patience_s is None else patience_s)
        # The last steps show how the others ended, which DVC does not see: a failure, other inputs with equal metrics.
        forced = ["--force"] if step.kind in ("scorecard", "track") else []
        command = dvc.command(self._project, "repro", "--single-item", *(["--pull"] if self._pull else []), *forced, step.name)
        waiting = False
        while True:
            missing = not all((self._project.home / out).exists() for out in step.outs)
            seen = _Reader(step.name)
            status = self._once(command, seen, say, workers)
            if status == 0 or not seen.holder:
                break
            if time.monotonic() > deadline:
                text = f"already running: {seen.holder}; wait for it to end, or end it, and run again"
                return Ended(step.name, "failed", time.monotonic() - started, text)
            if not waiting:
                say(f"waiting, {step.name} is already running or its files are in use: {seen.holder}")
                waiting = True
            self._ending.wait(random.uniform(*PAUSE_S))
        outcome = seen.outcome(status)
        if outcome == "up-to-date" and missing and not waiting:
            outcome = "restored"
        return Ended(step.name, outcome, time.monotonic() - started, "" if status == 0 else seen.reason(status))

    def run_last(self, step: Step, say: Say) -> Ended:
        """Run the scorecard or track, which make do with what is there: without DVC, where other papers' outputs are not.

        DVC would refuse, and delete the last output before it does; run directly, the step stays stale for DVC.
        """
        if all((self._project.home / path).exists() for path in (*step.data, *step.code)):
            return self.run(step, say)
        started = time.monotonic()
        seen = _Reader(step.name)
        words = shlex.split(step.cmd)
        status = self._once([sys.executable, *words[1:]], seen, say, 1)
        text = "" if status == 0 else seen.reason(status)
        return Ended(step.name, "executed" if status == 0 else "failed", time.monotonic() - started, text)

    def end(self) -> None:
        """Stop the process group of every running step; nothing starts afterwards."""
        self._ending.set()
        with self._lock:
            groups = list(self._live)
        enders = [threading.Thread(target=end_group, args=(group, STOP_GRACE_S)) for group in groups]
        for thread in enders:
            thread.start()
        for thread in enders:
            thread.join()

    def _once(self, command: Sequence[str], seen: _Reader, say: Say, workers: int) -> int:
        extra = {**thread_limits(workers), **self._extra, "PYTHONUNBUFFERED": "1"}
        environment = dvc.environment(self._project.root, extra)
        home = self._project.root if command[1:3] == ["-m", "dvc"] else self._project.home
        with self._lock:
            if self._ending.is_set():
                raise StoppedError(f"{seen.name}: not started, the run is ending")
            process = subprocess.Popen(
                command,
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._live.add(process.pid)
        try:
            assert process.stdout is not None
            for line in _lines(process.stdout.fileno()):
                if seen.take(line):
                    say(line)
            status = process.wait()
        except BaseException:
            end_group(process.pid, STOP_GRACE_S)
            raise
        finally:
            if process.stdout:
                process.stdout.close()
            with self._lock:
                self._live.discard(process.pid)
        if self._ending.is_set():
            raise StoppedError(f"{seen.name}: stopped, the run is ending")
        return status


class _Reader:
    """What the output of one `dvc repro --single-item` tells."""

    _NOISE = (
        "To track the changes with git",
        "To enable auto staging",
        "git add ",
        "dvc config core.autostage",
        "Use `dvc push`",
        "Updating lock file",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.holder = ""
        self._ran = self._cached = self._busy = False
        self._own = self._error = self._last = ""
        self._exit = 0

    def take(self, line: str) -> bool:
        """Read a line; returns whether it is worth showing."""
        text = line.strip()
        if not text or text.startswith(self._NOISE):
            return False
        self._last = text
        self._ran |= text == f"Running stage '{self.name}':"
        self._cached |= text.startswith(f"Stage '{self.name}' is cached - skipping run")
        for start in (f"{self.name}: ", "stage not started: "):
            # Anywhere in the line: a progress bar that was cut off leaves its line open.
            if start in text:
                self._own = text.rpartition(start)[2]
        if text.startswith("ERROR: "):
            self._error = self._error or text.removeprefix("ERROR: ")
            if found := re.search(r"exited with (\d+)$", text):
                self._exit = int(found[1])
            if any(message in text for message in dvc.LOCK_MESSAGES):
                self._busy, self.holder = True, "another dvc command"
        if self._busy and (found := re.match(r"\(PID (\d+)\): (.*)", text)):
            self.holder = f"process {found[1]}, {found[2].rpartition('/')[2] or found[2]}"
        return True

    def outcome(self, status: int) -> Outcome:
        """What DVC did."""
        if status != 0:
            return "over-budget" if self._exit == OVER_BUDGET else "failed"
        return "restored" if self._cached else "executed" if self._ran else "up-to-date"

    def reason(self, status: int) -> str:
        """Why it failed, in one line: the stage's own words, else DVC's, else the last ones."""
        return self._own or self._error or self._last or f"ended with status {status} and no output"


def _lines(descriptor: int) -> Iterator[str]:
    """Lines of a pipe until it closes; a progress bar that redraws itself counts as lines."""
    rest = b""
    while data := os.read(descriptor, 65536):
        *whole, rest = re.split(rb"[\r\n]+", rest + data)
        for line in whole:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _limit(text: str) -> int:
    return int(text) if text.isdigit() else 0
