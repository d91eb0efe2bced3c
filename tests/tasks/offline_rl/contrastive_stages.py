"""The stages of the preference-based paper with the parameters of `params.yaml`."""

import importlib
import typing
from dataclasses import dataclass, field
from pathlib import Path

from kept_log import KeptLog
from ruamel.yaml import YAML

from flows.contrastive_offline_rl import paper
from tasks.common.node import Inputs

SECTIONS = YAML(typ="safe").load((Path(__file__).parents[3] / "params.yaml").read_text())[paper.slug]


@dataclass
class Run:
    """What the stages left: metrics by stage, names of figures, timings, folder."""

    folder: Path
    metrics: dict = field(default_factory=dict)
    log: KeptLog = field(default_factory=KeptLog)

    def all_metrics(self):
        return {name: value for part in self.metrics.values() for name, value in part.items()}


def stages(profile):
    """(stage, node, validated parameters) in an order that respects the needs."""
    for kind in ("prepare", "warmstart", "train", "evaluate"):
        for stage in paper.stages:
            if stage.kind == kind and profile in stage.profiles:
                module, _, function = stage.node.partition(":")
                node = getattr(importlib.import_module(module), function)
                sections = SECTIONS[profile]
                alone = stage.name in sections
                section = sections[stage.name] if alone else sections[kind][stage.name.split("-", 1)[1]]
                yield stage, node, typing.get_type_hints(node)["params"](**section)


def run(folder):
    """All stages of the smoke profile."""
    found = Run(folder)
    for stage, node, params in stages("smoke"):
        out = folder / stage.name
        out.mkdir()
        found.metrics[stage.name] = node(params, Inputs({need: folder / need for need in stage.needs}), out, found.log)
    return found
