"""Offline data by running a behaviour policy: deterministic for a seed, one row per step, no row across two episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field

from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.offline_rl.environments import TASKS, ControlTask, control_task
from tasks.offline_rl.transitions import Transitions, write_transitions


def collect_transitions(task: ControlTask, steps: int, rng: np.random.Generator) -> Transitions:
    """Run the behaviour policy of a task until `steps` transitions are there.

    Episodes that reach the task's cut, the environment's time limit or the last step are marked truncated, unless they
    terminated in that very step.

    Args:
        task: environment and behaviour policy.
        steps: number N of transitions, >= 1.
        rng: source of the environment's seeds and of the random actions.

    Raises:
        ValueError: for steps < 1, or when the heuristic leaves the action space.

    Example:
        >>> from tasks.offline_rl.environments import control_task
        >>> data = collect_transitions(control_task("mountaincar"), 50, np.random.default_rng(0))
        >>> data.obs.shape, bool(data.truncated[-1])
        ((50, 2), True)
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    env = task.make()
    n_actions = int(env.action_space.n)
    rows: list[tuple[np.ndarray, int, float, np.ndarray, bool, bool, int]] = []
    episode = 0
    while len(rows) < steps:
        obs, _ = env.reset(seed=int(rng.integers(2**31)))
        share = task.random_share[episode % len(task.random_share)]
        length, over = 0, False
        while not over and len(rows) < steps:
            action = int(rng.integers(n_actions)) if rng.random() < share else task.heuristic(obs)
            if not 0 <= action < n_actions:
                raise ValueError(f"{task.env_id}: the heuristic chose action {action}, outside 0..{n_actions - 1}")
            following, reward, terminated, truncated, _ = env.step(action)
            length += 1
            cut = truncated or length == task.cut or len(rows) + 1 == steps
            rows.append((obs, action, float(reward), following, bool(terminated), bool(cut and not terminated), episode))
            obs, over = following, terminated or cut
        episode += 1
    env.close()
    obs_, action_, reward_, next_, terminated_, truncated_, episode_ = zip(*rows, strict=True)
    return Transitions(
        np.asarray(obs_, float),
        np.asarray(action_, np.int64),
        np.asarray(reward_, float),
        np.asarray(next_, float),
        np.asarray(terminated_, bool),
        np.asarray(truncated_, bool),
        np.asarray(episode_, np.int64),
    )


class CollectParams(Params):
    """Which tasks, how much, how often.

    Attributes:
        environments: names of `tasks.offline_rl.environments`.
        steps: transitions per data set.
        seeds: data sets per environment.
        seed: of everything random.
    """

    environments: tuple[str, ...] = Field(("cartpole", "acrobot", "mountaincar"), min_length=1)
    steps: int = Field(5000, ge=1)
    seeds: int = Field(5, ge=1)
    seed: int = Field(0, ge=0)


def prepare(params: CollectParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<environment>.<seed>.parquet` for every environment and seed.

    Metrics by environment: `behaviour.return.<env>` over finished episodes, `behaviour.terminal_share.<env>`.
    """
    jobs = [(name, s, params) for name in params.environments for s in range(params.seeds)]
    done = log.progress(map_parallel(_collect, jobs), total=len(jobs), desc="collect")
    found: dict[str, list[Transitions]] = {}
    for (name, s, _), data in zip(jobs, done, strict=True):
        write_transitions(out / f"{name}.{s}.parquet", data)
        found.setdefault(name, []).append(data)
    metrics: Metrics = {}
    for name, sets in found.items():
        metrics |= summarise(f"behaviour.return.{name}", [mean_episode_return(d) for d in sets])
        metrics |= summarise(f"behaviour.terminal_share.{name}", [d.terminated.mean() for d in sets])
    return metrics


def mean_episode_return(data: Transitions) -> float:
    """Mean undiscounted return over the episodes of a data set, cut ones included."""
    return float(np.bincount(data.episode - data.episode[0], weights=data.reward).mean())


def _collect(job: tuple[str, int, CollectParams]) -> Transitions:
    name, s, params = job
    task = control_task(name)
    return collect_transitions(task, params.steps, np.random.default_rng([params.seed, list(TASKS).index(name), s]))
