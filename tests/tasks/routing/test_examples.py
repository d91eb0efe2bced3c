"""Examples in docstrings and on the paper's page run and say what they show."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULES = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted((ROOT / "tasks/routing").glob("[a-z]*.py"))]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_pages_snippets_run_one_after_the_other():
    page = (ROOT / "docs/papers/lmask.md").read_text()
    names: dict = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)), names)
    assert names["found"].solved.all()
    assert names["model"].problem == "tsptw"
