"""The paper's stages, run one after the other in folders, as a pipeline would."""

from __future__ import annotations

import os
import typing
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from kept_log import KeptLog

from flows.dbvi import paper
from flows.engine.plan import params_path
from tasks.common.node import Inputs

SECTIONS = yaml.safe_load((Path(__file__).parents[3] / "params.yaml").read_text())


def run(root: Path, log: KeptLog | None = None, profile: str = "smoke", in_a_pool: str = "") -> dict[str, dict[str, float]]:
    """Metrics by stage; the declaration lists stages in an order in which they can run. One stage may use a pool of two processes."""
    log, metrics = log or KeptLog(), {}
    for name, fixed in [variant for stage in paper.stages for variant in stage.variants()]:
        stage = paper.stage(name)
        section: Any = SECTIONS
        for key in params_path(paper.slug, profile, stage.name):
            section = section[key]
        module, _, function = stage.node.partition(":")
        node = getattr(import_module(module), function)
        params = _params_of(node)(**(section | fixed))
        needed = [other for other in paper.stages if other.name in stage.needs]
        needs = {full: root / full for other in needed for full, _ in other.variants()}
        (root / name).mkdir(parents=True)
        os.environ["PAPERS_THREADS"] = "2" if name == in_a_pool else "1"
        metrics[name] = node(params, Inputs(needs), root / name, log)
    return metrics


def _params_of(node: Any) -> Any:
    return typing.get_type_hints(node)["params"]
