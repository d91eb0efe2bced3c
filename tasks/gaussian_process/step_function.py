"""Leaf stage: the posterior itself, on a step in one dimension, with kernels, inducing inputs and noise fixed for all methods.

With nothing but the posterior left to differ, SGHMC's samples are a reference for what DSVI, DDVI and DBVI infer. How far a method is off
is measured by the 1-Wasserstein distance of its marginals of f to SGHMC's, averaged over a grid of inputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pydantic import Field

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics
from tasks.common.parallel import map_parallel
from tasks.common.statistics import paired, summarise
from tasks.gaussian_process.comparison_figures import step_posteriors
from tasks.gaussian_process.deep_gp import DeepGP, build_layers
from tasks.gaussian_process.diffusion_bridge import BridgeParams
from tasks.gaussian_process.experiment import SetParams, TrainParams, Work, load_shared
from tasks.gaussian_process.problem import Problem, inducing_inputs
from tasks.gaussian_process.sghmc import SampledDeepGP, SghmcParams, build_sampled
from tasks.gaussian_process.streams import SeedStreams
from tasks.gaussian_process.train_bridge import CENTERS, bridge_model
from tasks.gaussian_process.training import train
from tasks.gaussian_process.warmstart import gaussian_model, warm_state

DATA = "step"
REFERENCE = "sghmc"
METHODS = ("dsvi", "ddvi", "dbvi")
CHAIN, DRAW = 21, 22
Samples = NDArray[np.float64]


class StepParams(TrainParams):
    """As `TrainParams`, for the set `step`.

    Attributes:
        bridge: the diffusion.
        hyper_steps: of DSVI, which fix kernels, inducing inputs and noise.
        sampler: the reference.
        moves: of its chains.
        grid_draws: samples of f per input.
    """

    data: dict[str, SetParams] = Field({DATA: SetParams(seeds=3, steps=400)}, min_length=1, max_length=1)
    bridge: BridgeParams = BridgeParams()
    hyper_steps: int = Field(300, ge=1)
    sampler: SghmcParams = SghmcParams(chains=4, burn_in=300, window=600)
    moves: int = Field(1200, ge=1)
    grid_draws: int = Field(400, ge=2)


class _Found(NamedTuple):
    x: Samples
    y: Samples
    grid: Samples
    f: dict[str, Samples]


def evaluate(params: StepParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `posterior.parquet` (arm, seed, x, mean, lower, upper of f), the figure `step`, and distances to SGHMC."""
    (name,) = params.data
    (found,) = map_parallel(_sample, [Work(inputs["prepare"], out, name, params)], workers=1)
    write_parquet(out / "posterior.parquet", _bands(found))
    distances = {arm: wasserstein(found.f[arm], found.f[REFERENCE]).mean(-1) for arm in METHODS}
    metrics: Metrics = {}
    for arm, values in distances.items():
        metrics |= summarise(f"{arm}.distance_to_sghmc.{name}", values)
        metrics |= summarise(f"{arm}.spread_to_sghmc.{name}", found.f[arm].std(1).mean(-1) / found.f[REFERENCE].std(1).mean(-1))
    metrics |= paired(f"dbvi.distance_to_sghmc.{name}-ddvi.distance_to_sghmc.{name}", distances["dbvi"], distances["ddvi"])
    log.figure("step", step_posteriors(found.x, found.y, found.grid, {arm: f[0] for arm, f in found.f.items()}))
    return metrics


def _bands(found: _Found) -> pd.DataFrame:
    ends = {arm: np.quantile(f, [0.025, 0.975], axis=1) for arm, f in found.f.items()}
    parts = [
        pd.DataFrame(
            {"arm": arm, "seed": seed, "x": found.grid, "mean": f[seed].mean(0), "lower": ends[arm][0, seed], "upper": ends[arm][1, seed]}
        )
        for arm, f in found.f.items()
        for seed in range(len(f))
    ]
    return pd.concat(parts, ignore_index=True)


def wasserstein(a: Samples, b: Samples) -> Samples:
    """1-Wasserstein distances between samples along axis 1: (R, S, T) and (R, S, T) -> (R, T).

    >>> wasserstein(np.zeros((1, 3, 1)), np.array([[[1.0], [2.0], [3.0]]])).item()
    2.0
    """
    return np.asarray(np.abs(np.sort(a, axis=1) - np.sort(b, axis=1)).mean(axis=1))


def _sample(item: Work) -> _Found:
    params = item.params
    assert isinstance(params, StepParams)
    problem, fit = item.problem(), params.fit.model_copy(update={"curve": 0, "draws": 0})
    state, _ = warm_state(problem, params.architecture, fit, item.seeds, params.hyper_steps)
    f: dict[str, Samples] = {}
    for arm in METHODS:
        if arm == "dsvi":
            model = gaussian_model(problem, params.architecture, item.seeds)
        else:
            bridge = params.bridge.model_copy(update={"center": CENTERS[arm]})
            model = bridge_model(problem, params.architecture, item.seeds, bridge)
        load_shared(model, state)
        train(model, problem, fit, item.steps, item.seeds, parameters=model.posteriors.parameters())
        f[arm] = _draws(model, problem, params.grid_draws, item.seeds)
    chains = _sampled(problem, params, item.seeds)
    load_shared(chains, state)
    streams = SeedStreams(item.seeds, CHAIN, str(problem.x.device))
    for _ in range(params.moves):
        chains.move(problem.x, problem.y, problem.rows, streams)
    f[REFERENCE] = _draws(chains, problem, params.grid_draws, item.seeds)
    x, y, grid = (value[0].flatten().cpu().double().numpy() for value in (problem.x, problem.y, problem.x_test))
    return _Found(x, y, grid, f)


def _sampled(problem: Problem, params: StepParams, seeds: list[int]) -> SampledDeepGP:
    net = params.architecture
    z = inducing_inputs(problem.x, net.inducing, seeds, net.start)
    layers = build_layers(z, problem.x, net.depth, problem.outputs, net.hidden, jitter=net.jitter)
    return build_sampled(layers, problem.likelihood, params.sampler).to(problem.x.device, problem.x.dtype)


@torch.no_grad()
def _draws(model: DeepGP, problem: Problem, samples: int, seeds: list[int]) -> Samples:
    """Samples of f at the test inputs, (R, S, T)."""
    streams = SeedStreams(seeds, DRAW, str(problem.x.device))
    mean, variance = model.propagate(problem.x_test, model.draw(samples, streams), samples, streams)
    f = mean + variance.sqrt() * streams.normal(*mean.shape[1:])
    return f[..., 0].cpu().double().numpy()
