"""Stage that distils offline-RL data by matching Bellman losses on random predictors, one arm per way of doing it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field, model_validator

from tasks.common.formats import read_parquet, write_parquet
from tasks.common.node import Inputs, Log, Metrics
from tasks.common.parallel import map_parallel
from tasks.distillation.bellman import MatchingConfig, distil_transitions, reward_levels
from tasks.distillation.bellman_warmstart import BellmanStartParams, bank_for, load_batch
from tasks.offline_rl.environments import control_task
from tasks.offline_rl.transitions import TdBatch


class Arm(MatchingConfig):
    """One way of matching, and at which sizes it is tried (all, when empty)."""

    sizes: tuple[int, ...] = ()


class BellmanMatchingParams(BellmanStartParams):
    """As the stage before, and the arms by name."""

    arms: dict[str, Arm] = Field({"syn_few": Arm(k=20), "syn_many": Arm(k=1000)}, min_length=1)

    @model_validator(mode="after")
    def _arms_fit(self) -> BellmanMatchingParams:
        for name, arm in self.arms.items():
            if arm.bank not in self.banks:
                raise ValueError(f"arm {name!r} asks for bank {arm.bank!r}; known: {', '.join(sorted(self.banks))}")
            if arm.k > (held := self.banks[arm.bank].k or self.predictors):
                raise ValueError(f"arm {name!r} asks for {arm.k} predictors; its bank {arm.bank!r} holds {held}")
            if unknown := set(arm.sizes) - set(self.sizes):
                raise ValueError(f"arm {name!r} asks for sizes {sorted(unknown)}, which are not among {self.sizes}")
        return self


@dataclass(frozen=True)
class TransitionSet:
    """A distilled set of transitions with where it belongs, and the matching objective at start and end."""

    environment: str
    seed: int
    arm: str
    batch: TdBatch
    start: float
    end: float
    predictors: int = 0


def train(params: BellmanMatchingParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `sets.parquet`, one record per environment, seed, arm and size.

    Metrics: `<arm>.objective_{start,end}.<env>`, means over seeds and sizes.
    """
    folders = (inputs["prepare-transitions"], inputs["warmstart-bellman"])
    jobs = [(params, *folders, e, s) for e in params.environments for s in range(params.seeds)]
    done = [one for part in log.progress(map_parallel(_distil, jobs), total=len(jobs), desc="match") for one in part]
    write_transition_sets(out / "sets.parquet", done)
    metrics: Metrics = {}
    for arm in params.arms:
        for environment in params.environments:
            cell = [d for d in done if (d.arm, d.environment) == (arm, environment)]
            metrics[f"{arm}.objective_start.{environment}"] = float(np.mean([d.start for d in cell]))
            metrics[f"{arm}.objective_end.{environment}"] = float(np.mean([d.end for d in cell]))
    return metrics


def write_transition_sets(path: Path, sets: list[TransitionSet]) -> None:
    """Write as Parquet, the rows of a set flattened into lists."""
    import pandas as pd

    records = [
        {
            "environment": d.environment,
            "seed": d.seed,
            "arm": d.arm,
            "size": len(d.batch),
            "start": d.start,
            "end": d.end,
            "k": d.predictors,
        }
        | {name: getattr(d.batch, name).ravel() for name in ("obs", "action", "reward", "next_obs", "continuation")}
        for d in sets
    ]
    write_parquet(path, pd.DataFrame(records))


def read_transition_sets(path: Path) -> list[TransitionSet]:
    """What `write_transition_sets` wrote."""
    sets = []
    for r in read_parquet(path).to_dict("records"):
        flat = {name: np.asarray(r[name]) for name in ("obs", "action", "reward", "next_obs", "continuation")}
        flat |= {name: flat[name].reshape(r["size"], -1) for name in ("obs", "next_obs")}
        sets.append(TransitionSet(r["environment"], r["seed"], r["arm"], TdBatch(**flat), r["start"], r["end"], r["k"]))
    return sets


def _distil(job: tuple[BellmanMatchingParams, Path, Path, str, int]) -> list[TransitionSet]:
    from safetensors.numpy import load_file

    params, transitions, warm, environment, seed = job
    batch, _ = load_batch(transitions, environment, seed)
    kept = load_file(warm / f"{environment}.{seed}.safetensors")
    task = control_task(environment)
    sets = []
    for name, arm in params.arms.items():
        bank = bank_for(params, arm.bank, environment, seed, batch, arm.k)
        targets = kept[f"losses.{arm.bank}"][: arm.k]
        for size in arm.sizes or params.sizes:
            first = batch.take(kept[f"{arm.start}.{size}"])
            found = distil_transitions(first, targets, bank, task.gamma, arm, params.banks[arm.bank], reward_levels(batch))
            sets.append(TransitionSet(environment, seed, name, found.batch, found.start, found.end, arm.k))
    return sets
