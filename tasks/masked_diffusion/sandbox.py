"""Run generated code in a process of its own, with limits on time, memory and file size.

This stops runaway code. It is no wall against hostile code: nothing keeps it from reading files or the network. That is why the
benchmarks that need it are off unless they are asked for, and should be run in a container.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ran:
    """How code ended: `passed` for exit status 0, else the last line of its error output, or which limit it met."""

    passed: bool
    said: str = ""


def run_code(code: str, seconds: float = 5.0, memory_mib: int = 1024) -> Ran:
    """Run Python code until it ends or meets a limit.

    Args:
        code: a whole script.
        seconds: of wall time and of CPU time.
        memory_mib: address space.

    Raises:
        ValueError: for limits that are not positive.

    >>> run_code("assert 1 + 1 == 2").passed, run_code("assert 1 + 1 == 3").said
    (True, 'AssertionError')
    """
    if seconds <= 0 or memory_mib <= 0:
        raise ValueError(f"limits must be positive, got {seconds} s and {memory_mib} MiB")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory_mib << 20,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1,) * 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    with tempfile.TemporaryDirectory(prefix="generated-") as folder:
        script = Path(folder) / "script.py"
        script.write_text(code, encoding="utf-8")
        environment = {"PATH": os.defpath, "HOME": folder, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        said = Path(folder) / "stderr"  # a file, not a pipe, which children that stay would keep open
        with said.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-I", str(script)],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                preexec_fn=limit,
                start_new_session=True,
            )
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return Ran(False, f"stopped after {seconds:g} s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return Ran(process.returncode == 0, "" if process.returncode == 0 else lines[-1] if lines else f"ended with {process.returncode}")
