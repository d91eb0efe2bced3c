"""Examples in the docstrings of kernels and of the stages that use them run and say what they show."""

from __future__ import annotations

import doctest
import importlib

import pytest

NAMES = ("kernels.reference", "kernels.latent_decode", "kernels.split_decode", "speed", "quantised_evaluation")


@pytest.mark.parametrize("name", NAMES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(f"tasks.low_rank.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
