"""Training stage of DSVI: Gaussian posteriors over the inducing variables, from the common warm start."""

from __future__ import annotations

import time
from pathlib import Path

from tasks.common.node import Inputs, Log, Metrics
from tasks.gaussian_process.experiment import Outcome, TrainParams, Work, load_shared, read_warm, report, run_stage, set_items, tables
from tasks.gaussian_process.training import train as fit_model
from tasks.gaussian_process.warmstart import gaussian_model

ARM = "dsvi"


def train(params: TrainParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `runs.parquet` and `curves.parquet` of arm `dsvi`."""
    return report(run_stage(_one, set_items(params, inputs), params.device, out, log), [ARM])


def _one(item: Work) -> Outcome:
    problem = item.problem()
    model = gaussian_model(problem, item.params.architecture, item.seeds)
    load_shared(model, read_warm(item.warm, item.name, len(item.seeds)))
    before = time.perf_counter()
    fit = fit_model(model, problem, item.params.fit, item.steps, item.seeds)
    return Outcome(*tables(ARM, item.name, item.seeds, fit), {f"{ARM}_{item.name}": (time.perf_counter() - before) / item.steps})
