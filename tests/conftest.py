"""Nothing that runs here may touch the home folder of the person who runs it."""

from __future__ import annotations

import os
import tempfile

import pytest

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
