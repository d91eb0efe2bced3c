"""The paper's stages on a tiny random model, run one after the other in folders, as a pipeline would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from kept_log import KeptLog

from tasks.attention import calibration, guarantees, quality, speed
from tasks.common.node import Inputs, NullLog
from tasks.language_models import benchmark_files, smollm2

ROOT = Path(__file__).parents[3]
PARAMS = ROOT / "params.yaml"
PAGE = ROOT / "docs/papers/vattention.md"
SECTIONS = yaml.safe_load(PARAMS.read_text())["vattention"]
SMOKE = SECTIONS["smoke"]
NODES = {
    "prepare": (benchmark_files.prepare, benchmark_files.BenchmarkParams, ("warmstart",)),
    "train": (calibration.calibrate, calibration.CalibrateParams, ("warmstart", "prepare")),
    "evaluate": (quality.evaluate, quality.QualityParams, ("warmstart", "prepare", "train")),
    "evaluate-guarantees": (guarantees.evaluate, guarantees.GuaranteeParams, ("warmstart", "prepare", "train")),
    "evaluate-speed": (speed.evaluate, speed.SpeedParams, ()),
}


def paper():
    from flows.vattention import paper as declared

    return declared


def warmstart(root: Path) -> None:
    """A tiny random Llama with a tokenizer of its own."""
    (root / "warmstart").mkdir(parents=True, exist_ok=True)
    smollm2.prepare(smollm2.SmolLM2Params(source="random"), Inputs(), root / "warmstart", NullLog())


def run(root: Path, stage: str, log: Any = None, **changes: Any) -> dict[str, float]:
    """One stage with the smoke profile's parameters, some changed."""
    node, params, needs = NODES[stage]
    out = root / stage
    out.mkdir(exist_ok=True)
    return node(params(**{**SMOKE[stage], **changes}), Inputs({need: root / need for need in needs}), out, log or KeptLog())
