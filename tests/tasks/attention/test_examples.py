"""Examples in docstrings and on the paper's page run and say what they show."""

from __future__ import annotations

import doctest
import importlib
import re

import attention_stages as stages
import pytest

MODULES = [
    ".".join(path.relative_to(stages.ROOT).with_suffix("").parts) for path in sorted((stages.ROOT / "tasks/attention").rglob("[a-z]*.py"))
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    assert sum(len(t.examples) for name in MODULES for t in finder.find(importlib.import_module(name))) > 25


def test_the_pages_snippets_run_one_after_the_other():
    page = stages.PAGE.read_text()
    names: dict = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)), names)
    assert names["tokens"].shape == names["more"].shape == (1, 404)
    assert 0 < names["share"] <= 1
    assert names["step"].shape == (8, 64)
    assert (names["read"] < 4000).all()
