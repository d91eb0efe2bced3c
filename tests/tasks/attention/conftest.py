from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
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
def pipeline(tmp_path_factory):
    """Folders, metrics and logs of every stage of the smoke profile."""
    import attention_stages as stages

    root = tmp_path_factory.mktemp("vattention")
    stages.warmstart(root)
    logs = {name: stages.KeptLog() for name in stages.NODES}
    return root, {name: stages.run(root, name, logs[name]) for name in stages.NODES}, logs
