from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from kept_log import KeptLog
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """As in a stage: small batches on several threads wait for each other more than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch, threadpool_limits(1):
        patch.setenv("PAPERS_THREADS", "1")
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    import diffusion_stages

    root, log = tmp_path_factory.mktemp("smoke"), KeptLog()
    return root, diffusion_stages.run(root, log=log), log
