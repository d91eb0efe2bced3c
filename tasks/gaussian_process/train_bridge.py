"""Training stage of the diffusion posteriors: DBVI, DDVI, a free mean vector, and DBVI with its amortiser frozen at zero.

The last is the negative control: DBVI's code and parameters with its key idea switched off, and with noise of its own.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator
from torch import Tensor

from tasks.common.node import Inputs, Log, Metrics
from tasks.gaussian_process.deep_gp import DeepGP
from tasks.gaussian_process.diffusion_bridge import BridgeParams, BridgePosterior
from tasks.gaussian_process.experiment import (
    Architecture,
    Outcome,
    TrainParams,
    Work,
    load_shared,
    new_model,
    read_warm,
    report,
    run_stage,
    set_items,
    tables,
)
from tasks.gaussian_process.problem import Problem
from tasks.gaussian_process.streams import SeedStreams
from tasks.gaussian_process.training import train as fit_model

Method = Literal["dbvi", "ddvi", "mean_vector", "frozen"]
CENTERS: dict[str, Literal["amortised", "zero", "vector"]] = {
    "dbvi": "amortised",
    "ddvi": "zero",
    "mean_vector": "vector",
    "frozen": "amortised",
}
WEIGHTS = 700
"""Purpose of the stream of initial weights of the first layer; deeper ones follow."""


class BridgeTrainParams(TrainParams):
    """As `TrainParams`.

    Attributes:
        method: which of the posteriors.
        bridge: the diffusion; its center follows from `method`.
        control_data: the sets of `mean_vector` and `frozen`, where these are compared on fewer sets than `data` has; empty for all.
    """

    method: Method = "dbvi"
    bridge: BridgeParams = BridgeParams()
    control_data: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _control_sets_are_there(self) -> Self:
        if unknown := [name for name in self.control_data if name not in self.data]:
            raise ValueError(f"control_data names {unknown}, which are not in data ({', '.join(self.data)})")
        return self


def bridge_model(problem: Problem, architecture: Architecture, seeds: list[int], bridge: BridgeParams) -> DeepGP:
    """An untrained deep GP with diffusion posteriors; equal seeds give equal weights of the corrections whatever the center."""
    streams = layer_streams(seeds)

    def posterior(inducing: int, features: int, outputs: int, factor: Callable[[], Tensor]) -> BridgePosterior:
        return BridgePosterior(inducing, features, outputs, bridge, next(streams), None if bridge.whiten else factor)

    return new_model(problem, architecture, seeds, posterior)


def layer_streams(seeds: list[int]) -> Iterator[SeedStreams]:
    """Streams of initial weights, one for each layer: an amortiser's weights must not shift those of the next layer."""
    return (SeedStreams(seeds, purpose) for purpose in itertools.count(WEIGHTS))


def freeze_amortisers(model: DeepGP) -> None:
    """Keep mu at zero for good."""
    for posterior in model.posteriors:
        posterior.amortiser.requires_grad_(False)


def train(params: BridgeTrainParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `runs.parquet` and `curves.parquet` of one method."""
    wanted = params.control_data if params.method in ("mean_vector", "frozen") and params.control_data else tuple(params.data)
    items = [item for item in set_items(params, inputs) if item.name in wanted]
    return report(run_stage(_one, items, params.device, out, log), [params.method])


def _one(item: Work) -> Outcome:
    params = item.params
    assert isinstance(params, BridgeTrainParams)
    problem = item.problem()
    bridge = params.bridge.model_copy(update={"center": CENTERS[params.method]})
    model = bridge_model(problem, params.architecture, item.seeds, bridge)
    load_shared(model, read_warm(item.warm, item.name, len(item.seeds)))
    if params.method == "frozen":
        freeze_amortisers(model)
    before = time.perf_counter()
    fit = fit_model(model, problem, params.fit, item.steps, item.seeds, variant=int(params.method == "frozen"))
    seconds = (time.perf_counter() - before) / item.steps
    return Outcome(*tables(params.method, item.name, item.seeds, fit), {f"{params.method}_{item.name}": seconds})
