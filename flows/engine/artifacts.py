"""What a flow leaves in Prefect's pages: the table of claims, and the report of the run."""

from __future__ import annotations

from typing import Any

from flows.engine.outcome import Report
from flows.engine.project import Project, read_object, rows


def publish(project: Project, name: str, report: Report) -> None:
    """Publish the claims of the papers that ran as a table, and the report as Markdown, to the current flow run."""
    from prefect.artifacts import create_markdown_artifact, create_table_artifact

    rows = claims(project, set(report.papers))
    if rows:
        create_table_artifact(key=key("claims", name, project.profile), table=rows, description="Every claim with its verdict and scale.")
    create_markdown_artifact(key=key("report", name, project.profile), markdown=report.markdown(), description=report.headline())


def key(kind: str, name: str, profile: str) -> str:
    """Key of an artifact: lower-case letters, digits and dashes, which is all that Prefect takes."""
    return "-".join([kind, name.replace("_", "-"), *([] if profile == "cpu" else [profile])])


def claims(project: Project, slugs: set[str]) -> list[dict[str, Any]]:
    """A row per claim of these papers, from the scorecard; none before there is one."""
    papers = rows(read_object(project.scorecard).get("papers"))
    return [
        {
            "paper": paper["slug"],
            "claim": claim["statement"],
            "paper says": claim["paper_says"],
            "ours": claim.get("text") or claim["ours"],
            "verdict": f"{claim['verdict']} ({claim['scale']} scale)",
        }
        for paper in papers
        if paper.get("slug") in slugs
        for claim in rows(paper.get("claims"))
    ]
