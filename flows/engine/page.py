"""The page that people read, `report/index.html`: one file that stands alone, figures inside, readable without a server.

A pure function of the scorecard, the declarations and the figures that git keeps. It judges nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flows.engine import interval
from flows.engine.checks import INCONCLUSIVE, NOT_REPRODUCED, VERIFIED
from flows.engine.declare import SCALES, Paper
from flows.engine.project import Project
from tasks.common.formats import write_atomically

TEMPLATES = Path(__file__).parent / "templates"
VERDICTS = (VERIFIED, NOT_REPRODUCED, INCONCLUSIVE)
SYMBOLS = {VERIFIED: "✓", NOT_REPRODUCED: "✗", INCONCLUSIVE: "?"}
SCALE_MEANS = {
    "toy": "other data or another model than the paper's, much smaller",
    "reduced": "the paper's data or model, less of it",
    "paper": "what the paper did",
}
PROFILE_MEANS = {
    "cpu": "the default run: 2 cores, no accelerator, no network",
    "gpu": "the run with the paper's own models and data",
    "smoke": "a run of seconds that shows that everything works, and nothing about the papers",
}


def write_page(project: Project, card: dict[str, Any], papers: list[Paper]) -> None:
    """Write the page, which stands alone."""
    text = render(project, card, papers)
    write_atomically(project.page, lambda path: path.write_text(text, encoding="utf-8"))


def render(project: Project, card: dict[str, Any], papers: list[Paper]) -> str:
    """The page as text.

    Args:
        project: checkout and profile; figures are read from it.
        card: the scorecard.
        papers: the declarations, for budgets, methods and the order of figures.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=interval.number, measured=interval.text, ends=interval.ends, slug=_anchor)
    environment.globals.update(drawing=_drawing, symbols=SYMBOLS, verdicts=VERDICTS, scales=SCALES, scale_means=SCALE_MEANS)
    declared = {paper.slug: paper for paper in papers}
    shown = [paper_view(project, row, declared.get(row["slug"])) for row in card["papers"]]
    return environment.get_template("page.html.j2").render(
        profile=project.profile,
        profile_means=PROFILE_MEANS[project.profile],
        papers=shown,
        matrix=counts(claim for paper in shown for claim in paper["claims"]),
        total=sum(len(paper["claims"]) for paper in shown),
    )


def paper_view(project: Project, row: dict[str, Any], paper: Paper | None) -> dict[str, Any]:
    """What the page shows of one paper: its row of the scorecard, and what the declaration and the checkout add."""
    stale = {entry["name"]: entry["reason"] for entry in row.get("stale", [])}
    stages = [{**stage, "budget": _budget(paper, row, stage, project), "stale": stale.get(stage["name"])} for stage in row["stages"]]
    minutes = [stage["minutes"] for stage in stages if stage["minutes"] is not None]
    return {
        **row,
        "ran": row.get("ran", True),
        "fresh": row.get("fresh", True),
        "stale": row.get("stale", []),
        "openreview": paper.openreview if paper else "",
        "counts": [(verdict, scale, n) for (verdict, scale), n in counts(row["claims"]).items() if n],
        "stages": stages,
        "minutes": sum(minutes) if minutes else None,
        "figures": figures(project, row["slug"], paper.figures if paper else ()),
        "modules": sorted({stage.node.partition(":")[0] for stage in paper.stages if stage.node}) if paper else [],
        "commands": commands(project, row["slug"], stages[-1]["name"] if stages else ""),
    }


def counts(claims: Iterable[dict[str, Any]]) -> dict[tuple[str, str], int]:
    """Number of claims by verdict and scale, all pairs, in the order in which they are shown."""
    table: dict[tuple[str, str], int] = {(verdict, scale): 0 for verdict in VERDICTS for scale in SCALES}
    for claim in claims:
        table[claim["verdict"], claim["scale"]] += 1
    return table


def figures(project: Project, slug: str, first: Iterable[str]) -> list[dict[str, str]]:
    """The paper's figures as data URIs, those named in `first` before the others."""
    found = ordered_figures(project, slug, first)
    return [{"name": path.stem, "caption": caption(path.stem), "uri": _data_uri(path)} for path in found]


def ordered_figures(project: Project, slug: str, first: Iterable[str]) -> list[Path]:
    """Figures that git keeps of a paper, those named in `first` before the others."""
    found = {path.stem: path for path in sorted((project.home / project.figures(slug)).glob("*.png"))}
    wanted = [name.removesuffix(".png") for name in first]
    return [found[name] for name in wanted if name in found] + [path for name, path in found.items() if name not in wanted]


def caption(name: str) -> str:
    """A figure's file name as words."""
    words = name.replace("_", " ").replace("-", " ").strip()
    return words[:1].upper() + words[1:]


def commands(project: Project, slug: str, stage: str = "") -> list[dict[str, str]]:
    """How a person runs the paper, from the simplest to the most particular; `stage` is one of its stages, as an example."""
    cpu = project.profile == "cpu"
    nested, option, make = (
        ("", "", "") if cpu else (f" --cd {project.profile}", f" --profile {project.profile}", f" PROFILE={project.profile}")
    )
    listed = [
        ("Everything set up and run", f"make reproduce PAPER={slug}{make}"),
        ("In an environment that is there, through Prefect", f"papers run {slug}{option}"),
        ("DVC alone, no server", f"dvc{nested} repro {slug}-results && dvc{nested} repro --force -s scorecard"),
        ("What is stale, and why", f"papers status {slug}{option}"),
        ("Prefect at http://127.0.0.1:4200 and MLflow at http://127.0.0.1:5000, nightly runs included", "make serve"),
    ]
    if project.profile != "smoke":
        deployment = f"{slug}/{slug}" + ("" if cpu else f"-{project.profile}")
        listed.append(("While those serve", f"PREFECT_API_URL=http://127.0.0.1:4200/api prefect deployment run {deployment}"))
    if stage:
        listed.append(("From a stage to its MLflow runs; with a run's identifier, the way back", f"papers trace {stage}{option}"))
    if project.profile != "gpu":
        listed.append(("At the paper's scale, on a GPU", f"papers run {slug} --profile gpu"))
    return [{"what": what, "command": command} for what, command in listed]


def _budget(paper: Paper | None, row: dict[str, Any], stage: dict[str, Any], project: Project) -> float | None:
    """Minutes that the stage may take, None for a stage that is no longer declared."""
    if paper is None:
        return None
    name = stage["name"].removeprefix(f"{row['slug']}-")
    known = {full: declared for declared in paper.stages for full, _ in declared.variants()}
    return known[name].budget(project.profile) if name in known else None


def _drawing(row: dict[str, Any]) -> Any:
    from markupsafe import Markup

    return Markup(interval.drawing(row))


def _data_uri(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def _anchor(text: str) -> str:
    """A class or anchor name: `not reproduced` is `not-reproduced`."""
    return text.replace(" ", "-").replace("_", "-")
