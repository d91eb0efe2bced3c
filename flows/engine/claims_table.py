"""The verdicts of a paper as a table for the tracker: JSON rows, HTML to look at, Markdown for a run's description."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import Any

from flows.engine import judge, registry
from flows.engine.checks import INCONCLUSIVE, NOT_REPRODUCED, VERIFIED, Evidence
from flows.engine.project import Project

COLUMNS = ("claim", "paper says", "ours", "verdict", "scale")
_STYLE = "body{font:15px sans-serif;margin:1em}td,th{padding:.4em .8em;text-align:left;border-bottom:1px solid #ccc;vertical-align:top}"


def claims(project: Project, slug: str) -> list[dict[str, Any]]:
    """Every claim of a paper, judged from the results that git keeps; none for what is not a paper."""
    paper = registry.papers().get(slug)
    if paper is None:
        return []
    evidence = Evidence(judge.read_metrics(project, slug))
    return [judge.judge_claim(claim, evidence, project.profile) for claim in paper.claims]


def about(slug: str) -> str:
    """One line on a paper, or on what is shared, in Markdown."""
    paper = registry.papers().get(slug)
    if paper is None:
        return "Stages that several papers share."
    if paper.arxiv:
        return f"{paper.title} ([arXiv:{paper.arxiv}](https://arxiv.org/abs/{paper.arxiv}))"
    return f"{paper.title} ([OpenReview](https://openreview.net/forum?id={paper.openreview}))"


def numbers(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What is worth a curve over executions: how many claims have which verdict, and each claim's own number."""
    counts = Counter(row["verdict"] for row in rows)
    found = {f"claims.{verdict.replace(' ', '_')}": float(counts[verdict]) for verdict in (VERIFIED, NOT_REPRODUCED, INCONCLUSIVE)}
    return {**found, **{f"claim.{row['id']}": float(row["ours"]) for row in rows if row["ours"] is not None}}


def as_html(title: str, rows: list[dict[str, Any]]) -> str:
    """A page with the table, complete in itself."""
    head = "".join(f"<th>{name}</th>" for name in COLUMNS)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(row)) + "</tr>" for row in rows)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f"<h1>{escape(title)}</h1><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></html>\n"
    )


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """The table in Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in _cells(row)) + " |" for row in rows]
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return row["statement"], row["paper_says"], _ours(row), row["verdict"], row["scale"]


def _ours(row: dict[str, Any]) -> str:
    if row["ours"] is None:
        return "none"
    lo, hi = row["interval"] or (None, None)
    if lo is None or hi is None:
        return f"{row['ours']:.4g} (one run)"
    return f"{row['ours']:.4g}" if lo == hi else f"{row['ours']:.4g} [{lo:.4g}, {hi:.4g}], n = {row['n_seeds']}"
