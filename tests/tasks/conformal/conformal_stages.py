"""The paper's stages, run one after the other in folders, as a pipeline would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from kept_log import KeptLog

from tasks.common.node import Inputs
from tasks.conformal import calibration, datasets, evaluation, fitting, robustness, sweep

SMOKE = yaml.safe_load((Path(__file__).parents[3] / "params.yaml").read_text())["uncertain_imputation"]["smoke"]


def run(root: Path, params: dict[str, Any] = SMOKE, log: KeptLog | None = None) -> dict[str, dict[str, float]]:
    log = log or KeptLog()
    train = params["train"]
    metrics: dict[str, dict[str, float]] = {}
    for name, node, options, needs in (
        ("prepare", datasets.prepare, datasets.PrepareParams(**params["prepare"]), ()),
        ("warmstart", fitting.warmstart, fitting.FitParams(**params["warmstart"]), ("prepare",)),
        ("train-thresholds", calibration.train, calibration.CalibrateParams(**train["thresholds"]), ("prepare", "warmstart")),
        ("train-triply", robustness.train, robustness.RobustnessParams(**train["triply"]), ()),
        ("train-sweep", sweep.train, sweep.SweepParams(**train["sweep"]), ()),
        (
            "evaluate",
            evaluation.evaluate,
            evaluation.EvaluateParams(**params["evaluate"]),
            ("prepare", "warmstart", "train-thresholds", "train-triply", "train-sweep"),
        ),
    ):
        out = root / name
        out.mkdir(parents=True)
        metrics[name] = node(options, Inputs({need: root / need for need in needs}), out, log)  # type: ignore[operator]
    return metrics


def one_split(seed: int = 0, n: int = 1200, share: float = 0.3) -> calibration.Split:
    """Rows of one split with right models: Y = X + 2 Z + noise, corruption above Z = 0.6."""
    rng = np.random.default_rng(seed)
    x, z = rng.random(n), rng.random(n)
    y = x + 2 * z + rng.standard_normal(n) * (0.3 + z)
    probability = np.where(z > 0.6, 2.5 * share * 0.9, 0.0)
    masked = rng.random(n) < probability
    table = pd.DataFrame(
        {
            "row": np.arange(n),
            "z_0": z,
            "y": y,
            "masked": masked,
            "observed": np.where(masked, np.nan, y),
            "probability": probability,
            "lower": x,
            "upper": x + 2,
            "impute": x + 2 * z,
            "impute_linear": x + 2 * z,
            "mask_probability": np.clip(probability + 0.05, 0, 1),
        }
    )
    third = n // 3
    parts = (table.iloc[:third], table.iloc[third : 2 * third], table.iloc[2 * third :])
    return calibration.Split(*(p.reset_index(drop=True) for p in parts), seed)
