"""The paper's stages on the smoke parameters, run twice: in one process and in two."""

import importlib
import sys
import typing
import warnings
from pathlib import Path

import pytest
from kept_log import KeptLog
from ruamel.yaml import YAML

from flows.dataset_distillation import paper
from tasks.common.node import Inputs

sys.path.insert(0, str(Path(__file__).parents[1] / "offline_rl"))

SECTIONS = YAML(typ="safe").load((Path(__file__).parents[3] / "params.yaml").read_text())["dataset_distillation"]


def stages(profile):
    """(stage, node, parameters) in an order that respects the needs."""
    for kind in ("prepare", "warmstart", "train", "evaluate"):
        for stage in paper.stages:
            if stage.kind == kind and profile in stage.profiles:
                module, _, function = stage.node.partition(":")
                node = getattr(importlib.import_module(module), function)
                section = SECTIONS[profile][kind][stage.name.split("-", 1)[1]]
                yield stage, node, typing.get_type_hints(node)["params"](**section)


def run(folder):
    log, metrics = KeptLog(), {}
    for stage, node, params in stages("smoke"):
        out = folder / stage.name
        out.mkdir()
        metrics[stage.name] = node(params, Inputs({need: folder / need for need in stage.needs}), out, log)
    return metrics, list(log.figures), folder


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """Two runs: (metrics by stage, names of figures, folder)."""
    runs = []
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for threads in ("1", "2"):
            patch.setenv("PAPERS_THREADS", threads)
            runs.append(run(tmp_path_factory.mktemp(f"threads{threads}")))
    return runs


@pytest.fixture
def parameters():
    """Validated parameters of every stage of a profile, by stage."""
    return lambda profile: {stage.name: params for stage, _, params in stages(profile)}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A local Minari store with `test/pendulum-v0`."""
    import minari_store

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("minari")))
        minari_store.write_store()
        yield
