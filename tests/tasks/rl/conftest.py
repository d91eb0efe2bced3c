from __future__ import annotations

import sys
from pathlib import Path

import pytest
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="session")
def smoke():
    """(metrics by stage, figures, folder) of the smoke stages in one process."""
    import polychromic_stages

    return polychromic_stages.kept()
