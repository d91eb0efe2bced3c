"""The paper's stages, run one after the other in folders, as a pipeline would; and where its declaration, page and parameters lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from flows.lsp import paper
from tasks.common.node import Inputs, NullLog
from tasks.masked_diffusion import decoding_speed, register_trace, scheduler_calibration, scheduler_evaluation, training

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/papers/lsp.md"
SECTIONS: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text())["lsp"]
PAPER = paper


STAGES: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "prepare": (register_trace.prepare, register_trace.ProgramParams, ()),
    "warmstart": (training.pretrain, training.PretrainParams, ("prepare",)),
    "train": (scheduler_calibration.calibrate, scheduler_calibration.CalibrationParams, ("prepare", "warmstart")),
    "evaluate": (scheduler_evaluation.evaluate, scheduler_evaluation.CompareParams, ("prepare", "warmstart", "train")),
    "evaluate-speed": (decoding_speed.evaluate, decoding_speed.DecodingSpeedParams, ("prepare", "warmstart", "train")),
}
"""Node, its parameters' model, its needs."""


def run(root: Path, params: dict[str, Any] = SECTIONS["smoke"], log: NullLog | None = None) -> dict[str, dict[str, float]]:
    metrics: dict[str, dict[str, float]] = {}
    for name, (node, model, needs) in STAGES.items():
        out = root / name
        out.mkdir(parents=True)
        metrics[name] = node(model(**params[name]), Inputs({need: root / need for need in needs}), out, log or NullLog())
    return metrics
