"""Warm-start stage: weights from which every learned arm of a set starts, by imitation of optimal tours or by training with a penalty.

`model.safetensors` is shared by all arms and seeds of the set, the baselines included, so that arms differ in what is done after.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field

from tasks.common.formats import read_json
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.routing.attention_model import AttentionModel
from tasks.routing.checkpoints import save_model
from tasks.routing.datasets import SetParams, draw
from tasks.routing.imitation import ImitationParams, imitate
from tasks.routing.lazymask import lazy_decode
from tasks.routing.readers import read_instances
from tasks.routing.training import Draw, RouteParams, train_policy

FRESH_SEED = 1_000_003


class ModelParams(Params):
    """Sizes of the network; the paper's are 128, 8, 6 and 512."""

    width: int = Field(64, ge=1)
    heads: int = Field(4, ge=1)
    layers: int = Field(2, ge=1)
    hidden: int = Field(128, ge=1)


class WarmStartParams(Params):
    """What the set's arms start from.

    Attributes:
        set: name of the set.
        method: `imitation` of labelled tours, `penalty` training without backtracking, or `none`: random weights.
        model: sizes.
        imitation, penalty: how.
        seed: of initial weights and draws.
        device: where.
    """

    set: str = "hard"
    method: Literal["imitation", "penalty", "none"] = "imitation"
    model: ModelParams = ModelParams()
    imitation: ImitationParams = ImitationParams()
    penalty: RouteParams = RouteParams(route="nobt")
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"


def warmstart(params: WarmStartParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Train and write the weights; reports how their greedy tours do on the validation set, without backtracking."""
    given = set_params(inputs, params.set)
    generator = torch.Generator().manual_seed(params.seed)
    model = AttentionModel(given.problem, **params.model.model_dump(), generator=generator).to(params.device)
    bar = iter(log.progress(range(params.imitation.updates if params.method == "imitation" else params.penalty.updates), desc="updates"))
    started = time.process_time()
    # One thread, so that sums have one order whatever the machine.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if params.method == "imitation":
            labelled, held = read_instances(inputs.file("prepare", f"{params.set}-labels.safetensors"))

            def note(step: int, value: float) -> None:
                next(bar, None)
                if step % 20 == 0:
                    log.history(step, negative_log_likelihood=value)

            imitate(model, labelled.to(params.device), held["tour"].to(params.device), params.imitation, generator, note)
        elif params.method == "penalty":

            def watch(step: int, seen: dict[str, float]) -> None:
                next(bar, None)
                if step % 10 == 0:
                    log.history(step, **seen)

            train_policy(
                model, fresh_instances(given, params.seed), params.penalty, torch.Generator(params.device).manual_seed(params.seed), watch
            )
        log.timing(warmstart_cpu_s=time.process_time() - started)
        save_model(out / "model.safetensors", model)
        return validation(model.cpu(), inputs, params.set, "warmstart")
    finally:
        torch.set_num_threads(threads)


def set_params(inputs: Inputs, name: str) -> SetParams:
    """How the prepare stage made a set.

    Raises:
        ValueError: if it made no such set.
    """
    known = read_json(inputs.file("prepare", "sets.json"))
    if name not in known:
        raise ValueError(f"no set {name!r} was prepared; known: {', '.join(known)}")
    return SetParams(**known[name])


def fresh_instances(given: SetParams, seed: int) -> Draw:
    """Number of instances -> instances, a new batch at every call, from seeds that no other set uses."""
    seeds = itertools.count(FRESH_SEED * (seed + 1))
    return lambda count: draw(given, count, next(seeds))


def validation(model: AttentionModel, inputs: Inputs, name: str, arm: str) -> Metrics:
    """Share of greedy tours that end in a dead end on the validation set, and the length of the others over the best known."""
    instances, held = read_instances(inputs.file("prepare", f"{name}-validation.safetensors"))
    found = lazy_decode(instances, model.eval().scorer(instances), 0)
    solved = found.solved[:, 0] & torch.isfinite(held["cost"])
    metrics = {f"{arm}.validation_infeas.{name}": float((~found.solved).double().mean())}
    if solved.any():
        length = instances.length(found.tours.clamp(min=0))[:, 0]
        metrics[f"{arm}.validation_gap.{name}"] = float((length[solved] / held["cost"][solved] - 1).mean())
    return metrics
