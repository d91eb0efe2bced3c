"""Stage that judges every arm: success from test starts, overestimation of values, accuracy of preferences on held-out segments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from tasks.common.formats import read_parquet, write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import paired, summarise
from tasks.offline_rl import contrastive_figures as figures
from tasks.offline_rl.batch_rollout import count_successes, run_policies
from tasks.offline_rl.episodes import Episodes, read_episodes, split_by_return
from tasks.offline_rl.offline_arms import held_out_scores
from tasks.offline_rl.policies import Policies
from tasks.offline_rl.policy_selection import ArmJob, Selection, arms_in, judge_arm
from tasks.offline_rl.sparse_data import batch_task, load_held_out, load_learning_data, load_starts

NEEDS = ("warmstart", "train-preference", "train-value")


class EvaluateParams(Params):
    """What is judged.

    Attributes:
        datasets: names; the first is the main one.
        seeds: data sets per name.
        short_updates: most updates of the arm `<arm>_short`, a second reading of the same run at about the training time of the method.
        gamma: discount of achieved and expected returns.
        continuing: data sets on which goals reached in `continuing_steps` steps are counted too.
        continuing_steps: see there.
        continuing_episodes: per seed.
        method: the arm that differences are taken of.
        seed: of everything random.
    """

    datasets: tuple[str, ...] = Field(("medium",), min_length=1)
    seeds: int = Field(6, ge=1)
    short_updates: dict[str, int] = Field({})
    gamma: float = Field(0.99, ge=0, lt=1)
    continuing: tuple[str, ...] = ()
    continuing_steps: int = Field(600, ge=1)
    continuing_episodes: int = Field(20, ge=1)
    method: str = "preforl"
    seed: int = Field(0, ge=0)


Table = dict[tuple[str, str], Selection]
"""Selections by (data set, arm)."""


def evaluate(params: EvaluateParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `success.parquet`, `curves.parquet`, figures.

    Metrics by data set: `<arm>.{success,steps_to_goal}`, differences `<a>.success.<data>-<b>.success.<data>` of the method and its
    variants to every arm, `<arm>.success_count` where goals are replaced; on the main set also `<arm>.{expected,achieved,overestimation}`
    of value-based arms and `<arm>.{accuracy_action,accuracy_state,log_prob_held_out}`.
    """
    prepared = inputs["prepare"]
    jobs = [job for name in params.datasets for job in _arm_jobs(params, inputs, name)]
    done = log.progress(map_parallel(judge_arm, jobs), total=len(jobs), desc="roll out")
    table: Table = {(job.data, _label(job)): found for job, found in zip(jobs, done, strict=True)}
    metrics: Metrics = {}
    for (name, arm), found in table.items():
        metrics |= summarise(f"{arm}.success.{name}", found.success)
        metrics |= summarise(f"{arm}.steps_to_goal.{name}", found.steps_to_goal)
    metrics |= _differences(table, params)
    metrics |= _counts(table, params, prepared)
    main = params.datasets[0]
    values = _overestimation(table, params, inputs) if "train-value" in inputs else {}
    for arm, (expected, achieved) in values.items():
        metrics |= summarise(f"{arm}.expected_at_starts.{main}", expected)
        metrics |= summarise(f"{arm}.achieved.{main}", achieved)
        metrics |= summarise(f"{arm}.overestimation.{main}", expected - achieved)
    metrics |= _held_out(table, params, prepared)
    _write(out, table)
    _draw(table, params, prepared, values, log)
    return metrics


def _arm_jobs(params: EvaluateParams, inputs: Inputs, name: str) -> list[ArmJob]:
    files = tuple(p for need in NEEDS if need in inputs and (p := inputs[need] / f"{name}.safetensors").exists())
    arms = arms_in(files)
    jobs = [ArmJob(name, arm, files, inputs["prepare"], params.seeds) for arm in arms]
    short = params.short_updates if name == params.datasets[0] else {}
    return jobs + [ArmJob(name, arm, files, inputs["prepare"], params.seeds, most) for arm, most in short.items()]


def _label(job: ArmJob) -> str:
    return job.arm if job.most_updates is None else f"{job.arm}_short"


def _differences(table: Table, params: EvaluateParams) -> Metrics:
    """Paired over seeds: every variant of the method, and the controls, against every arm of the data set."""
    metrics: Metrics = {}
    for name in params.datasets:
        arms = {arm: found.success for (data, arm), found in table.items() if data == name}
        for a in arms:
            if a == params.method or a.startswith(f"{params.method}_") or a in ("shuffled", "uniform", "bc_plus"):
                for b in arms:
                    if a != b:
                        metrics |= paired(f"{a}.success.{name}-{b}.success.{name}", arms[a], arms[b])
    return metrics


def _counts(table: Table, params: EvaluateParams, prepared: Path) -> Metrics:
    metrics: Metrics = {}
    for name in params.continuing:
        task, n = batch_task(name), params.continuing_episodes
        states, goals = load_starts(prepared, name, params.seeds, "test")
        for arm in [arm for data, arm in table if data == name]:
            act = table[name, arm].policies.act
            # Arms share the goals of a seed, seeds do not, as with data and starts.
            rngs = [[np.random.default_rng([params.seed, s, i, 5]) for i in range(n)] for s in range(params.seeds)]
            counts = count_successes(task, act, states[:, :n], goals[:, :n], params.continuing_steps, rngs)
            metrics |= summarise(f"{arm}.success_count.{name}", counts.mean(1))
    return metrics


def _overestimation(table: Table, params: EvaluateParams, inputs: Inputs) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """(expected, achieved) discounted return from the starts of recorded successes, by arm, each (S,)."""
    main, frame = params.datasets[0], read_parquet(inputs.file("train-value", "expected.parquet"))
    starts = [_recorded_starts(inputs["prepare"], main, s) for s in range(params.seeds)]
    most = max(len(states) for states, _ in starts)
    states, goals = (np.stack([np.resize(x[i], (most, x[i].shape[1])) for x in starts]) for i in (0, 1))
    values = {}
    for (name, arm), found in table.items():
        known = frame[frame["arm"] == arm.removesuffix("_short")]
        if name != main or known.empty:
            continue
        runs = run_policies(batch_task(main), found.policies.act, states, goals).discounted(params.gamma)
        achieved = np.array([row[: len(x)].mean() for row, (x, _) in zip(runs, starts, strict=True)])
        at = found.updates[found.chosen]
        expected = [known[(known["seed"] == s) & (known["updates"] == u)]["value"].mean() for s, u in enumerate(at)]
        values[arm] = (np.array(expected), achieved)
    return values


def _recorded_starts(prepared: Path, name: str, s: int) -> tuple[np.ndarray, np.ndarray]:
    """First states and goals of the training successes of a maze data set."""
    data = load_learning_data(prepared, name, s)
    first = data.obs[data.positive[:, 0]] * data.standardise.scale + data.standardise.mean
    return first[:, :4], first[:, 4:6]


def _held_out(table: Table, params: EvaluateParams, prepared: Path) -> Metrics:
    """Accuracy of preferences and log-likelihood on trajectories that no learner saw, main data set."""
    main = params.datasets[0]
    held = [load_held_out(prepared, main, s) for s in range(params.seeds)]
    if any(h is None for h in held):
        return {}
    metrics: Metrics = {}
    for (name, arm), selection in table.items():
        if name != main:
            continue
        scores = [_scores(selection, h, s) for s, h in enumerate(held) if h is not None]
        for quantity in scores[0]:
            if all(quantity in score for score in scores):
                metrics |= summarise(f"{arm}.{quantity}.{main}", [score[quantity] for score in scores])
    return metrics


def _scores(selection: Selection, held: Episodes, s: int) -> dict[str, float]:
    positive, negative = split_by_return(held)
    failed = held.take(negative) if len(negative) else None
    return held_out_scores(selection.policies.take([s]), held.take(positive), failed, s)[0]


def _write(out: Path, table: Table) -> None:
    import pandas as pd

    final = [
        (name, arm, s, int(found.updates[found.chosen[s]]), float(found.success[s]), float(found.steps_to_goal[s]))
        for (name, arm), found in table.items()
        for s in range(len(found.chosen))
    ]
    write_parquet(out / "success.parquet", pd.DataFrame(final, columns=["data", "arm", "seed", "updates", "success", "steps"]))
    curves = [
        (name, arm, s, int(u), float(found.validation[c, s]))
        for (name, arm), found in table.items()
        for c, u in enumerate(found.updates)
        for s in range(len(found.chosen))
    ]
    write_parquet(out / "curves.parquet", pd.DataFrame(curves, columns=["data", "arm", "seed", "updates", "success"]))


def _draw(table: Table, params: EvaluateParams, prepared: Path, values: Mapping[str, Any], log: Log) -> None:
    main = params.datasets[0]
    log.figure("success", figures.success_bars({arm: f.success for (d, arm), f in table.items() if d == main}))
    log.figure("learning", figures.learning_curves({arm: (f.updates, f.validation) for (d, arm), f in table.items() if d == main}))
    if values:
        log.figure("overestimation", figures.expected_against_achieved(values))
    log.figure("other_data", figures.by_data({key: f.success for key, f in table.items()}, params.datasets))
    coverage = {int(name.removeprefix("medium_n")): name for name in params.datasets if name.startswith("medium_n")}
    if coverage:
        log.figure("coverage", figures.coverage({n: {a: table[d, a].success for d2, a in table if d2 == d} for n, d in coverage.items()}))
    if (main, params.method) in table and main == "medium":
        _draw_maze(table[main, params.method].policies.take([0]), prepared, main, log)


def _draw_maze(policy: Policies, prepared: Path, name: str, log: Log) -> None:
    data, ready = read_episodes(prepared / f"{name}.0.parquet"), load_learning_data(prepared, name, 0)
    log.figure("maze", figures.maze(batch_task(name), data, ready, policy))
