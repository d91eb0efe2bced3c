"""Training stage of SGHMC: chains over the inducing variables and hyperparameters by Monte Carlo EM, from the common warm start."""

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
from tasks.gaussian_process.problem import Problem, inducing_inputs
from tasks.gaussian_process.sghmc import SampledDeepGP, SghmcParams, build_sampled
from tasks.gaussian_process.training import train as fit_model

ARM = "sghmc"
NO_BOUND = {"elbo": "log_joint", "kl": "minus_log_prior"}
"""The density of a sample goes by other names than bounds."""


class SghmcTrainParams(TrainParams):
    """As `TrainParams`.

    Attributes:
        sampler: the chains.
    """

    sampler: SghmcParams = SghmcParams()


def sampled_model(problem: Problem, params: SghmcTrainParams, seeds: list[int]) -> SampledDeepGP:
    """A deep GP whose chains have not moved yet."""
    net = params.architecture
    z = inducing_inputs(problem.x, net.inducing, seeds, net.start)
    layers = build_layers(z, problem.x, net.depth, problem.outputs, net.hidden, jitter=net.jitter)
    return build_sampled(layers, problem.likelihood, params.sampler).to(problem.x.device, problem.x.dtype)


def train(params: SghmcTrainParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `runs.parquet` and `curves.parquet` of arm `sghmc`; `log_joint` is the log joint density per row, and no bound."""
    return report(run_stage(_one, set_items(params, inputs), params.device, out, log), [ARM])


def _one(item: Work) -> Outcome:
    params = item.params
    assert isinstance(params, SghmcTrainParams)
    problem = item.problem()
    model = sampled_model(problem, params, item.seeds)
    load_shared(model, read_warm(item.warm, item.name, len(item.seeds)))
    before = time.perf_counter()
    fit = fit_model(model, problem, params.fit, item.steps, item.seeds)
    seconds = {f"{ARM}_{item.name}": (time.perf_counter() - before) / item.steps}
    runs, curves = (table.replace({"quantity": NO_BOUND}) for table in tables(ARM, item.name, item.seeds, fit))
    return Outcome(runs, curves, seconds)
