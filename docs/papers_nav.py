"""A hook of MkDocs: every page of `docs/papers/` stands in the navigation, in alphabetical order."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Add the section of papers at the end of `nav`, if there are any."""
    pages = sorted(path.name for path in Path(config["docs_dir"], "papers").glob("*.md"))
    if pages:
        config["nav"].append({"Papers": [f"papers/{name}" for name in pages]})
    return config
