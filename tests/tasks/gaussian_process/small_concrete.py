"""Prepared data and a warm start of a small part of Concrete, and parameters that fit them."""

from __future__ import annotations

from pathlib import Path

from tasks.common.node import Inputs, NullLog
from tasks.gaussian_process.datasets import PrepareParams, prepare
from tasks.gaussian_process.experiment import Architecture, SetParams
from tasks.gaussian_process.training import FitParams
from tasks.gaussian_process.warmstart import WarmstartParams, warmstart

COMMON = {
    "data": {"concrete": SetParams(seeds=2, steps=100)},
    "architecture": Architecture(inducing=8),
    "fit": FitParams(batch=64, curve=2, curve_draws=8, draws=16),
}


def make_inputs(root: Path) -> Inputs:
    """Both stages that every training stage needs."""
    prepare(PrepareParams(data=("concrete",), seeds=2, rows={"concrete": 160}), Inputs(), root / "prepare", NullLog())
    folders = Inputs({"prepare": root / "prepare", "warmstart": root / "warmstart"})
    folders["warmstart"].mkdir()
    warmstart(WarmstartParams(**COMMON, warm_steps=20), folders, folders["warmstart"], NullLog())
    return folders
