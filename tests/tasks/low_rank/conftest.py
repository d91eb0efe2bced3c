"""Puts this folder on the path, for what tests share; the language model's stages, run once for all tests that look at them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def one_process(monkeypatch):
    """Stages stay in this process: others take seconds to start."""
    monkeypatch.setenv("PAPERS_THREADS", "1")


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Stages before training, run on two seeds."""
    from tests.tasks.low_rank.stages import made_folders

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAPERS_THREADS", "1")
        return made_folders(tmp_path_factory.mktemp("wsvd"))


@pytest.fixture(scope="session")
def trained(folders):
    """Metrics of the training stage."""
    from tasks.common.node import Inputs, NullLog
    from tasks.low_rank.train import TrainParams, train
    from tests.tasks.low_rank.stages import ARMS

    return train(TrainParams(seeds=2, arms=ARMS, workers=1), Inputs(folders), folders["train"], NullLog())
