"""Examples in docstrings and on the paper's page run and say what they show."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULES = [f"tasks.gaussian_process.{path.stem}" for path in sorted((ROOT / "tasks/gaussian_process").glob("[a-z]*.py"))]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    assert sum(len(t.examples) for name in MODULES for t in finder.find(importlib.import_module(name))) > 60


def test_the_pages_snippets_run_one_after_the_other():
    page = (ROOT / "docs/papers/dbvi.md").read_text()
    names: dict = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)), names)
    assert names["std"].shape == names["mean"].shape
    assert (names["lower"] < names["upper"]).all()
    assert names["chain"].end_variance == pytest.approx(0.09)
