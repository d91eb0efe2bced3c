"""The last stage of a paper: what git keeps of it, its stages' metrics and its small figures.

`python -m flows.engine.results <profile>/<slug>`. The scorecard judges from these alone, so that a claim can be edited and
judged in a clone without data.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from flows.engine import plan
from flows.engine.declare import DeclarationError
from flows.engine.project import Project, results
from tasks.common.formats import read_json, write_json

FIGURE_BYTES = 400_000


def collect(project: Project, slug: str) -> Path:
    """Copy a paper's metrics into its results file and its figures into the documentation; returns the results file."""
    stages: dict[str, Any] = {}
    figures: list[tuple[Path, str]] = []
    for step in plan.build(project, [slug]).values():
        if step.kind != "node":
            continue
        stages[step.name] = read_json(project.home / step.metrics_file)
        if not isinstance(stages[step.name], dict):
            raise ValueError(f"{step.metrics_file} holds no metrics; run its stage again")
        figures += [(path, step.stage) for path in sorted((project.home / step.folder / "figures").glob("*.png"))]
    _copy_figures(project.home / project.figures(slug), figures)
    target = project.home / results(slug)
    write_json(target, {"profile": project.profile, "slug": slug, "stages": stages})
    return target


def _copy_figures(target: Path, figures: list[tuple[Path, str]]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    names = [path.name for path, _ in figures]
    wanted = {path.name if names.count(path.name) == 1 else f"{stage}-{path.name}": path for path, stage in figures}
    for name, path in wanted.items():
        if path.stat().st_size > FIGURE_BYTES:
            print(f"warning: figure {name} has {path.stat().st_size // 1000} kB; git keeps it, so draw it smaller", file=sys.stderr)
        shutil.copyfile(path, target / name)
    for old in target.glob("*"):
        if old.is_file() and old.name not in wanted and old.name != ".gitkeep":
            old.unlink()
    if not wanted:
        (target / ".gitkeep").touch()


def main(words: list[str] | None = None) -> int:
    """Collect the results of the paper that the command line names."""
    (word,) = sys.argv[1:] if words is None else words
    profile, _, slug = word.partition("/")
    try:
        collect(Project.here(profile), slug)
    except (DeclarationError, OSError, ValueError) as error:
        print(f"{slug}-results: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
