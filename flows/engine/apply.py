"""`papers apply <slug> ...`: a paper's method on a person's own data, without DVC, tracker or server.

A paper names a function `apply(params, out, log) -> summary`. Its `Params` model is the command line: every field is an option, its
description the help text, a field of type `Path` a file to read. `--out` and `--params file.yaml` are there for every paper. The function
writes to a temporary path beside `--out`, which is renamed when it is whole.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from flows.engine import registry
from flows.engine.declare import DeclarationError, Paper
from flows.engine.project import read_mapping
from flows.engine.stage import load_node, params_type
from tasks.common.assets import AssetMissing
from tasks.common.node import Params

T = TypeVar("T")
Summary = Mapping[str, float | int | str]
Application = Callable[[Params, Path, Any], Summary]
ABSENT: Any = argparse.SUPPRESS
RESERVED = ("out", "params", "overwrite", "json", "help")


def main(words: Sequence[str]) -> int:
    """Run `papers apply` with these words; returns the exit status."""
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0
    paper = _paper_with_tool(words[0])
    model = params_type(paper.apply)
    given = vars(parser(paper, model).parse_args(list(words[1:])))
    out, overwrite, as_json = Path(given.pop("out")), given.pop("overwrite"), given.pop("json")
    path = given.pop("params", None)
    values = {**(_from_file(Path(path), model) if path else {}), **given}
    try:
        params = model(**values)
        summary = apply(paper.apply, params, out, overwrite=overwrite)
    except ValidationError as error:
        raise DeclarationError("; ".join(_problem(problem) for problem in error.errors())) from None
    except (ValueError, AssetMissing) as error:
        raise DeclarationError(" ".join(str(error).split())) from error
    print(json.dumps(dict(summary)) if as_json else _rendered(summary))
    print(f"wrote {out}", file=sys.stderr)
    return 0


def apply(function: str, params: Params, out: Path, *, overwrite: bool = False) -> Summary:
    """Call a paper's tool so that `out` appears whole or not at all; figures are put beside it.

    Raises:
        FileExistsError: if `out` is there and may not be overwritten.
        FileNotFoundError: if a file that `params` names, or the folder of `out`, is missing.
    """
    for name, value in params:
        if isinstance(value, Path) and not value.exists():
            raise FileNotFoundError(f"{_option(name)}: there is no {value} (looked in {Path.cwd()})")
    if out.exists() and not overwrite:
        raise FileExistsError(f"--out: {out} is there already; name another, or say --overwrite")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"--out: there is no folder {out.parent}; make it first")
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        partial = Path(folder) / out.name
        log = TerminalLog(Path(folder))
        tool: Application = load_node(function)  # type: ignore[assignment]
        summary = tool(params, partial, log)
        if not partial.exists():
            raise RuntimeError(f"{function} wrote nothing to {partial.name}; it must write to the path that it is given")
        for figure in log.figures:
            drawn = figure.replace(out.with_name(f"{out.stem}.{figure.name}"))
            log.message(f"drew {drawn}")
        if out.is_dir():
            out.rename(Path(folder) / "replaced")
        partial.replace(out)
    return summary


class TerminalLog:
    """A `Log` for a person at a terminal: bars and messages on standard error, figures into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.figures: list[Path] = []

    def progress(self, items: Iterable[T], *, total: int | None = None, desc: str = "") -> Iterator[T]:
        """Yield `items`, with a bar that goes when it is done."""
        from tqdm import tqdm

        yield from tqdm(items, total=total, desc=desc, leave=False, disable=None)

    def history(self, step: int, **values: float) -> None:
        """Drop the row."""

    def figure(self, name: str, figure: Any) -> None:
        """Save the figure as `<name>.png` and close it."""
        from matplotlib import pyplot

        path = self._folder / f"{name}.png"
        figure.savefig(path)
        pyplot.close(figure)
        self.figures.append(path)

    def timing(self, **values: float) -> None:
        """Drop the timings; a tool returns what people should see."""

    def message(self, text: str) -> None:
        """Print the line."""
        print(text, file=sys.stderr)


def usage() -> str:
    """Which papers have a tool, and how to ask for its options."""
    tools = [paper for paper in registry.papers().values() if paper.apply]
    lines = ["usage: papers apply <paper> [options] --out OUT", ""]
    lines += [f"  {paper.slug:24} {_first_line(paper)}" for paper in tools] or ["  no paper has a tool yet"]
    return "\n".join([*lines, "", "`papers apply <paper> --help` shows the options of one."])


def parser(paper: Paper, model: type[Params]) -> argparse.ArgumentParser:
    """The command line of one tool: an option per field of its parameters.

    Raises:
        DeclarationError: for a field that cannot be an option.
    """
    made = argparse.ArgumentParser(prog=f"papers apply {paper.slug}", description=_first_line(paper), allow_abbrev=False)
    made.add_argument("--out", required=True, help="where the result goes; written under a temporary name, then renamed")
    made.add_argument("--params", metavar="FILE.YAML", default=ABSENT, help="options from a file, by their names; the command line wins")
    made.add_argument("--overwrite", action="store_true", help="replace --out if it exists")
    made.add_argument("--json", action="store_true", help="print the summary as JSON")
    for name, field in model.model_fields.items():
        if name in RESERVED:
            raise DeclarationError.of(f"papers apply {paper.slug}", "option is taken by the command line", name, hint="rename the field")
        if (shape := _shape(field.annotation)) is not None:
            # A required field may stand in the file of --params, so that pydantic, not argparse, finds it missing.
            made.add_argument(_option(name), dest=name, default=ABSENT, help=_help(field), **shape)
    return made


def _paper_with_tool(slug: str) -> Paper:
    tools = [paper.slug for paper in registry.papers().values() if paper.apply]
    if slug not in tools:
        raise DeclarationError.of("papers apply", "no tool for paper", slug, tools)
    return registry.paper(slug)


def _shape(annotation: Any) -> dict[str, Any] | None:
    """How argparse reads a field of this type; None for nested models and mappings, which only --params can give."""
    if get_origin(annotation) in (typing.Union, types.UnionType):
        options = [option for option in get_args(annotation) if option is not type(None)]
        shapes = [shape for shape in map(_shape, options) if shape]
        literal = next((shape for shape in shapes if "choices" in shape), None)
        return ({"type": str} if literal and len(shapes) > 1 else shapes[0]) if shapes else None
    if get_origin(annotation) is Literal:
        return {"choices": get_args(annotation), "type": type(get_args(annotation)[0])}
    if get_origin(annotation) is typing.Annotated:
        return _shape(get_args(annotation)[0])
    if get_origin(annotation) in (tuple, list):
        inner = _shape(get_args(annotation)[0])
        return {**inner, "nargs": "+"} if inner else None
    if annotation is bool:
        return {"action": argparse.BooleanOptionalAction}
    if annotation is Path:
        return {"type": lambda text: Path(text).expanduser(), "metavar": "FILE"}
    return {"type": str, "metavar": {int: "N", float: "X", str: "TEXT"}[annotation]} if annotation in (int, float, str) else None


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _help(field: FieldInfo) -> str:
    text = field.description or ""
    if field.is_required():
        text += " (required)"
    elif field.default is not None:
        text += f" (default {' '.join(map(str, field.default)) if isinstance(field.default, tuple) else field.default})"
    return text.replace("%", "%%").strip()


def _first_line(paper: Paper) -> str:
    return (load_node(paper.apply).__doc__ or paper.title).strip().splitlines()[0]


def _from_file(path: Path, model: type[Params]) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"--params: there is no {path} (looked in {Path.cwd()})")
    values = {str(key).replace("-", "_"): value for key, value in read_mapping(path).items()}
    for name in values:
        if name not in model.model_fields:
            raise DeclarationError.of(f"--params {path}", "unknown option", name, list(model.model_fields))
    return values


def _problem(problem: Any) -> str:
    name, *deeper = problem["loc"] or ("",)
    option = _option(str(name)) + "".join(f".{part}" for part in deeper) if name != "" else "options"
    said = problem["msg"].removeprefix("Value error, ")
    return f"{option} is required" if problem["type"] == "missing" else f"{option}: {said}, got {problem['input']!r}"


def _rendered(summary: Summary) -> str:
    wide = max((len(name) for name in summary), default=0)
    return "\n".join(f"{name.replace('_', ' '):{wide}}  {_number(value)}" for name, value in summary.items())


def _number(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
