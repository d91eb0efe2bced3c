"""The console script `papers`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from flows.engine.declare import PROFILES, DeclarationError
from flows.engine.project import Project


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="papers", description="Nineteen ICLR 2026 papers as pipelines.")
    commands = parser.add_subparsers(dest="command", required=True)
    _add(commands, "sync", _sync, "write dvc.yaml, environment.yaml and gpu/ from flows/").add_argument(
        "--check", action="store_true", help="fail if they differ instead"
    )
    arguments = parser.parse_args(words)
    try:
        return int(arguments.run(arguments))
    except (DeclarationError, FileNotFoundError) as error:
        print(f"papers {arguments.command}: {error}", file=sys.stderr)
        return 2


def _add(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, run: object, text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("--profile", choices=PROFILES, default=None, help="default: cpu (sync: cpu and gpu)")
    parser.set_defaults(run=run)
    return parser


def _sync(arguments: argparse.Namespace) -> int:
    from flows.engine import sync

    projects = [Project.here(p) for p in ([arguments.profile] if arguments.profile else ["cpu", "gpu"])]
    if arguments.check:
        wrong = [path for project in projects for path in sync.stale(project)]
        for path in wrong:
            print(f"{path.relative_to(projects[0].root)} differs from flows/; run `papers sync`", file=sys.stderr)
        return 1 if wrong else 0
    for project in projects:
        for path in sync.sync(project):
            print(f"wrote {path.relative_to(project.root)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
