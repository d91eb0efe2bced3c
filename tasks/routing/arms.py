"""Train stage: every learned arm of a set, several seeds each, all from the set's warm start.

`<arm>-<seed>.safetensors` hold the weights. Training is counted in updates, so that it is a function of the seed; the timings say what CPU
seconds each arm took, and the numbers of updates in `params.yaml` are chosen so that arms take about the same.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from pydantic import Field, model_validator

from tasks.common.formats import write_json, write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.routing.checkpoints import load_model, save_model
from tasks.routing.training import RouteParams, train_policy
from tasks.routing.warm_starts import fresh_instances, set_params, validation
from tasks.training.averaging import MovingAverage

ARM_SEED = 100


class ArmParams(RouteParams):
    """One learned arm: a route of training, whether the network sees the refinement state (RIE), and how many seeds it gets."""

    refinement: bool = True
    seeds: int | None = Field(None, ge=1)


class TrainParams(Params):
    """The arms of one set.

    Attributes:
        set: name of the set.
        arms: by name.
        seeds: of every arm that does not say otherwise.
        paper_instances: instances that the paper trains on, for the share of its budget that each arm gets.
        average: decay of the moving average of the weights, which is what is kept; 0 keeps the last.
        device: where.
    """

    set: str = "hard"
    arms: dict[str, ArmParams] = Field({"lmask": ArmParams(), "pip": ArmParams(route="nobt", refinement=False)}, min_length=1)
    seeds: int = Field(3, ge=1)
    paper_instances: int = Field(256_000_000, ge=1)
    average: float = Field(0.0, ge=0, lt=1)
    device: str = "cpu"

    @model_validator(mode="after")
    def _names_fit(self) -> TrainParams:
        for name in self.arms:
            if not name.replace("_", "").isalnum():
                raise ValueError(f"an arm's name becomes part of a metric's, letters, digits and _ only, got {name!r}")
        return self


class _Job(NamedTuple):
    params: TrainParams
    arm: str
    seed: int
    inputs: Inputs
    out: Path


def train(params: TrainParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Train all arms and seeds; reports how they do on the validation set without backtracking."""
    folders = Inputs({"prepare": inputs["prepare"], "warmstart": inputs[f"warmstart-{params.set}"]})
    jobs = [_Job(params, name, seed, folders, out) for name, arm in params.arms.items() for seed in range(arm.seeds or params.seeds)]
    done = list(log.progress(map_parallel(_train_one, jobs), total=len(jobs), desc="arms"))
    write_parquet(out / "training.parquet", pd.concat([table for _, table, _ in done], ignore_index=True))
    write_json(out / "arms.json", {name: arm.seeds or params.seeds for name, arm in params.arms.items()})
    metrics: Metrics = {}
    for name in params.arms:
        mine = [i for i, job in enumerate(jobs) if job.arm == name]
        for key in sorted(set.intersection(*(set(done[i][0]) for i in mine))):
            metrics |= summarise(key, [done[i][0][key] for i in mine])
        arm = params.arms[name]
        metrics[f"{name}.paper_budget_fraction.{params.set}"] = arm.updates * arm.batch / params.paper_instances
        log.timing(**{f"{name}_cpu_s_per_seed": float(np.mean([done[i][2] for i in mine]))})
        curves = pd.concat([done[i][1] for i in mine]).groupby("update")[["length", "infeasible", "backtracks"]].mean()
        for step, row in zip(curves.index.tolist(), curves.to_dict("records"), strict=True):
            log.history(step, **{f"{name}.{column}": value for column, value in row.items()})
    return metrics


def _train_one(job: _Job) -> tuple[Metrics, pd.DataFrame, float]:
    params, arm = job.params, job.params.arms[job.arm]
    given = set_params(job.inputs, params.set)
    path = job.inputs.file("warmstart", "model.safetensors")
    model = load_model(path, given.problem, refinement=arm.refinement).to(params.device).train()
    records: list[dict[str, object]] = []
    average = MovingAverage(model.parameters(), params.average) if params.average else None

    def note(update: int, seen: dict[str, float]) -> None:
        records.append({"set": params.set, "arm": job.arm, "seed": job.seed, "update": update, **seen})

    started = time.process_time()
    generator = torch.Generator(params.device).manual_seed(ARM_SEED + job.seed)
    train_policy(model, fresh_instances(given, ARM_SEED + job.seed), arm, generator, note, average)
    seconds = time.process_time() - started
    if average is not None:
        average.copy_to_parameters()
    save_model(job.out / f"{job.arm}-{job.seed}.safetensors", model)
    return validation(model.cpu(), job.inputs, params.set, job.arm), _thinned(pd.DataFrame(records)), seconds


def _thinned(table: pd.DataFrame, most: int = 50) -> pd.DataFrame:
    """Means over runs of updates, at most `most` rows."""
    width = -(-len(table) // most)
    groups = table.groupby(table["update"] // width * width)
    numbers = groups[["length", "infeasible", "backtracks"]].mean().reset_index()
    return numbers.assign(**{name: table[name].iloc[0] for name in ("set", "arm", "seed")})
