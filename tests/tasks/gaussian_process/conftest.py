"""Puts this folder on the path, and makes the stages that training needs once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def small_inputs(tmp_path_factory):
    """Prepared data and warm start, see `small_concrete`."""
    import small_concrete

    return small_concrete.make_inputs(tmp_path_factory.mktemp("small_concrete"))
