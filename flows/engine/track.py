"""The last stage of a bare `dvc repro`: bring MLflow up to date with what DVC holds.

`python -m flows.engine.track <profile> [--rebuild]`. What it writes, `tracking/mirror.json`, says which results MLflow shows and
nothing else: no identifiers, no dates, so that DVC finds an unchanged collection unchanged. If MLflow fails, this stage fails, alone.
"""

from __future__ import annotations

import argparse
import sys

from flows.engine.declare import PROFILES
from flows.engine.project import Project
from tasks.common.formats import write_json


def main(words: list[str] | None = None) -> int:
    """Mirror the profile that the command line names; returns the exit status."""
    parser = argparse.ArgumentParser(prog="track", description="Bring MLflow up to date with what DVC holds.")
    parser.add_argument("profile", choices=PROFILES)
    parser.add_argument("--rebuild", action="store_true", help="delete the database first and make it anew from DVC's outputs")
    arguments = parser.parse_args(words)
    project = Project.here(arguments.profile)
    try:
        return track(project, rebuild=arguments.rebuild)
    except Exception as error:
        print(
            f"track: MLflow was not brought up to date: {type(error).__name__}: {error}\n"
            f"All results are unaffected; then repeat `dvc repro -s track`, or `python -m flows.engine.track {project.profile} --rebuild`.",
            file=sys.stderr,
        )
        return 1


def track(project: Project, *, rebuild: bool = False) -> int:
    """Mirror, and write what was mirrored.

    Raises:
        TrackingError: if the database cannot be used.
    """
    from flows.engine import mirror

    done = mirror.rebuild(project) if rebuild else mirror.mirror(project)
    write_json(project.home / "tracking" / "mirror.json", {"profile": project.profile, "stages": done.stages})
    print(f"track: MLflow shows {len(done.stages)} stages, {len(done.logged)} of them new", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
