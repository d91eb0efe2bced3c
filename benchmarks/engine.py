"""What the engine costs: a no-op run, `papers status`, the overhead per executed stage, and the import of all declarations.

Everything is CPU seconds of whole processes, children included, the median of some repetitions, on a synthetic checkout of 19
papers (76 stages, the scorecard and the tracker not counted).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "pipeline"))

import factory

NODE = (
    "from pathlib import Path; from tasks.common.node import Inputs, NullLog; from tasks.toy.nodes import prepare, ToyParams; "
    "import sys; out = Path(sys.argv[1]); out.mkdir(); prepare(ToyParams(), Inputs(), out, NullLog())"
)


def cpu_seconds(folder: Path, command: Sequence[str], repeat: int = 1) -> float:
    """Median CPU seconds of a command and all it starts."""
    seconds = []
    for _ in range(repeat):
        before = os.times()
        done = subprocess.run(command, cwd=folder, env=factory.environment(folder), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        after = os.times()
        seconds.append(after.children_user - before.children_user + after.children_system - before.children_system)
    return statistics.median(seconds)


def main() -> None:
    """Measure and print one line per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--papers", type=int, default=19)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    python, dvc = sys.executable, [sys.executable, "-m", "dvc"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "checkout"
        factory.make_project(folder, [f"p{i:02d}" for i in range(arguments.papers)])
        nodes = 3 * arguments.papers
        stages = 4 * arguments.papers
        print(f"{stages} stages: running them once")
        cold = cpu_seconds(folder, [*dvc, "repro"])
        bare = [cpu_seconds(folder, [python, "-c", NODE, f"bare{i}"]) for i in range(arguments.repeat)]
        alone = cpu_seconds(folder, [*dvc, "repro", "-f", "-s", "p00-prepare"], arguments.repeat)
        idle = cpu_seconds(folder, [*dvc, "repro", "-s", "p00-prepare"], arguments.repeat)
        figures = {
            "no-op dvc repro": cpu_seconds(folder, [*dvc, "repro"], arguments.repeat),
            "papers status": cpu_seconds(folder, [python, "-m", "flows.engine.cli", "status"], arguments.repeat),
            "engine overhead per executed stage over the bare node": alone - idle - statistics.median(bare),
            "bare node, interpreter included": statistics.median(bare),
            f"cold run of everything, per executed node of {nodes}": cold / nodes,
        }
    empty = cpu_seconds(ROOT, [python, "-c", "pass"], arguments.repeat)
    load = "import flows, flows.engine.registry as r; r.papers()"
    figures["import flows, all declarations loaded"] = cpu_seconds(ROOT, [python, "-c", load], arguments.repeat) - empty
    for name, value in figures.items():
        print(f"{value:8.2f} CPU s  {name}")


if __name__ == "__main__":
    main()
