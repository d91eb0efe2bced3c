"""Stages that train the policies that learn no values: behaviour cloning (warm start), and every contrastive arm.

All seeds of an arm, and all arms of one shape, train in one stack. A file `<data set>.safetensors` holds `<arm>/<updates>`, the policies
of all seeds; `undefined.json` names the arms that a data set rules out, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from tasks.common.formats import write_json, write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.offline_rl.cloning import CloningConfig, clone_behaviour
from tasks.offline_rl.contrastive import ContrastiveConfig, Iterates, Job, require_failures, train_contrastive
from tasks.offline_rl.episodes import NoNegativeTrajectories
from tasks.offline_rl.learning_data import DataStack, LearningData
from tasks.offline_rl.policies import Policies, policies_of, read_policies, write_policies
from tasks.offline_rl.sparse_data import load_learning_data, load_shuffled


class CloningParams(Params):
    """Behaviour cloning on every data set.

    Attributes:
        datasets: names.
        seeds: data sets per name.
        arms: by name.
        seed: of everything random.
        device: torch device.
    """

    datasets: tuple[str, ...] = ("medium",)
    seeds: int = Field(6, ge=1)
    arms: dict[str, CloningConfig] = Field({"bc": CloningConfig(), "bc_plus": CloningConfig(rows="successes")})
    seed: int = Field(0, ge=0)
    device: str = "cpu"


def warmstart(params: CloningParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<data set>.safetensors`. Metrics `<arm>.loss.<data set>`: squared error of the last minibatches."""
    folder = inputs["prepare"]
    jobs = [(name, arm, config, params, folder) for name in params.datasets for arm, config in params.arms.items()]
    trained: dict[str, dict[str, Policies]] = {}
    metrics: Metrics = {}
    for (name, arm, *_), (policies, history) in zip(
        jobs, log.progress(map_parallel(_clone, jobs), total=len(jobs), desc="clone"), strict=True
    ):
        trained.setdefault(name, {}).update({f"{arm}/{updates}": p for updates, p in policies.items()})
        metrics |= summarise(f"{arm}.loss.{name}", history[-1][2])
        for step, _, values in history:
            log.history(step, **{f"{arm}.{name}": float(values.mean())})
    for name, iterates in trained.items():
        write_policies(out / f"{name}.safetensors", iterates)
    return metrics


def _clone(job: tuple[str, str, CloningConfig, CloningParams, Path]) -> tuple[dict[int, Policies], list[Any]]:
    name, arm, config, params, folder = job
    parts = [load_learning_data(folder, name, s) for s in range(params.seeds)]
    seeds = [(params.seed, s, list(params.arms).index(arm)) for s in range(params.seeds)]
    found = clone_behaviour(DataStack(parts, params.device), range(params.seeds), seeds, config)
    return {updates: policies_of(weights, parts) for updates, weights in found.weights.items()}, found.history


class ContrastiveParams(Params):
    """Contrastive arms.

    Attributes:
        datasets: names, each with the arms that run on it.
        seeds: data sets per name.
        arms: by name; `biases` x `sigmas` adds a grid of variants of `base`, called `<base>_l<100 lambda>_s<100 sigma>`.
        base: the arm that the grid varies.
        biases: lambdas of the grid.
        sigmas: of the grid.
        seed: of everything random.
        device: torch device.
    """

    datasets: dict[str, tuple[str, ...]] = Field({"medium": ("preforl",)})
    seeds: int = Field(6, ge=1)
    arms: dict[str, ContrastiveConfig] = Field({"preforl": ContrastiveConfig()})
    base: str = "preforl"
    biases: tuple[float, ...] = ()
    sigmas: tuple[float, ...] = ()
    seed: int = Field(0, ge=0)
    device: str = "cpu"

    @model_validator(mode="after")
    def _arms_are_known(self) -> ContrastiveParams:
        for name, arms in self.datasets.items():
            for arm in arms:
                if arm not in self.configs():
                    raise ValueError(f"datasets: unknown arm {arm!r} for {name}; known: {', '.join(self.configs())}")
        return self

    def configs(self) -> dict[str, ContrastiveConfig]:
        """Every arm, the grid's included."""
        base = self.arms.get(self.base, ContrastiveConfig())
        grid = {grid_name(self.base, b, s): base.model_copy(update={"bias": b, "sigma": s}) for b in self.biases for s in self.sigmas}
        return {**self.arms, **grid}

    def arms_on(self, name: str) -> list[str]:
        """Arms that run on a data set; those of the grid run on the first."""
        grid = [grid_name(self.base, b, s) for b in self.biases for s in self.sigmas]
        return [*self.datasets[name], *(grid if name == next(iter(self.datasets)) else [])]


def grid_name(base: str, bias: float, sigma: float) -> str:
    """Name of a variant of the grid.

    Example:
        >>> grid_name("preforl", 0.5, 0.3)
        'preforl_l50_s30'
    """
    return f"{base}_l{round(100 * bias)}_s{round(100 * sigma)}"


def train(params: ContrastiveParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<data set>.safetensors`, `history.parquet`, `undefined.json`.

    Metrics: `<arm>.{logit,log_prob,loss}.<data set>` at the end of training (`logit` is the mean of S+ - lambda S-, `log_prob` that of
    recorded successes), and `<arm>.cannot_run.<data set>`: 1 where the data rule an arm out, else 0.
    """
    configs = params.configs()
    jobs = []
    for name in params.datasets:
        shapes: dict[tuple[object, ...], list[str]] = {}
        for arm in params.arms_on(name):
            shapes.setdefault((configs[arm].shape, configs[arm].shuffled), []).append(arm)
        # Halves keep two processes busy; which arms share a stack is fixed by the parameters alone.
        jobs += [(name, part, params, dict(inputs)) for arms in shapes.values() for part in (arms[::2], arms[1::2]) if part]
    trained: dict[str, dict[str, Policies]] = {name: {} for name in params.datasets}
    metrics: Metrics = {}
    undefined: dict[str, str] = {}
    rows: list[tuple[Any, ...]] = []
    done = log.progress(map_parallel(_contrast, jobs), total=len(jobs), desc="contrast")
    for (name, arms, *_), (policies, history, reasons) in zip(jobs, done, strict=True):
        trained[name].update(policies)
        undefined |= {f"{arm}.{name}": reason for arm, reason in reasons.items()}
        for arm in arms:
            metrics |= summarise(f"{arm}.cannot_run.{name}", np.full(params.seeds, float(arm in reasons)))
            for step, quantity, values in history.get(arm, []):
                rows += [(name, arm, s, step, quantity, float(v)) for s, v in enumerate(values)]
                log.history(step, **{f"{arm}.{quantity}.{name}": float(values.mean())})
                metrics |= summarise(f"{arm}.{quantity}.{name}", values)
    for name, policies in trained.items():
        write_policies(out / f"{name}.safetensors", policies)
    write_json(out / "undefined.json", undefined)
    _write_history(out / "training.parquet", rows)
    return metrics


def _write_history(path: Path, rows: Sequence[tuple[Any, ...]]) -> None:
    import pandas as pd

    write_parquet(path, pd.DataFrame(rows, columns=["data", "arm", "seed", "update", "quantity", "value"]))


def _contrast(
    job: tuple[str, Sequence[str], ContrastiveParams, Mapping[str, Path]],
) -> tuple[dict[str, Policies], dict[str, Any], dict[str, str]]:
    """Policies, histories by arm, and the arms that the data rule out, with the reason."""
    name, arms, params, folders = job
    configs = params.configs()
    load = load_shuffled if configs[arms[0]].shuffled else load_learning_data
    parts = [load(folders["prepare"], name, s) for s in range(params.seeds)]
    numbers = {arm: i for i, arm in enumerate(configs)}
    reasons = {arm: reason for arm in arms if (reason := _ruled_out(configs[arm], parts))}
    able = [arm for arm in arms if arm not in reasons]
    if not able:
        return {}, {}, reasons
    jobs = [Job(configs[arm], s, (params.seed, s, 100 + numbers[arm])) for arm in able for s in range(params.seeds)]
    found = train_contrastive(DataStack(parts, params.device), jobs, _start(folders, name, configs[able[0]], len(able)))
    return *unstack(found, able, parts), reasons


def _ruled_out(config: ContrastiveConfig, parts: Sequence[LearningData]) -> str:
    """Why an arm cannot run on these data sets, or nothing."""
    try:
        for part in parts:
            require_failures(config, part)
    except NoNegativeTrajectories as error:
        return str(error)
    return ""


def unstack(found: Iterates, arms: Sequence[str], parts: Sequence[LearningData]) -> tuple[dict[str, Policies], dict[str, Any]]:
    """Policies by `<arm>/<updates>` and histories by arm, of a stack that holds all seeds of one arm after another."""
    seeds = len(parts)
    policies, history = {}, {}
    for number, arm in enumerate(arms):
        which = slice(number * seeds, (number + 1) * seeds)
        for updates, weights in found.weights.items():
            policies[f"{arm}/{updates}"] = policies_of([w[which] for w in weights], parts)
        history[arm] = [(step, quantity, values[which]) for step, quantity, values in found.history]
    return policies, history


def _start(folders: Mapping[str, Path], name: str, config: ContrastiveConfig, arms: int) -> list[Any] | None:
    """Weights of the warm-start arm after its last update, once per arm of the stack."""
    if not config.start:
        return None
    import torch

    known = read_policies(folders["warmstart"] / f"{name}.safetensors")
    last = max((int(key.split("/")[1]) for key in known if key.split("/")[0] == config.start), default=None)
    if last is None:
        raise KeyError(f"{config.start!r} is no arm of the warm start on {name}; known: {sorted({k.split('/')[0] for k in known})}")
    return [torch.as_tensor(np.concatenate([w] * arms)) for w in known[f"{config.start}/{last}"].weights]
