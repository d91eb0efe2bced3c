"""The generated parts of README.md and of `docs/papers/<slug>.md`: what stands between markers, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flows.engine import interval
from flows.engine.declare import Paper
from flows.engine.page import SYMBOLS, caption, ordered_figures
from flows.engine.project import Project, write_if_changed

SCORECARD, FIGURES = "scorecard", "figures"
TOY = "At toy scale, *not reproduced* says nothing against the paper."


class MarkerError(ValueError):
    """A file lacks the markers between which the generated part belongs; says which file and which marker."""


def write_readme(project: Project, card: dict[str, Any]) -> None:
    """Replace the table between the markers of README.md.

    Raises:
        MarkerError: if the file or a marker is missing.
    """
    path = project.root / "README.md"
    _write({path: replace_between(path, _read(path), SCORECARD, readme_table(card))})


def write_docs(project: Project, card: dict[str, Any], papers: list[Paper]) -> None:
    """Replace the generated parts of docs/papers/<slug>.md; all of them, or none if one cannot be written.

    Raises:
        MarkerError: if a page or a marker is missing.
    """
    declared = {paper.slug: paper for paper in papers}
    texts = {}
    for row in card["papers"]:
        path = project.root / "docs" / "papers" / f"{row['slug']}.md"
        paper = declared.get(row["slug"])
        text = replace_between(path, _read(path), SCORECARD, paper_tables(row))
        texts[path] = replace_between(path, text, FIGURES, paper_figures(project, row["slug"], paper.figures if paper else ()))
    _write(texts)


def replace_between(path: Path, text: str, name: str, generated: str) -> str:
    """The text with what stands between `<!-- name:begin -->` and `<!-- name:end -->` replaced.

    Raises:
        MarkerError: unless both markers are there once, in this order.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    for marker in (begin, end):
        if (seen := text.count(marker)) != 1:
            raise MarkerError(f"{path}: marker {marker} must stand there once, found {seen} times; write {begin} and {end} on lines alone")
    head, _, rest = text.partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        raise MarkerError(f"{path}: marker {end} stands before {begin}; swap them")
    return f"{head}{begin}\n{generated}{end}{tail}"


def readme_table(card: dict[str, Any]) -> str:
    """One row per claim of the collection."""
    rows = []
    for paper in card["papers"]:
        state = " (not run yet)" if not paper.get("ran", True) else "" if paper.get("fresh", True) else " (stale)"
        link = f"[{_cell(paper['title'])}](docs/papers/{paper['slug']}.md){state}"
        rows += [("" if i else link, *_claim(claim)) for i, claim in enumerate(paper["claims"])]
    if not rows:
        return "\nNo claims yet: `papers new <slug>` starts a paper.\n\n"
    return "\n" + _table(("Paper", "Claim", "The paper says", "Measured here", "Verdict (scale)"), rows) + _toy(card["papers"]) + "\n"


def paper_tables(row: dict[str, Any]) -> str:
    """Claims, deviations and stage times of one paper."""
    lines = ["\n### Claims\n"]
    if not row.get("ran", True):
        lines.append(f"Not run yet: `make reproduce PAPER={row['slug']}` fills this in.\n")
    elif not row.get("fresh", True):
        changed = "; ".join(f"`{entry['name']}` ({entry['reason']})" for entry in row["stale"])
        lines.append(f"Stale, these are the verdicts of the last run: {changed}.\n")
    if row["claims"]:
        lines.append(_table(("Claim", "The paper says", "Measured here", "Verdict (scale)"), map(_claim, row["claims"])) + _toy([row]))
        controlled = [claim for claim in row["claims"] if claim["control"]]
        if controlled:
            lines.append("\n### Negative controls\n")
            lines.append(_table(("Claim", "Switched off", "Measured there", "Loses the effect"), map(_control, controlled)))
        lines.append("\n### Why the scale can show it\n")
        lines.append(_table(("Claim", "Scale", "Why"), ((f"`{c['id']}`", c["scale"], _cell(c["why_scale"])) for c in row["claims"])))
    else:
        lines.append("No claims yet.\n")
    if row["deviations"]:
        lines.append("\n### Where this differs from the paper\n")
        lines.append(_table(("What", "Because"), ((_cell(d["what"]), _cell(d["because"])) for d in row["deviations"])))
    if row["stages"]:
        lines.append("\n### Stages\n")
        stages = ((f"`{s['name']}`", minutes(s["minutes"]), _gib(s["peak_gib"]), s["outcome"]) for s in row["stages"])
        lines.append(_table(("Stage", "Minutes", "Peak GiB", "Outcome"), stages))
    return "\n".join(lines) + "\n"


def paper_figures(project: Project, slug: str, first: Sequence[str]) -> str:
    """The paper's figures as images, relative to its page."""
    found = ordered_figures(project, slug, first)
    if not found:
        return "\nNo figures yet.\n\n"
    return "\n" + "\n".join(f"![{caption(path.stem)}](../figures/{slug}/{path.name})\n" for path in found) + "\n"


def minutes(value: float | None) -> str:
    """Minutes for people: a dash for what is not known."""
    return "–" if value is None else "< 0.1" if value < 0.05 else f"{value:.1f}"


def _gib(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _claim(claim: dict[str, Any]) -> tuple[str, str, str, str]:
    verdict = f"{SYMBOLS[claim['verdict']]} {claim['verdict']} ({claim['scale']})"
    return _cell(claim["statement"]), _cell(claim["paper_says"]), interval.text(claim), verdict


def _control(claim: dict[str, Any]) -> tuple[str, str, str, str]:
    control = claim["control"]
    lost = "yes" if control["lost_effect"] else "not run" if control["ours"] is None else "**no**"
    return f"`{claim['id']}`", _cell(control["name"]), interval.text(control), lost


def _toy(papers: Iterable[dict[str, Any]]) -> str:
    found = any(c["verdict"] == "not reproduced" and c["scale"] == "toy" for paper in papers for c in paper["claims"])
    return f"\n{TOY}\n" if found else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    """Text for a cell of a table: one line, nothing that Markdown or HTML would take as its own."""
    plain = " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("*", "\\*").replace("_", "\\_").replace("`", "\\`")


def _read(path: Path) -> str:
    if not path.is_file():
        raise MarkerError(f"{path} is missing; write it, with <!-- {SCORECARD}:begin --> and <!-- {SCORECARD}:end --> (see docs/papers/)")
    return path.read_text(encoding="utf-8")


def _write(texts: dict[Path, str]) -> None:
    for path, text in texts.items():
        write_if_changed(path, text)
