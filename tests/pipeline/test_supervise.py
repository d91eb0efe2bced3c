"""What a node may do to the process that watches it."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from flows.engine import supervise


def forget_a_printer() -> int:
    subprocess.Popen(["timeout", "60", "yes"])
    return 0


def start_a_daemon() -> int:
    child = subprocess.Popen(["timeout", "60", "yes"], start_new_session=True)
    print(f"pid {child.pid}")
    return 0


def print_without_a_line_end() -> int:
    for _ in range(200):
        sys.stdout.write("x" * 65536)
    return 0


def redraw_and_fail() -> int:
    sys.stderr.write("".join(f"\rstep {step}" for step in range(20000)))
    return 1


def fault() -> int:
    faulthandler.disable()
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def run_out_of_memory() -> int:
    print("error: something earlier")
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@pytest.mark.parametrize(
    ("work", "outcome", "error"),
    [
        (forget_a_printer, "done", ""),
        (start_a_daemon, "done", ""),
        (print_without_a_line_end, "done", ""),
        (redraw_and_fail, "failed", ""),
        (fault, "failed", "killed by SIGSEGV"),
        (run_out_of_memory, "failed", "killed by SIGKILL, which the system sends when memory runs out"),
    ],
)
def test_whatever_a_node_prints_starts_or_dies_of_ends_in_time(tmp_path: Path, work: Callable[[], int], outcome: str, error: str):
    log = tmp_path / "stage.log"
    started = time.monotonic()
    result = supervise.run(work, log_path=log, budget_s=20.0)
    assert (result.outcome, result.last_error) == (outcome, error)
    assert time.monotonic() - started < 15.0
    seen = log.read_text()
    if work is redraw_and_fail:
        assert seen == "step 19999\n"
    if work is start_a_daemon:
        daemon = next(int(line.removeprefix("pid ")) for line in seen.splitlines() if line.startswith("pid "))
        assert not psutil.pid_exists(daemon) or psutil.Process(daemon).status() == psutil.STATUS_ZOMBIE


def test_other_children_of_the_supervising_process_are_left_alone(tmp_path: Path):
    other = subprocess.Popen(["sleep", "30"])
    try:
        assert supervise.run(lambda: 0, log_path=tmp_path / "stage.log", budget_s=20.0).outcome == "done"
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_reader_that_is_gone_and_a_full_disk_do_not_end_a_stage(tmp_path: Path):
    code = (
        "import sys; from pathlib import Path; from flows.engine import supervise\n"
        "def work():\n    print('x' * 100000); return 0\n"
        f"result = supervise.run(work, log_path=Path({str(full(tmp_path))!r}), budget_s=20.0)\n"
        f"Path({str(tmp_path / 'outcome')!r}).write_text(result.outcome)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.close()
    process.wait(timeout=60)
    assert (tmp_path / "outcome").read_text() == "done"


def full(folder: Path) -> str | Path:
    """A file that takes nothing, where the system has one."""
    return "/dev/full" if Path("/dev/full").exists() else folder / "stage.log"
