"""A local Minari store for the tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "offline_rl"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A local Minari store with `test/pendulum-v0`."""
    import minari_store

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("minari")))
        minari_store.write_store()
        yield


@pytest.fixture(scope="session")
def contrastive_smoke(tmp_path_factory):
    """Every stage of the preference-based paper on the smoke parameters, in one process and in two."""
    import contrastive_stages

    runs = []
    with pytest.MonkeyPatch.context() as patch:
        for threads in ("1", "2"):
            patch.setenv("PAPERS_THREADS", threads)
            runs.append(contrastive_stages.run(tmp_path_factory.mktemp(f"contrastive{threads}")))
    return runs
