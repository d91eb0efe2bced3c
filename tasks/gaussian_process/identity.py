"""Leaf stage: with its amortiser frozen at zero, DBVI is DDVI, in losses and gradients, from the same seeds.

Both posteriors are given the same random corrections, so that no term vanishes. The control moves the amortiser off zero.
"""

from __future__ import annotations

from pathlib import Path

import torch
from pydantic import Field

from tasks.common.node import Inputs, Log, Metrics
from tasks.gaussian_process.deep_gp import DeepGP
from tasks.gaussian_process.diffusion_bridge import BridgeParams
from tasks.gaussian_process.experiment import TrainParams, Work, load_shared, read_warm, set_items
from tasks.gaussian_process.problem import Problem
from tasks.gaussian_process.streams import SeedStreams
from tasks.gaussian_process.train_bridge import CENTERS, bridge_model

PERTURB, NOISE = 11, 12


class IdentityParams(TrainParams):
    """As `TrainParams`.

    Attributes:
        bridge: the diffusion.
        scale: standard deviation of the random weights that take corrections (and, in the control, amortisers) off zero.
    """

    bridge: BridgeParams = BridgeParams()
    scale: float = Field(0.1, gt=0.0)


def evaluate(params: IdentityParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: largest differences from DDVI of `frozen` (amortiser at zero) and `moved` (off zero), over seeds and parameters."""
    metrics: Metrics = {}
    for item in set_items(params, inputs):
        reference = _gradients(item, "ddvi")
        for arm, move in (("frozen", False), ("moved", True)):
            loss, gradients = _gradients(item, "dbvi", move)
            metrics[f"{arm}.loss_difference.{item.name}"] = float((loss - reference[0]).abs().max())
            largest = max(float((gradients[name] - value).abs().max()) for name, value in reference[1].items())
            metrics[f"{arm}.gradient_difference.{item.name}"] = largest
    return metrics


def _gradients(item: Work, method: str, move: bool = False) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    params = item.params
    assert isinstance(params, IdentityParams)
    problem, bridge = item.problem(), params.bridge.model_copy(update={"center": CENTERS[method]})
    model = bridge_model(problem, params.architecture, item.seeds, bridge)
    load_shared(model, read_warm(item.warm, item.name, len(item.seeds)))
    _perturb(model, item.seeds, params.scale, problem, move)
    streams = SeedStreams(item.seeds, NOISE, str(problem.x.device), problem.x.dtype)
    rows = min(params.fit.batch, problem.rows)
    bound = model.bound(problem.x[:, :rows], problem.y[:, :rows], problem.rows, params.fit.samples, streams)
    loss = -bound.per_datum
    named = {name: p for name, p in model.named_parameters() if "amortiser" not in name}
    gradients = torch.autograd.grad(loss.sum(), list(named.values()))
    return loss.detach(), dict(zip(named, gradients, strict=True))


@torch.no_grad()
def _perturb(model: DeepGP, seeds: list[int], scale: float, problem: Problem, move: bool) -> None:
    streams = SeedStreams(seeds, PERTURB, str(problem.x.device), problem.x.dtype)
    for posterior in model.posteriors:
        last = posterior.correction.weights[-1]
        last += scale * streams.normal(*last.shape[1:])
    for posterior in model.posteriors if move else ():
        last = posterior.amortiser.weights[-1]
        last += scale * streams.normal(*last.shape[1:])
