"""What people read: the page `report/index.html`, and the generated parts of README and docs."""

from __future__ import annotations

from typing import Any

from flows.engine.declare import Paper
from flows.engine.project import Project


def write_page(project: Project, card: dict[str, Any], papers: list[Paper]) -> None:
    """Write the page, which stands alone."""
    project.page.write_text("<!doctype html>\n", encoding="utf-8")


def write_readme(project: Project, card: dict[str, Any]) -> None:
    """Replace the table between the markers of README.md."""


def write_docs(project: Project, card: dict[str, Any], papers: list[Paper]) -> None:
    """Replace the generated parts of docs/papers/<slug>.md."""
