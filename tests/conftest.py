"""Nothing that runs here may touch the home folder of the person who runs it."""

from __future__ import annotations

import os
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Before anything imports a library that reads these.
_HOME = tempfile.TemporaryDirectory(prefix="iclr2026-home-")
os.environ.update(
    HOME=_HOME.name,
    PREFECT_HOME=f"{_HOME.name}/.prefect",
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS="180",
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    DO_NOT_TRACK="1",
    DVC_NO_ANALYTICS="1",
    MLFLOW_DISABLE_TELEMETRY="true",
    MPLBACKEND="Agg",
)


@pytest.fixture(scope="session", autouse=True)
def _own_home():
    yield
    _HOME.cleanup()


class GroupScheduling(LoadScopeScheduling):
    """Tests in files that name a group, as in `xdist_group("prefect")`, all go to one process, since they share a server.

    What `--dist=loadgroup` does by itself has no effect with pytest 9.2: it renames tests, which pytest no longer lets it.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _group(self.config.rootpath / nodeid.partition("::")[0]) or nodeid


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


@cache
def _group(path: Path) -> str:
    found = re.search(r'xdist_group\("(\w+)"\)', path.read_text(encoding="utf-8"))
    return found[1] if found else ""
