"""Toy checkouts: one is built and run per test process, every test gets a copy."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import factory
import running


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy checkout with two papers and a shared stage, run once; read it, never change it."""
    folder = factory.make_project(tmp_path_factory.mktemp("finished"), shared=True)
    factory.dvc(folder, "repro")
    factory.run(folder, "git", "add", "-A")
    factory.run(folder, "git", "commit", "-q", "-m", "results")
    return folder


@pytest.fixture
def toy(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished toy checkout to do anything with."""
    return copy(finished, tmp_path / "toy")


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A toy checkout in which nothing has run."""
    return factory.make_project(tmp_path / "fresh")


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database, made once: a new one costs seconds."""
    from flows.engine import tracking
    from flows.engine.project import Project

    project = Project(tmp_path_factory.mktemp("migrated"))
    tracking.initialise(project)
    return project.database


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[running.Served]:
    """`papers serve` for a toy checkout in which nothing has run; ended with the tests, and nothing of it may be left then."""
    yield from running.serve(factory.make_project(tmp_path_factory.mktemp("served"), shared=True))


def copy(source: Path, target: Path) -> Path:
    """Copy a checkout, locks and caches included."""
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return target
