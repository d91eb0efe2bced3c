"""Training stage of the independent reference: DSVI by GPyTorch from the common warm start, with our DSVI's minibatches and noise.

Regressions only. A seed costs as much as all seeds of our batched models together, so few seeds suffice: the arm says whether our
DSVI is the known method, not which method is best.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor

from tasks.common.node import Inputs, Log, Metrics
from tasks.gaussian_process import predictive_metrics as scores
from tasks.gaussian_process.experiment import Outcome, TrainParams, Work, load_shared, read_warm, report, run_stage, set_items
from tasks.gaussian_process.gpytorch_reference import ReferenceDeepGP, predict
from tasks.gaussian_process.prediction import OUTLYING
from tasks.gaussian_process.streams import SeedStreams
from tasks.gaussian_process.training import LAST_STEPS, NOISE, ROWS, TEST
from tasks.gaussian_process.warmstart import gaussian_model
from tasks.training.loop import descend

ARM = "dsvi_gpytorch"
RUNS = ["arm", "data", "seed", "quantity", "value"]
CURVES = ["arm", "data", "seed", "step", "quantity", "value"]


def train(params: TrainParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `runs.parquet` of arm `dsvi_gpytorch`, and `curves.parquet`, which is empty but for the bound at the end.

    Raises:
        ValueError: for a classification, naming it.
    """
    items = [(item, seed) for item in set_items(params, inputs) for seed in item.seeds]
    return report(run_stage(_one, items, params.device, out, log), [ARM])


def _one(job: tuple[Work, int]) -> Outcome:
    item, seed = job
    problem, fit = item.problem(), item.params.fit
    if problem.classes:
        raise ValueError(f"arm {ARM!r} is for regressions, got the classification {item.name!r}; leave it out of this stage's data")
    ours = gaussian_model(problem, item.params.architecture, item.seeds)
    load_shared(ours, read_warm(item.warm, item.name, len(item.seeds)))
    at = item.seeds.index(seed)
    x, y = problem.x[at], problem.y[at]
    model = ReferenceDeepGP(ours, at).to(x.device)
    noise, choice, test = (SeedStreams([seed], purpose, str(x.device), x.dtype) for purpose in (NOISE, ROWS, TEST))

    def draws(streams: SeedStreams, samples: int, rows: int) -> list[Tensor]:
        return [streams.normal(samples, rows, width)[0] for width in model.widths]

    def loss(step: int) -> Tensor:
        rows = choice.rows(problem.rows, fit.batch)[0]
        bound: Tensor = model.bound(x[rows], y[rows], problem.rows, draws(noise, fit.samples, len(rows)))
        return -bound

    before = time.perf_counter()
    losses = descend(loss, list(model.parameters()), item.steps, rate=fit.rate, schedule=fit.schedule, clip=fit.clip)
    seconds = (time.perf_counter() - before) / item.steps
    test_noise = draws(test, fit.draws, problem.x_test.shape[1])
    found = _judged(model, problem.x_test[at], problem.y_test[at], problem.y_sd[at], test_noise)
    found["elbo"] = -losses[-LAST_STEPS:].mean()
    found["kl"] = np.asarray(model.divergence())
    runs = pd.DataFrame([(ARM, item.name, seed, q, float(v)) for q, v in found.items()], columns=RUNS)
    curves = pd.DataFrame([(ARM, item.name, seed, item.steps, "elbo", float(found["elbo"]))], columns=CURVES)
    return Outcome(runs, curves, {f"{ARM}_{item.name}": seconds})


def _judged(model: ReferenceDeepGP, x: Tensor, y: Tensor, sd: float, noise: list[Tensor]) -> dict[str, np.ndarray]:
    mean, variance = (part.expand(len(noise[0]) if noise else 1, -1).cpu().double().numpy() for part in predict(model, x, noise))
    targets = y.cpu().double().numpy()
    error = scores.rmse(scores.mixture_mean(mean), targets)
    return {
        "rmse": error * sd,
        "rmse_sd": error,
        "nll": scores.mixture_nll(mean, variance, targets, sd),
        "coverage": scores.mixture_coverage(mean, variance, targets),
        "outlying": (np.abs(mean).max(axis=1) > OUTLYING).mean(),
    }
