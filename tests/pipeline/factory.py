"""Small synthetic checkouts with the real engine in them: toy papers whose nodes take milliseconds, unless told to take longer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]

TOY_NODES = '''
"""Toy nodes: arithmetic that can sleep, fail or burn time when its parameters say so."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tasks.common.formats import read_json, write_json
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.statistics import summarise
from tasks.toy.arithmetic import double


class ToyParams(Params):
    """Parameters of every toy node."""

    seed: int = 0
    value: float = 1.0
    sleep_s: float = 0.0
    fail: bool = False
    nan: bool = False
    steps: int = 3
    method: str = "plain"


def prepare(params: ToyParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Write the value, after sleeping."""
    for step in log.progress(range(params.steps), desc="prepare"):
        log.history(step, loss=1.0 / (step + 1))
        time.sleep(params.sleep_s / params.steps)
    if params.fail:
        raise ValueError(f"asked to fail, value {params.value}")
    count = os.environ.get("TOY_COUNT")
    if count:
        with open(count, "a") as file:
            file.write(f"prepare {params.value}\\n")
    write_json(out / "value.json", {"value": params.value})
    return {"prepared.value": params.value}


def train(params: ToyParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Double what was prepared."""
    if params.fail:
        raise ValueError("asked to fail")
    time.sleep(params.sleep_s)
    total = sum(read_json(folder / "value.json")["value"] for folder in inputs.values())
    write_json(out / "value.json", {"value": double(total) + params.value})
    log.timing(rate=3.0)
    return {"trained.value": double(total) + params.value}


def evaluate(params: ToyParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Three seeds of the value, and a control that is nothing."""
    from tasks.common.plotting import figure

    total = sum(read_json(folder / "value.json")["value"] for folder in inputs.values())
    fig, ax = figure(3, 2)
    ax.plot([0, 1], [0, total])
    log.figure("line", fig)
    ours = [total, total + 0.1, total + 0.2]
    value = float("nan") if params.nan else 0.0
    return {**summarise("ours.score", ours), **summarise("control.score", [0.0, 0.1, 0.05]), "extra.score": value}
'''

METHOD = '''
"""The method of {slug}."""

from pathlib import Path

from tasks.common.node import Inputs, Log, Metrics
from tasks.toy import nodes
from tasks.toy.nodes import ToyParams


def train(params: ToyParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Train {slug}."""
    return nodes.train(params, inputs, out, log)
'''

PAPER = '''
"""{slug}: a toy paper for tests."""

from typing import Any

from flows.engine.checks import at_least
from flows.engine.declare import Claim, Control, Deviation, Paper, Stage

paper = Paper(
    slug="{slug}",
    title="Toy paper {slug}",
    arxiv="0000.00000",
    stages=[
        Stage("prepare", "tasks.toy.nodes:prepare", budget_min=1, metrics=["prepared.value"], curves=["loss"]{prepare}),
        Stage("train", "tasks.toy.{module}:train", needs=["prepare"{extra_needs}], budget_min=1, metrics=["trained.value"]),
        Stage(
            "evaluate",
            "tasks.toy.nodes:evaluate",
            needs=["train"],
            budget_min=1,
            metrics=["{{ours,control,extra}}.score"],
        ),
        {extra_stages}
    ],
    claims=[
        Claim(
            "grows",
            "The score is large.",
            "more than 1",
            at_least("ours.score", 1.0),
            scale="toy",
            why_scale="arithmetic is the same at every scale",
            control=Control("nothing added", swap={{"ours": "control"}}),
        ),
        Claim("extra", "The extra score is not negative.", "0 or more", at_least("extra.score", 0.0), scale="toy", why_scale="a number"),
    ],
    deviations=[Deviation("toy data", because="tests must be quick")],
)


def __getattr__(name: str) -> Any:
    if name == "flow":
        return paper.flow()
    raise AttributeError(name)
'''

NO_SHARED = '''
"""None."""

from flows.engine.declare import Stage

stages: list[Stage] = []
'''

ARITHMETIC = '''
"""Arithmetic."""


def double(x: float) -> float:
    """Twice x."""
    return 2 * x
'''

PAGE = """
# {slug}

<!-- scorecard:begin -->
<!-- scorecard:end -->

<!-- figures:begin -->
<!-- figures:end -->
"""

SHARED = '''
"""Shared toy stage."""

from flows.engine.declare import Stage

stages = [Stage("base", "tasks.toy.nodes:prepare", budget_min=1)]
'''


def make_project(folder: Path, papers: Sequence[str] = ("alpha", "beta"), *, shared: bool = False, sync: bool = True) -> Path:
    """A checkout with toy papers, the real engine, git and DVC; each paper has `tasks/toy/<slug>.py` of its own for train."""
    for name in ("flows/engine", "tasks/common"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("flows/__init__.py", "tasks/__init__.py", ".gitignore", ".dvcignore", "requirements.lock", "pyproject.toml"):
        shutil.copyfile(ROOT / name, folder / name)
    for name in ("flows/collection.py", "prefect.yaml", "mkdocs.yml"):
        if (ROOT / name).exists():
            shutil.copyfile(ROOT / name, folder / name)
    (folder / "README.md").write_text("# toy\n\n<!-- scorecard:begin -->\n<!-- scorecard:end -->\n")
    write(
        folder / "flows/shared.py",
        SHARED if shared else '"""None."""\nfrom flows.engine.declare import Stage\n\nstages: list[Stage] = []\n',
    )
    write(folder / "tasks/toy/__init__.py", '"""Toys."""\n')
    write(
        folder / "tasks/toy/arithmetic.py", '"""Arithmetic."""\n\n\ndef double(x: float) -> float:\n    """Twice x."""\n    return 2 * x\n'
    )
    write(folder / "tasks/toy/nodes.py", TOY_NODES)
    sections = [
        f"{slug}: {{cpu: {{prepare: {{value: {i + 1}.0}}, train: {{value: 0.5}}, evaluate: {{seed: 0}}}},"
        f" smoke: {{prepare: {{value: {i + 1}.5}}}}, gpu: {{prepare: {{value: {i + 1}.25}}}}}}"
        for i, slug in enumerate(papers)
    ]
    (folder / "params.yaml").write_text("\n".join(sections) + ("\nshared: {cpu: {base: {value: 7.0}}}\n" if shared else "\n"))
    for slug in papers:
        add_paper(folder, slug, shared=shared)
    run(folder, "git", "init", "-q", "-b", "main")
    run(folder, "git", "config", "user.email", "test@example.org")
    run(folder, "git", "config", "user.name", "Test")
    if sync:
        papers_command(folder, "sync")
        run(folder, "git", "add", "-A")
        run(folder, "git", "commit", "-q", "-m", "toy collection")
    return folder


def add_paper(folder: Path, slug: str, *, shared: bool = False) -> None:
    """Declare one more toy paper (without parameters)."""
    write(folder / f"tasks/toy/{slug}.py", METHOD.format(slug=slug))
    text = PAPER.format(
        slug=slug,
        module=slug,
        prepare="",
        extra_needs=', "warmstart"' if shared else "",
        extra_stages='Stage("warmstart", shared="base"),' if shared else "",
    )
    write(folder / f"flows/{slug}.py", text)
    write(folder / f"docs/papers/{slug}.md", PAGE.format(slug=slug))


def write(path: Path, text: str) -> None:
    """Write a source file, creating its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip("\n"))


def environment(folder: Path, **extra: str) -> dict[str, str]:
    """Environment in which `python`, `dvc` and the engine are this checkout's."""
    here = str(Path(sys.executable).parent)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_", "PAPERS_"))}
    return {
        **kept,
        "PATH": os.pathsep.join([here, os.environ["PATH"]]),
        "PYTHONPATH": str(folder),
        "PREFECT_HOME": str(folder / ".prefect"),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "HOME": str(folder / ".home"),
        **extra,
    }


def run(folder: Path, *command: str, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout; with `check`, a failure shows its output."""
    done = subprocess.run(command, cwd=folder, env=environment(folder, **extra), capture_output=True, text=True)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(command)} failed ({done.returncode}):\n{done.stdout}\n{done.stderr}")
    return done


def dvc(folder: Path, *words: str, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run dvc in the checkout."""
    return run(folder, sys.executable, "-m", "dvc", *words, check=check, **extra)


def papers_command(folder: Path, *words: str, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run the console script of the checkout."""
    return run(folder, sys.executable, "-m", "flows.engine.cli", *words, check=check, **extra)


def edit(path: Path, old: str, new: str) -> None:
    """Replace text that must be there."""
    text = path.read_text()
    assert old in text, f"{path} does not hold {old!r}"
    path.write_text(text.replace(old, new))
