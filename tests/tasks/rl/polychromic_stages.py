"""The paper's stages on the smoke parameters, run once in this process; some of them again, in two."""

from __future__ import annotations

import atexit
import importlib
import tempfile
import typing
from functools import cache
from pathlib import Path

import pytest
from kept_log import KeptLog
from ruamel.yaml import YAML

from flows.polychromic import paper
from tasks.common.node import Inputs

SECTIONS = YAML(typ="safe").load((Path(__file__).parents[3] / "params.yaml").read_text())["polychromic"]


def bound(profile):
    """(stage, node, parameters) in an order that respects the needs."""
    for kind in ("prepare", "warmstart", "train", "evaluate"):
        for stage in paper.stages:
            if stage.kind == kind and profile in stage.profiles:
                module, _, function = stage.node.partition(":")
                node = getattr(importlib.import_module(module), function)
                yield stage, node, typing.get_type_hints(node)["params"](**SECTIONS[profile][kind][stage.name.split("-", 1)[1]])


@cache
def kept():
    """(metrics by stage, figures, folder) of all smoke stages in one process, made once for all tests."""
    folder = tempfile.TemporaryDirectory(prefix="polychromic-")
    atexit.register(folder.cleanup)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAPERS_THREADS", "1")
        metrics, figures = run(Path(folder.name))
    return metrics, figures, Path(folder.name)


def run(folder, only=None, source=None):
    """Metrics by stage and names of figures; inputs of single stages come from `source`."""
    log, metrics = KeptLog(), {}
    for stage, node, params in bound("smoke"):
        if only is None or stage.name in only:
            out = folder / stage.name
            out.mkdir(parents=True)
            metrics[stage.name] = node(params, Inputs({need: (source or folder) / need for need in stage.needs}), out, log)
    return metrics, list(log.figures)
