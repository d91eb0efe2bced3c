"""The start of a new paper: files that import, with everything a paper owes still to be written.

What is written here passes `papers sync` and fails `make test`: claims, a negative control, budgets, nodes and tests are missing,
and `tests/flows/test_papers.py` says so, one line for each.
"""

from __future__ import annotations

import keyword
import re
from pathlib import Path

import yaml

from flows.engine.declare import KINDS, PROFILES, DeclarationError
from flows.engine.project import PARAMS
from flows.engine.registry import NOT_PAPERS

MODULE = "stages"
_SLUG = re.compile(r"[a-z][a-z0-9_]*")
_TAKEN = (*NOT_PAPERS, "engine", "common")

PAPER = '''"""{title}: docs/papers/{slug}.md, https://arxiv.org/abs/{arxiv}."""

from typing import Any

from flows.engine.declare import Paper, Stage

paper = Paper(
    slug="{slug}",
    title="{title}",
    arxiv="{arxiv}",
    summary="",
    stages=[
        Stage("prepare", "tasks.{slug}.{module}:prepare"),
        Stage("warmstart", "tasks.{slug}.{module}:warmstart", needs=["prepare"]),
        Stage("train", "tasks.{slug}.{module}:train", needs=["prepare", "warmstart"]),
        Stage("evaluate", "tasks.{slug}.{module}:evaluate", needs=["prepare", "train"]),
    ],
    claims=[],
    deviations=[],
)


def __getattr__(name: str) -> Any:
    if name == "flow":
        return paper.flow()
    raise AttributeError(f"module {{__name__!r}} has no attribute {{name!r}}")
'''

NODES = '''"""The stages of {title}: what each reads, does and leaves in its folder."""

from __future__ import annotations

from pathlib import Path

from tasks.common.node import Inputs, Log, Metrics, Params
'''

NODE = '''

class {model}(Params):
    """Parameters of `{kind}`; those that a person would turn also stand in params.yaml."""

    seed: int = 0


def {kind}(params: {model}, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """{what}"""
    raise NotImplementedError("{slug}: stage {kind} is not written yet; write tasks/{slug}/{module}.py:{kind}")
'''

WHAT = {
    "prepare": "Make the data that the other stages read.",
    "warmstart": "Make what training starts from.",
    "train": "Run the method, and its baselines beside it.",
    "evaluate": "Measure what the claims are about, and draw the figures.",
}

TEST = '''"""Tests of tasks/{slug}/{module}.py: slow twin or closed form, an invariant, a failure, a golden case, the negative control."""
'''

PAGE = """# {title}

[arXiv {arxiv}](https://arxiv.org/abs/{arxiv})

## What the paper says

## What is built here

## Results

<!-- scorecard:begin -->
<!-- scorecard:end -->

<!-- figures:begin -->
<!-- figures:end -->

## The method as a library

## Data and licences
"""


def create(root: Path, slug: str, title: str = "", arxiv: str = "") -> list[Path]:
    """Write the skeleton of a paper into a checkout: all of it, or nothing.

    Args:
        root: the checkout.
        slug: name of the module, of the folders and of the section in `params.yaml`.
        title: the paper's title; the slug in words if it is not given.
        arxiv: arXiv identifier, `2512.00536`.

    Returns:
        The files written, `params.yaml` among them.

    Raises:
        DeclarationError: for a name that cannot be used, a paper that exists, or a `params.yaml` that cannot take a section.
    """
    _check_names(slug, title, arxiv)
    words = {
        "slug": slug,
        "title": " ".join(title.split()) or slug.replace("_", " ").capitalize(),
        "arxiv": arxiv or "0000.00000",
        "module": MODULE,
    }
    texts = {
        root / "flows" / f"{slug}.py": PAPER.format(**words),
        root / "tasks" / slug / "__init__.py": '"""{title}."""\n'.format(**words),
        root / "tasks" / slug / f"{MODULE}.py": _nodes(words),
        root / "tests" / "tasks" / slug / f"test_{MODULE}.py": TEST.format(**words),
        root / "docs" / "papers" / f"{slug}.md": PAGE.format(**words),
    }
    for path in (*texts, root / "tasks" / slug):
        if path.exists():
            raise DeclarationError.of("papers new", "already there:", str(path.relative_to(root)), hint="choose another slug, or remove it")
    texts[root / PARAMS] = _with_section(root / PARAMS, slug)
    _write(texts)
    return list(texts)


def _check_names(slug: str, title: str, arxiv: str) -> None:
    if not _SLUG.fullmatch(slug) or keyword.iskeyword(slug):
        raise DeclarationError.of("papers new", "bad slug", slug, hint="use lower-case letters, digits and underscores, a letter first")
    if slug in _TAKEN:
        raise DeclarationError.of("papers new", "slug is taken by the collection itself:", slug, hint="choose another")
    if '"' in title or "\\" in title:
        raise DeclarationError.of("papers new", "bad title", title, hint="leave out double quotes and backslashes")
    if arxiv and not re.fullmatch(r"\d{4}\.\d{4,5}", arxiv):
        raise DeclarationError.of("papers new", "bad arXiv identifier", arxiv, hint="write it like 2512.00536")


def _nodes(words: dict[str, str]) -> str:
    nodes = (NODE.format(kind=kind, model=f"{kind.capitalize()}Params", what=WHAT[kind], **words) for kind in KINDS)
    return NODES.format(**words) + "".join(nodes)


def _with_section(path: Path, slug: str) -> str:
    """`params.yaml` with a section for the paper at its end, everything else as it was, comments included."""
    before = path.read_text(encoding="utf-8")
    lines = [f"{slug}:", *(line for profile in PROFILES for line in (f"  {profile}:", *(f"    {kind}: {{seed: 0}}" for kind in KINDS)))]
    after = before.rstrip("\n") + ("\n\n" if before.strip() else "") + "\n".join(lines) + "\n"
    try:
        old, new = yaml.safe_load(before) or {}, yaml.safe_load(after)
    except yaml.YAMLError as error:
        raise DeclarationError(f"{path}: cannot take a section at its end ({' '.join(str(error).split())}); mend it first") from None
    if not isinstance(old, dict) or slug in old:
        seen = slug if isinstance(old, dict) else type(old).__name__
        raise DeclarationError.of(PARAMS, "must be a mapping without the section, got", seen, hint="remove it, or choose another slug")
    if {name: value for name, value in new.items() if name != slug} != old:
        raise DeclarationError.of(PARAMS, "would read otherwise with a section at its end, of", slug, hint="end its last section properly")
    return after


def _write(texts: dict[Path, str]) -> None:
    """Write every file under a temporary name, then move them into place; undo everything if one cannot be written."""
    made: list[Path] = []
    temporary = {path: path.with_name(f".{path.name}.new") for path in texts}
    try:
        for path, text in texts.items():
            for parent in reversed([p for p in path.parents if not p.exists()]):
                parent.mkdir()
                made.append(parent)
            made.append(temporary[path])
            temporary[path].write_text(text, encoding="utf-8")
        for path in texts:
            known = path.exists()
            temporary[path].replace(path)
            if not known:
                made.append(path)
    except OSError as error:
        for path in reversed(made):
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        raise DeclarationError(f"papers new: could not write {error.filename} ({error.strerror}); nothing was changed") from None
