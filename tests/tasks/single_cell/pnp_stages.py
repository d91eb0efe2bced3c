"""The paper's stages on tiny cohorts, run one after the other in folders, as a pipeline would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kept_log import KeptLog

from tasks.common.node import Inputs, NullLog
from tasks.single_cell import (
    baseline_evaluation,
    basis_ablation,
    calibration,
    cohorts,
    dice_evaluation,
    prior_training,
    report,
    sweep,
)

TARGETS = ("setup1", "setup3", "setup4", "setup5", "pbmc_p30")
COHORTS = {"targets": TARGETS, "seeds": 2, "n_reference": 240, "n_target": 60, "genes": 80, "latents": 3}
NETWORK = {"hidden": 8, "blocks": 1, "steps": 20, "batch": 32}
CHAIN = {"iterations": 22, "burn_in": 2}

PARAMS: dict[str, Any] = {
    "prepare-reference": cohorts.CohortParams(**COHORTS),
    "prepare-target": cohorts.CohortParams(**COHORTS),
    "warmstart": prior_training.PriorParams(latents=3, denoiser=NETWORK),
    "train-rho": calibration.CalibrateParams(grid=(0.3, 1.2), gibbs={"iterations": 4, "burn_in": 2}, n_sub=3),
    "train-basis": basis_ablation.BasisParams(components=(2,), seeds=1, prior={"latents": 3, "denoiser": NETWORK}, gibbs=CHAIN),
    "evaluate-dice": dice_evaluation.DiceEvaluationParams(
        gibbs={"iterations": 4, "burn_in": 2},
        published={"iterations": 3, "burn_in": 1, "repeats": 10},
        published_counts={"rho_start": 5, "rho_end": 0.5, "schedule": "linear", "iterations": 3, "burn_in": 2, "repeats": 10},
        n_sub=3,
    ),
    "evaluate-baselines": baseline_evaluation.BaselineParams(),
    "evaluate-sweep": sweep.SweepParams(grid=(0.3, 0.7, 1.2), rho_targets=("setup1", "pbmc_p30"), gibbs=CHAIN, n_sub=3),
    "evaluate": report.ReportParams(map_target="pbmc_p30", sweep_targets=("setup1", "pbmc_p30")),
}
NODES: dict[str, Any] = {
    "prepare-reference": cohorts.prepare_reference,
    "prepare-target": cohorts.prepare_target,
    "warmstart": prior_training.warmstart,
    "train-rho": calibration.train,
    "train-basis": basis_ablation.train,
    "evaluate-dice": dice_evaluation.evaluate,
    "evaluate-baselines": baseline_evaluation.evaluate,
    "evaluate-sweep": sweep.evaluate,
    "evaluate": report.evaluate,
}


def run_stage(name: str, root: Path, out: Path, log: NullLog | None = None, params: Any = None) -> dict[str, float]:
    """One stage, with the folders of all others in `root`."""
    out.mkdir(parents=True, exist_ok=True)
    metrics: dict[str, float] = NODES[name](params or PARAMS[name], Inputs({need: root / need for need in NODES}), out, log or NullLog())
    return metrics


def run_all(root: Path, log: KeptLog) -> dict[str, dict[str, float]]:
    """All stages in order."""
    return {name: run_stage(name, root, root / name, log) for name in NODES}
