from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from kept_log import KeptLog
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parent))

import pnp_stages


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """As in a stage: small matrices on several threads wait for each other more than they work."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory):
    """Folder, metrics and log of all stages, run in this process."""
    root, log = tmp_path_factory.mktemp("pnp"), KeptLog()
    before = os.environ.get("PAPERS_THREADS")
    os.environ["PAPERS_THREADS"] = "1"
    try:
        metrics = pnp_stages.run_all(root, log)
    finally:
        if before is None:
            del os.environ["PAPERS_THREADS"]
        else:
            os.environ["PAPERS_THREADS"] = before
    return root, metrics, log
