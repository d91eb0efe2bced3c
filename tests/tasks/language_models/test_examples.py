"""Examples in docstrings run and say what they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULES = [f"tasks.language_models.{path.stem}" for path in sorted((ROOT / "tasks/language_models").glob("[a-z]*.py"))]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    assert sum(len(t.examples) for name in MODULES for t in finder.find(importlib.import_module(name))) > 10
