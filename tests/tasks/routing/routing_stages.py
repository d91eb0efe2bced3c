"""The paper's stages, run one after the other in folders, as a pipeline would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tasks.common.node import Inputs, NullLog
from tasks.routing import arms, datasets, evaluation, references, warm_starts

SMOKE = yaml.safe_load((Path(__file__).parents[3] / "params.yaml").read_text())["lmask"]["smoke"]
SETS = ("medium", "hard", "dl")


def stages(params: dict[str, Any]) -> list[tuple[str, Any, Any, tuple[str, ...]]]:
    """Name, node, its parameters, its needs."""
    found = [
        ("prepare", datasets.prepare, datasets.PrepareParams(**params["prepare"]), ()),
        ("prepare-references", references.prepare, references.ReferenceParams(**params["prepare-references"]), ("prepare",)),
    ]
    for name in SETS:
        found.append((f"warmstart-{name}", warm_starts.warmstart, warm_starts.WarmStartParams(**params["warmstart"][name]), ("prepare",)))
        needs = ("prepare", f"warmstart-{name}")
        found.append((f"train-{name}", arms.train, arms.TrainParams(**params["train"][name]), needs))
    needs = ("prepare", "prepare-references", *(f"train-{name}" for name in SETS))
    found.append(("evaluate", evaluation.evaluate, evaluation.EvaluateParams(**params["evaluate"]), needs))
    return found


def run(root: Path, params: dict[str, Any] = SMOKE, log: NullLog | None = None) -> dict[str, dict[str, float]]:
    metrics: dict[str, dict[str, float]] = {}
    for name, node, options, needs in stages(params):
        out = root / name
        out.mkdir(parents=True)
        metrics[name] = node(options, Inputs({need: root / need for need in needs}), out, log or NullLog())
    return metrics
