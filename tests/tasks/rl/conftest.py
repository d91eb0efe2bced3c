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
def smoke(tmp_path_factory):
    """(metrics by stage, figures, folder) of the smoke stages in one process."""
    import polychromic_stages

    folder = tmp_path_factory.mktemp("polychromic")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAPERS_THREADS", "1")
        metrics, figures = polychromic_stages.run(folder)
    return metrics, figures, folder
