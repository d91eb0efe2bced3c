"""Examples in docstrings and on the paper's page run and say what they show."""

from __future__ import annotations

import doctest
import importlib
import re

import pytest
from diffusion_stages import PAGE, ROOT

MODULES = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted((ROOT / "tasks/masked_diffusion").glob("[a-z]*.py"))]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_pages_snippets_run_one_after_the_other():
    names: dict = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)), names)
    assert names["found"].counters.contiguous_runs == 1
    assert names["answer"].tokens
