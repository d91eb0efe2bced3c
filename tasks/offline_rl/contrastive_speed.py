"""Stage that measures training time side by side: CPU seconds per update of every arm, in one process, one after another in rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from tasks.common.formats import read_parquet
from tasks.common.node import Inputs, Log, Metrics
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.offline_rl import contrastive_figures as figures
from tasks.offline_rl.cloning import CloningConfig, clone_behaviour
from tasks.offline_rl.contrastive import ContrastiveConfig, Job, train_contrastive
from tasks.offline_rl.degradation import nearest_failures
from tasks.offline_rl.learning_data import DataStack
from tasks.offline_rl.offline_arms import Config
from tasks.offline_rl.sparse_data import load_learning_data
from tasks.offline_rl.value_arms import ValueParams, learner_of
from tasks.offline_rl.value_learning import train_values

SEARCH = "nearest failures"
"""Key of the time of the search beside those of the arms."""


class SpeedParams(ValueParams):
    """The value-based arms as they were trained, and the arms that learn no values.

    Attributes:
        contrastive: arms by name.
        cloning: arms by name.
        method: the arm that times are divided by.
        short_updates: updates of `<arm>_short`, by arm.
        rounds: repetitions; every round times every arm.
        updates: timed, per round and arm.
    """

    contrastive: dict[str, ContrastiveConfig] = Field({"preforl": ContrastiveConfig()})
    cloning: dict[str, CloningConfig] = Field({})
    method: str = "preforl"
    short_updates: dict[str, int] = Field({})
    rounds: int = Field(5, ge=1)
    updates: int = Field(60, ge=1)


def evaluate(params: SpeedParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: metrics `<arm>.time_ratio.<data>`, training time of an arm (of `<arm>_short` too) over that of the method.

    The method is charged for its search for nearest failures too. Timings: `<arm>_ms_per_update`, `nearest_failures_ms`.
    The figure shows success on the validation starts against training time.
    """
    # In a pool of one, so that one thread is counted, as when the arms were trained.
    (seconds,) = map_parallel(_measure, [(params, dict(inputs))], workers=1)
    search = seconds.pop(SEARCH)
    totals = {arm: _updates(params, arm) * values for arm, values in seconds.items()}
    totals[params.method] = totals[params.method] + search
    metrics: Metrics = {}
    for arm, values in totals.items():
        if arm != params.method:
            metrics |= summarise(f"{arm}.time_ratio.{params.dataset}", values / totals[params.method])
    for arm, updates in params.short_updates.items():
        metrics |= summarise(f"{arm}_short.time_ratio.{params.dataset}", updates * seconds[arm] / totals[params.method])
    log.timing(**{f"{arm}_ms_per_update": float(1e3 * values.mean()) for arm, values in seconds.items()})
    log.timing(nearest_failures_ms=float(1e3 * search.mean()))
    curves = read_parquet(inputs.file("evaluate-policies", "curves.parquet"))
    points = {}
    for arm, values in seconds.items():
        mine = curves[(curves["data"] == params.dataset) & (curves["arm"] == arm)]
        if len(mine):
            table = mine.pivot_table(index="updates", columns="seed", values="success")
            points[arm] = (table.index.to_numpy() * values.mean(), table.to_numpy())
    log.figure("success_by_time", figures.success_by_time(points))
    return metrics


def _updates(params: SpeedParams, arm: str) -> int:
    configs: dict[str, Config] = {**params.configs(), **params.contrastive, **params.cloning}
    return configs[arm].updates


def _measure(job: tuple[SpeedParams, Mapping[str, Path]]) -> dict[str, np.ndarray]:
    """CPU seconds per update and seed of every arm, and of the `SEARCH` per seed, (rounds,), all seeds of an arm in one stack."""
    params, folders = job
    data = [load_learning_data(folders["prepare"], params.dataset, s) for s in range(params.seeds)]
    stack = DataStack(data, params.device)
    runs: dict[str, Callable[[], Any]] = {}
    parts, seeds = range(params.seeds), [(params.seed, s) for s in range(params.seeds)]
    for arm, config in params.contrastive.items():
        timed = config.model_copy(update={"updates": params.updates, "checkpoints": 1, "start": ""})
        jobs = [Job(timed, s, seeds[s]) for s in parts]
        runs[arm] = lambda jobs=jobs: train_contrastive(stack, jobs)  # type: ignore[misc]
    for arm, cloning in params.cloning.items():
        timed_cloning = cloning.model_copy(update={"updates": params.updates, "checkpoints": 1})
        runs[arm] = lambda timed=timed_cloning: clone_behaviour(stack, parts, seeds, timed)  # type: ignore[misc]
    for arm, values in params.configs().items():
        timed_values = values.model_copy(update={"updates": params.updates, "checkpoints": ()})
        runs[arm] = lambda timed=timed_values: train_values(stack, parts, seeds, timed, learner_of(timed, stack))  # type: ignore[misc]
    found: dict[str, list[float]] = {arm: [] for arm in runs}
    for round_ in range(params.rounds + 1):
        for arm, run in runs.items():
            before = time.process_time()
            run()
            if round_:  # the first round warms up
                found[arm].append((time.process_time() - before) / params.updates / params.seeds)
    found[SEARCH] = []
    for _ in range(params.rounds):
        before = time.process_time()
        for part in data:
            nearest_failures(part.obs[part.positive_rows], part.obs[part.negative_rows])
        found[SEARCH].append((time.process_time() - before) / params.seeds)
    return {arm: np.array(spent) for arm, spent in found.items()}
