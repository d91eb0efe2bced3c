"""Training stage of IPVI: implicit posteriors over the inducing variables, from the common warm start."""

from __future__ import annotations

import time
from pathlib import Path

from tasks.common.node import Inputs, Log, Metrics
from tasks.gaussian_process.deep_gp import build_layers
from tasks.gaussian_process.experiment import (
    Outcome,
    TrainParams,
    Work,
    load_shared,
    read_warm,
    report,
    run_stage,
    set_items,
    tables,
)
from tasks.gaussian_process.ipvi import ImplicitDeepGP, ImplicitParams, build_implicit
from tasks.gaussian_process.problem import Problem, inducing_inputs
from tasks.gaussian_process.training import train as fit_model

ARM = "ipvi"
NO_BOUND = {"elbo": "estimated_elbo", "kl": "estimated_kl"}
"""What a discriminator estimates goes by other names than bounds."""


class ImplicitTrainParams(TrainParams):
    """As `TrainParams`.

    Attributes:
        implicit: generator and discriminator.
    """

    implicit: ImplicitParams = ImplicitParams()


def implicit_model(problem: Problem, params: ImplicitTrainParams, seeds: list[int]) -> ImplicitDeepGP:
    """An untrained deep GP with implicit posteriors."""
    net = params.architecture
    z = inducing_inputs(problem.x, net.inducing, seeds, net.start)
    layers = build_layers(z, problem.x, net.depth, problem.outputs, net.hidden, jitter=net.jitter)
    return build_implicit(layers, problem.likelihood, params.implicit, seeds).to(problem.x.device, problem.x.dtype)


def train(params: ImplicitTrainParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `runs.parquet` and `curves.parquet` of arm `ipvi`; what it estimates in place of a bound is called `estimated_elbo`."""
    return report(run_stage(_one, set_items(params, inputs), params.device, out, log), [ARM])


def _one(item: Work) -> Outcome:
    params = item.params
    assert isinstance(params, ImplicitTrainParams)
    problem = item.problem()
    model = implicit_model(problem, params, item.seeds)
    load_shared(model, read_warm(item.warm, item.name, len(item.seeds)))
    before = time.perf_counter()
    fit = fit_model(model, problem, params.fit, item.steps, item.seeds)
    seconds = {f"{ARM}_{item.name}": (time.perf_counter() - before) / item.steps}
    runs, curves = (table.replace({"quantity": NO_BOUND}) for table in tables(ARM, item.name, item.seeds, fit))
    return Outcome(runs, curves, seconds)
