from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kept_log import KeptLog
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parent))

import conformal_stages


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """As in a stage: small models on several threads wait for each other more than they work."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    root, log = tmp_path_factory.mktemp("smoke"), KeptLog()
    return root, conformal_stages.run(root, log=log), log
