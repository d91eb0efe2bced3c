"""Stage that judges distilled transitions: Bellman losses of fresh predictors, and returns of Q networks trained on them."""

from __future__ import annotations

import itertools
import zlib
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics
from tasks.common.parallel import map_parallel
from tasks.common.statistics import paired, pooled, summarise
from tasks.distillation import bellman_figures as figures
from tasks.distillation.bellman import bellman_losses, relative_loss_error
from tasks.distillation.bellman_matching import TransitionSet, read_transition_sets
from tasks.distillation.bellman_warmstart import BellmanStartParams, bank_for, load_batch
from tasks.offline_rl.environments import ControlTask, control_task
from tasks.offline_rl.fqi import FqiConfig, fit_networks
from tasks.offline_rl.rollout import normalised_return, random_policy, rollout_returns
from tasks.offline_rl.transitions import Standardiser, TdBatch


class Learner(FqiConfig):
    """A learner, and at which sizes it is tried (all, when empty)."""

    sizes: tuple[int, ...] = ()


class BellmanReportParams(BellmanStartParams):
    """As the stages before, and how policies are learned and tried.

    Attributes:
        main: the arm that paired differences are taken of.
        loss_only: arms that are judged by held-out losses alone.
        learners: by name; returns of the first are called `return`, of another `return_<name>`.
        fits: fits per data set, averaged.
        episodes: episodes per policy, from the same starts for all.
    """

    main: str = "syn_many"
    loss_only: tuple[str, ...] = ("no_reward_scale", "no_terminals", "values_only")
    learners: dict[str, Learner] = Field({"fqi": Learner()}, min_length=1)
    fits: int = Field(3, ge=1)
    episodes: int = Field(10, ge=1)

    @model_validator(mode="after")
    def _known_sizes(self) -> BellmanReportParams:
        for name, learner in self.learners.items():
            if unknown := set(learner.sizes) - set(self.sizes):
                raise ValueError(f"learner {name!r} asks for sizes {sorted(unknown)}, which are not among {self.sizes}")
        return self


Table = dict[tuple[str, str, str, int], np.ndarray]
"""Values over seeds (n_seeds,), by (arm, quantity, environment, size); size 0 for all rows."""


def evaluate(params: BellmanReportParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `results.parquet` (environment, seed, arm, size, quantity, value), figures and metrics.

    By arm and cell `<env>_n<size>`: `heldout_loss_error` (fresh predictors of the class and law that were matched),
    `heldout_features_loss_error` (of the same law, with features of their own), `heldout_mlp_loss_error` (random networks), `heldout_ratio`
    and so on to `rand`, `return`, `normalised_return`; pooled over environments
    per size and over everything; paired differences of the main arm from every other, and of every arm's return from `rand`.
    """
    sets = read_transition_sets(inputs.file("train-bellman", "sets.parquet"))
    by_source: dict[tuple[str, int], list[TransitionSet]] = defaultdict(list)
    for one in sets:
        by_source[one.environment, one.seed].append(one)
    folders = (inputs["prepare-transitions"], inputs["warmstart-bellman"])
    jobs = [(params, *folders, e, s, by_source[e, s]) for e in params.environments for s in range(params.seeds)]
    records = [r for part in log.progress(map_parallel(_judge, jobs), total=len(jobs), desc="judge") for r in part]
    frame = pd.DataFrame(records, columns=["environment", "seed", "arm", "size", "quantity", "value"])
    write_parquet(out / "results.parquet", frame)
    groups = frame.sort_values("seed").groupby(["arm", "quantity", "environment", "size"], sort=False)
    table: Table = {key: group.value.to_numpy() for key, group in groups}  # type: ignore[misc]
    _normalise(table, params)
    log.figure("heldout_loss", figures.heldout_loss(table, params))
    log.figure("heldout_by_k", figures.heldout_by_k(table, params, {s.arm: s.predictors for s in sets}))
    log.figure("returns", figures.returns(table, params))
    log.figure("levers", figures.levers(table, params))
    environment = params.environments[0]
    batch, _ = load_batch(folders[0], environment, 0)
    shown = [s for s in by_source[environment, 0] if s.arm in (params.main, "syn_local")]
    log.figure("states", figures.states(batch, [s for s in shown if len(s.batch) == params.sizes[len(params.sizes) // 2]], environment))
    return _metrics(table, params)


def _judge(job: tuple[BellmanReportParams, Path, Path, str, int, list[TransitionSet]]) -> list[tuple[str, int, str, int, str, float]]:
    from safetensors.numpy import load_file

    params, transitions, warm, environment, seed, sets = job
    batch, standardise = load_batch(transitions, environment, seed)
    task = control_task(environment)
    kept = load_file(warm / f"{environment}.{seed}.safetensors")
    small: dict[tuple[str, int], TdBatch] = {(s.arm, len(s.batch)): s.batch for s in sets}
    for size, (arm, start) in itertools.product(params.sizes, (("rand", "random"), ("stratified", "stratified"))):
        small[arm, size] = batch.take(kept[f"{start}.{size}"])
    records = []
    for name in (n for n in params.banks if n.startswith("heldout")):
        bank = bank_for(params, name, environment, seed, batch)
        for (arm, size), rows in small.items():
            error = relative_loss_error(bellman_losses(rows, bank, task.gamma), kept[f"losses.{name}"])
            records.append((environment, seed, arm, size, f"{name}_loss_error", error))
    small["full", 0] = batch
    rng = np.random.default_rng([params.seed, zlib.crc32(environment.encode()), seed, 3])
    starts = [int(s) for s in rng.integers(2**31, size=params.episodes)]
    n_actions = int(task.make().action_space.n)
    chance = rollout_returns(task.make, random_policy(n_actions, rng), 1, starts)
    records.append((environment, seed, "random_policy", 0, "return", float(chance.mean())))
    for number, (name, learner) in enumerate(params.learners.items()):
        quantity = f"return_{name}" if number else "return"
        for size in (*(learner.sizes or params.sizes), 0):
            cells = {arm: rows for (arm, m), rows in small.items() if m == size and arm not in params.loss_only}
            for arm, value in _returns(params, learner, task, standardise, cells, n_actions, starts).items():
                records.append((environment, seed, arm, size, quantity, value))
    return records


def _returns(
    params: BellmanReportParams,
    learner: Learner,
    task: ControlTask,
    standardise: Standardiser,
    cells: dict[str, TdBatch],
    n_actions: int,
    starts: list[int],
) -> dict[str, float]:
    """Mean return over fits and episodes, by arm; all arms share the seeds of their networks."""
    batches = [rows for rows in cells.values() for _ in range(params.fits)]
    seeds = [params.seed + fit for _ in cells for fit in range(params.fits)]
    networks = fit_networks(batches, task.gamma, n_actions, seeds, learner, params.device)[-1]
    found = rollout_returns(task.make, lambda states: networks.greedy(standardise(states)), len(batches), starts)
    return dict(zip(cells, found.mean(axis=1).reshape(len(cells), params.fits).mean(axis=1).tolist(), strict=True))


def _normalise(table: Table, params: BellmanReportParams) -> None:
    """Add normalised returns (per environment: 0 = random policy's mean, 1 = full set's mean) and ratios to D_rand."""
    for (arm, quantity, environment, size), values in list(table.items()):
        if quantity.startswith("return"):
            random = table["random_policy", "return", environment, 0].mean()
            reference = table["full", quantity, environment, 0].mean() if arm != "random_policy" else 0.0
            if arm != "random_policy":
                table[arm, f"normalised_{quantity}", environment, size] = normalised_return(values, random, reference)
        if quantity.endswith("_loss_error"):
            ratio = f"{quantity.removesuffix('_loss_error')}_ratio"
            table[arm, ratio, environment, size] = values / table["rand", quantity, environment, size]
    for arm, quantity, size in {(a, q, s) for a, q, _, s in table if not q.startswith("return")}:
        parts = [table.get((arm, quantity, e, size)) for e in params.environments]
        if all(p is not None for p in parts):
            table[arm, quantity, "pooled", size] = pooled([p for p in parts if p is not None])
    for arm in {a for a, *_ in table}:
        parts = [table.get((arm, "normalised_return", "pooled", s)) for s in params.sizes]
        if all(p is not None for p in parts):
            table[arm, "normalised_return", "pooled", -1] = pooled([p for p in parts if p is not None])


def _metrics(table: Table, params: BellmanReportParams) -> Metrics:
    metrics: Metrics = {}

    def name(arm: str, quantity: str, environment: str, size: int) -> str:
        return f"{arm}.{quantity}.{environment}" + (f"_n{size}" if size > 0 else "")

    for key, values in sorted(table.items()):
        metrics |= summarise(name(*key), values)
    for (arm, quantity, environment, size), values in sorted(table.items()):
        main, rand = (table.get((a, quantity, environment, size)) for a in (params.main, "rand"))
        if quantity == "heldout_loss_error" and main is not None and arm != params.main:
            pair = f"{name(params.main, quantity, environment, size)}-{name(arm, quantity, environment, size)}"
            metrics |= paired(pair, main, values)
        if quantity.startswith("normalised_return") and rand is not None and arm not in ("rand", "full"):
            metrics |= paired(f"{name(arm, quantity, environment, size)}-{name('rand', quantity, environment, size)}", values, rand)
    return metrics
