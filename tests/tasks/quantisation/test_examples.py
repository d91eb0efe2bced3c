"""Examples in docstrings run and say what they show."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = [f"tasks.quantisation.{name}" for name in ("quantisers", "rotations", "quantised_training", "baselines")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
