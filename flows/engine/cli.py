"""The console script `papers`: each command is a few lines that call the module which does the work."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from flows.engine.declare import PROFILES, DeclarationError
from flows.engine.dvc import DvcError
from flows.engine.project import Project
from flows.engine.servers import ServerError
from flows.engine.trace import TraceError
from flows.engine.tracking import TrackingError

Command = Callable[[argparse.Namespace], int]


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    arguments = _parser().parse_args(_split_apply(sys.argv[1:] if words is None else words))
    command: Command = arguments.command
    try:
        return command(arguments)
    except BrokenPipeError:
        return 0
    except (DeclarationError, OSError, DvcError, ServerError, TrackingError, TraceError) as error:
        said = f"papers {arguments.name}: "
        print(said + str(error).removeprefix(said), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def _split_apply(words: Sequence[str]) -> list[str]:
    """Hide what follows `apply` from this parser: a tool has options of its own."""
    return [words[0], "--", *words[1:]] if words and words[0] == "apply" else list(words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="papers", description="ICLR 2026 papers as pipelines whose claims are checked at every run.")
    commands = parser.add_subparsers(dest="name", required=True, metavar="command")
    _add(commands, "list", _list, "every paper with its verdicts")
    one = _add(commands, "status", _status, "which stages are stale, why, and how long they are expected to take")
    one.add_argument("slugs", nargs="*", metavar="paper")
    one = _add(commands, "run", _run, "bring papers up to date, running exactly what is stale")
    one.add_argument("slugs", nargs="*", metavar="paper", help="default: all")
    one.add_argument("--workers", type=_positive, default=1, help="stages side by side (default 1)")
    one = _add(commands, "sync", _sync, "write dvc.yaml, environment.yaml, prefect.yaml and gpu/ from flows/")
    one.add_argument("--check", action="store_true", help="fail if they differ instead of writing")
    one = commands.add_parser("apply", help="a paper's method on your own data, for example your .h5ad files")
    one.add_argument("words", nargs="*", metavar="paper [options]")
    one.set_defaults(command=_apply, name="apply")
    _add(commands, "scorecard", _scorecard, "judge all claims from the committed results and write the report")
    one = _add(commands, "track", _track, "bring MLflow up to date with what DVC holds")
    one.add_argument("--rebuild", action="store_true", help="make the database anew")
    one = _add(commands, "trace", _trace, "from an MLflow run to its DVC stage, or from a stage to its runs")
    one.add_argument("what", help="an MLflow run id, or a stage name such as vattention-evaluate")
    one = _add(commands, "new", _new, "write the skeleton of a paper")
    one.add_argument("slug")
    one.add_argument("--title", default="")
    one.add_argument("--arxiv", default="")
    one = _add(commands, "serve", _serve, "start Prefect server, worker and MLflow on 127.0.0.1 until Ctrl-C")
    one.add_argument("--prefect-port", type=_port, default=4200)
    one.add_argument("--mlflow-port", type=_port, default=5000)
    return parser


def _add(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: Command, text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("--profile", choices=PROFILES, default=None, help="default: cpu")
    parser.set_defaults(command=command)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {value}")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"must be a port, 1 to 65535, got {value}")
    return value


def _project(arguments: argparse.Namespace) -> Project:
    return Project.here(arguments.profile or "cpu")


def _list(arguments: argparse.Namespace) -> int:
    from flows.engine import judge, registry
    from flows.engine.checks import Evidence

    project = _project(arguments)
    for paper in registry.papers().values():
        metrics = judge.read_metrics(project, paper.slug)
        verdicts = [judge.judge_claim(claim, Evidence(metrics), project.profile)["verdict"] for claim in paper.claims]
        if verdicts and not metrics:
            print(f"{paper.slug:24} not run yet, {len(verdicts)} claims\n{'':24} {paper.title}")
            continue
        counts = ", ".join(f"{verdicts.count(v)} {v}" for v in sorted(set(verdicts), reverse=True)) or "no claims"
        print(f"{paper.slug:24} {counts}\n{'':24} {paper.title}")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from flows.engine.status import report

    print(report(_project(arguments), arguments.slugs))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from flows.engine import orchestrate

    done = orchestrate.run(arguments.slugs or None, arguments.profile or "cpu", arguments.workers)
    print(done.render())
    return 1 if done.failed else 0


def _apply(arguments: argparse.Namespace) -> int:
    from flows.engine import apply

    return apply.main(arguments.words)


def _sync(arguments: argparse.Namespace) -> int:
    from flows.engine import sync

    projects = [Project.here(p) for p in ([arguments.profile] if arguments.profile else ["cpu", "gpu"])]
    if arguments.check:
        wrong = [path for project in projects for path in sync.stale(project)]
        for path in wrong:
            print(f"{path.relative_to(projects[0].root)} differs from flows/; run `papers sync`", file=sys.stderr)
        unknown = [message for project in projects for message in sync.unknown_parameters(project)]
        for message in unknown:
            print(message, file=sys.stderr)
        return 1 if wrong or unknown else 0
    for project in projects:
        for path in sync.sync(project):
            print(f"wrote {path.relative_to(project.root)}")
    return 0


def _scorecard(arguments: argparse.Namespace) -> int:
    from flows.engine import dvc

    project = _project(arguments)
    dvc.run(project, "repro", "--force", "--single-item", "scorecard")
    print(f"open {project.page}")
    return 0


def _track(arguments: argparse.Namespace) -> int:
    from flows.engine import dvc, plan, track

    project = _project(arguments)
    step = plan.build(project)[plan.TRACK]
    if arguments.rebuild or not all((project.home / path).exists() for path in step.data):
        return track.main([project.profile, *(["--rebuild"] if arguments.rebuild else [])])  # DVC refuses while a paper has not run
    # Forced: DVC sees no change when a stage ran on other inputs with equal metrics, and MLflow has an execution to show.
    dvc.run(project, "repro", "--force", "--single-item", plan.TRACK)
    return 0


def _trace(arguments: argparse.Namespace) -> int:
    from flows.engine import trace

    print(trace.render(trace.trace(_project(arguments), arguments.what)))
    return 0


def _new(arguments: argparse.Namespace) -> int:
    from flows.engine import registry, scaffold, sync

    project = _project(arguments)
    for path in scaffold.create(project.root, arguments.slug, arguments.title, arguments.arxiv):
        print(f"wrote {path.relative_to(project.root)}")
    registry.forget()
    sync.sync(project)
    print(f"next: say what the paper claims in flows/{arguments.slug}.py, write its nodes, then `make test` until it passes")
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    from flows.engine import serve

    return serve.serve(Project.here().root, prefect_port=arguments.prefect_port, mlflow_port=arguments.mlflow_port)


if __name__ == "__main__":
    raise SystemExit(main())
