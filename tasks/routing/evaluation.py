"""Evaluate stage: every arm decodes the same test instances; what it solves, how well, and how many backtracks that takes.

A *run* decodes a set once with the largest budget. Policies do not see the budget at test time, so that a run with budget R stops where it
would have stopped anyway, and one run answers for all smaller budgets: arm `<run>_r<R>`. Runs ending in `_each` (refinement state off) and
`_live` (budget input live) decode anew for every budget. `decodes.parquet` has a row per (set, run, seed, image, instance).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from pydantic import Field

from tasks.common.formats import read_json, read_parquet, write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.routing import figures
from tasks.routing.augmentation import augment
from tasks.routing.checkpoints import load_model
from tasks.routing.instances import Instances
from tasks.routing.lazymask import Scorer, lazy_decode
from tasks.routing.lookahead import Lookahead
from tasks.routing.policies import earliest_deadline, nearest, uniform
from tasks.routing.readers import read_instances
from tasks.routing.scores import common_gaps, infeasibility_differences, length_ratios, proofs, rises, scores
from tasks.routing.tightness import TightnessParams, measure_tightness, tightness_metrics
from tasks.routing.traces import search_trace

RULES = {"nearest": nearest, "deadline": earliest_deadline, "random": uniform}
SEARCH_SEEDS = 3
"""Most seeds of the runs with an exhaustive budget, whose stragglers cost as much as all the rest."""


class EvaluateSet(Params):
    """One test set.

    Attributes:
        weights: set whose learned arms decode it; default its own.
        arms: learned arms, as trained.
        budget: R of all runs.
        each: budgets at which decoding is repeated.
        exhaustive: budget of the runs that shall find a tour wherever one exists, or prove that there is none; 0 for none.
    """

    weights: str = ""
    arms: tuple[str, ...] = ("lmask", "pip")
    budget: int = Field(200, ge=1)
    each: tuple[int, ...] = ()
    exhaustive: int = Field(0, ge=0)


class EvaluateParams(Params):
    """What is decoded.

    Attributes:
        sets: by name.
        budgets: at which results are reported.
        images: symmetries of the square for each instance, 1 to 8.
        rules_seeds: seeds of the random policy, as many as learned arms have.
        tightness: how the sets are compared with the exact one, or None.
        figures: starts the figures' names.
        device: where networks decode.
    """

    sets: dict[str, EvaluateSet] = Field({"hard": EvaluateSet()}, min_length=1)
    budgets: tuple[int, ...] = (0, 5, 10, 25, 50, 100, 150, 200)
    images: int = Field(8, ge=1, le=8)
    rules_seeds: int = Field(3, ge=1)
    tightness: TightnessParams | None = TightnessParams()
    figures: str = ""
    device: str = "cpu"


class Run(NamedTuple):
    """One decoding of a set: which policy, set of candidates, budget and images."""

    set: str
    name: str
    seed: int
    weights: Path | None
    lookahead: Lookahead
    budget: int
    images: int
    live: bool
    part: str
    folder: Path
    device: str


def evaluate(params: EvaluateParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Decode, score and draw."""
    runs = [run for name, given in params.sets.items() for run in plan_runs(params, inputs, name, given)]
    runs.sort(key=lambda run: -run.images)  # long ones first; results are sorted again
    done = list(log.progress(map_parallel(decode_run, runs), total=len(runs), desc="runs"))
    keys = ["set", "part", "run", "seed", "budget", "image", "instance"]
    table = pd.concat([part for part, _ in done], ignore_index=True).sort_values(keys, ignore_index=True)
    write_parquet(out / "decodes.parquet", table)
    for run, (_, seconds) in zip(runs, done, strict=True):
        if run.seed == 0 and run.part == "test":
            log.timing(**{f"{run.set}_{run.name}_r{run.budget}_cpu_s": seconds})
    main = table[table["part"] == "test"]
    metrics: Metrics = {}
    for name, given in params.sets.items():
        rows = main[main["set"] == name]
        budgets = [r for r in params.budgets if r <= given.budget]
        metrics |= scores(rows, name, budgets, given.budget)
        metrics |= common_gaps(rows, name, given.budget)
        metrics |= infeasibility_differences(rows, name, given.budget)
        metrics |= length_ratios(rows, name, given.budget)
        metrics |= rises(rows, name, given.each)
        metrics |= proofs(table[table["set"] == name], name)
    if params.tightness is not None:
        tightness = measure_tightness(params.tightness)
        write_parquet(out / "tightness.parquet", tightness)
        metrics |= tightness_metrics(tightness)
        log.figure(f"{params.figures}tightness", figures.tightness(tightness))
    references = read_parquet(inputs.file("prepare-references", "references.parquet"))
    log.figure(f"{params.figures}infeasibility", figures.infeasibility_by_budget(main, params.budgets))
    log.figure(f"{params.figures}gap", figures.gap_by_budget(main, params.budgets))
    log.figure(f"{params.figures}backtracks", figures.backtrack_histogram(main))
    log.figure(f"{params.figures}trade_off", figures.trade_off(main, references))
    first = next(iter(params.sets))
    instances, _ = read_instances(inputs.file("prepare", f"{first}-test.safetensors"))
    log.figure(f"{params.figures}search", figures.search(search_trace(instances, nearest, most_backtracks=15)))
    return metrics


def plan_runs(params: EvaluateParams, inputs: Inputs, name: str, given: EvaluateSet) -> list[Run]:
    """All runs on one set.

    Raises:
        ValueError: for a learned arm that was not trained.
    """
    source = given.weights or name
    folder, trained = inputs[f"train-{source}"], read_json(inputs.file(f"train-{source}", "arms.json"))
    if unknown := [arm for arm in given.arms if arm not in trained]:
        raise ValueError(f"set {name!r}: no weights of {', '.join(unknown)}; trained were {', '.join(trained)}")
    runs: list[Run] = []

    def add(
        run: str,
        seeds: int,
        weights: str,
        lookahead: Lookahead = "tsl",
        budget: int = given.budget,
        images: int = 1,
        live: bool = False,
        part: str = "test",
    ) -> None:
        for seed in range(seeds):
            path = folder / f"{weights}-{seed}.safetensors" if weights else None
            runs.append(Run(name, run, seed, path, lookahead, budget, images, live, part, inputs["prepare"], params.device))

    for arm in given.arms:
        add(arm, trained[arm], arm, "none" if arm == "pomo" else "tsl", images=params.images)
    coarse: tuple[Lookahead, ...] = ("ssl", "local")
    for lookahead in coarse:
        add(f"lmask_{lookahead}", trained["lmask"], "lmask", lookahead)
    if "pip" in given.arms:
        add("nobt_ssl", trained["pip"], "pip", "ssl")
    for rule in RULES:
        random = rule == "random"  # the other rules see no coordinates, so that all images are one
        add(rule, params.rules_seeds if random else 1, "", images=params.images if random else 1)
    for budget in given.each:
        add("lmask_live", trained["lmask"], "lmask", budget=budget, live=True)
        if "norie" in given.arms:
            add("norie_each", trained["norie"], "norie", budget=budget)
        add("local_each", trained["lmask"], "lmask", "local", budget=budget)
    few = min(trained["lmask"], SEARCH_SEEDS)
    if given.exhaustive:
        add("nearest_unbounded", 1, "", budget=given.exhaustive)
        add("lmask_unbounded", few, "lmask", budget=given.exhaustive)
    if (inputs["prepare"] / f"{name}-infeasible.safetensors").exists():
        for budget in sorted({given.budget, given.exhaustive or given.budget}):
            add("nearest", 1, "", budget=budget, part="infeasible")
            add("lmask", few, "lmask", budget=budget, part="infeasible")
    return runs


def decode_run(run: Run) -> tuple[pd.DataFrame, float]:
    """Decode one run; rows per image and instance, and CPU seconds."""
    instances, held = read_instances(run.folder / f"{run.set}-{run.part}.safetensors")
    cost = held.get("cost", torch.full((len(instances),), torch.inf)).numpy()
    instances = instances.to(run.device)
    images = augment(instances, run.images) if run.images > 1 else instances
    started = time.process_time()
    policy, generator = _policy(run, images)
    found = lazy_decode(images, policy, run.budget, lookahead=run.lookahead, generator=generator, show_budget=run.live)
    seconds = time.process_time() - started
    length = torch.where(found.solved, images.length(found.tours.clamp(min=0)), torch.inf)
    count = len(instances)
    table = pd.DataFrame(
        {
            "set": run.set,
            "part": run.part,
            "run": run.name,
            "seed": run.seed,
            "budget": run.budget,
            "image": np.repeat(np.arange(run.images), count),
            "instance": np.tile(np.arange(count), run.images),
            "status": found.status[:, 0].cpu().numpy(),
            "backtracks": found.backtracks[:, 0].cpu().numpy(),
            "calls": found.calls[:, 0].cpu().numpy(),
            "length": length[:, 0].cpu().numpy(),
            "cost": np.tile(cost, run.images),
        }
    )
    return table, seconds


def _policy(run: Run, instances: Instances) -> tuple[Scorer, torch.Generator | None]:
    if run.weights is None:
        rule = run.name.removesuffix("_unbounded")
        generator = torch.Generator(run.device).manual_seed(run.seed) if rule == "random" else None
        return RULES[rule](instances), generator
    model = load_model(run.weights, instances.problem).to(run.device)
    return model.scorer(instances), None
