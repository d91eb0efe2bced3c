"""Stage that makes the sparse offline data sets: scripted behaviour in MuJoCo tasks, one data set per seed, with split and start sets.

| name | task | trajectories |
| --- | --- | --- |
| `medium` | PointMaze_Medium, fixed goal cell, far start | 150: wanderers and seekers, a sixth succeeds |
| `goals` | PointMaze_Medium, random goals | 200: experts, wrong goals, drifters, a third succeeds |
| `umaze` | PointMaze_UMaze, fixed goal cell | 150: wanderers and seekers |
| `no_failures` | the successes of `goals` alone | no D- |
| `reacher` | Reacher, a two-joint arm | 200: experts, wrong goals, drifters |
| `medium_n5`, ... | `medium` with so many successes kept of a larger collection | coverage sweep |
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.offline_rl.episodes import Episodes, check_sparse, read_episodes, split_by_return, write_episodes
from tasks.offline_rl.learning_data import LearningData, hold_out, learning_data, read_neighbours, write_neighbours

KNOWN = ("medium", "goals", "umaze", "no_failures", "reacher")
SIGMA = 0.3


class SparseDataParams(Params):
    """Which data sets, how many of each.

    Attributes:
        datasets: names of the module's table, coverage sets aside.
        coverage: numbers of successes kept in the sets `medium_n<number>`.
        episodes: trajectories per data set, by name.
        coverage_episodes: trajectories that the coverage sets are cut from.
        seeds: data sets per name.
        held_out: share of the trajectories of each sign that no learner sees.
        validation: starts for tuning and for choosing among iterates.
        test: starts that claims are judged on.
        seed: of everything random.
    """

    datasets: tuple[str, ...] = Field(KNOWN, min_length=1)
    coverage: tuple[int, ...] = (5, 10, 20, 40)
    episodes: dict[str, int] = Field({"medium": 150, "goals": 200, "umaze": 150, "no_failures": 200, "reacher": 200})
    coverage_episodes: int = Field(450, ge=2)
    seeds: int = Field(6, ge=1)
    held_out: float = Field(0.1, ge=0, lt=1)
    validation: int = Field(100, ge=1)
    test: int = Field(200, ge=1)
    seed: int = Field(0, ge=0)

    def names(self) -> list[str]:
        """All data sets, coverage sets last."""
        return [*self.datasets, *(f"medium_n{n}" for n in self.coverage)]


def task_of(name: str) -> str:
    """The task behind a data set: a name of `MAZES`, or `reacher`.

    Raises:
        KeyError: for an unknown data set.
    """
    base = name.split("_n")[0] if name.startswith("medium_n") else {"no_failures": "goals"}.get(name, name)
    if base not in ("medium", "goals", "umaze", "reacher"):
        raise KeyError(f"unknown data set {name!r}; known: {', '.join(KNOWN)} and medium_n<number>")
    return base


@cache
def batch_task(name: str) -> Any:
    """The simulator of a data set's task, one per process."""
    from tasks.offline_rl.point_maze import MAZES, PointMaze
    from tasks.offline_rl.reacher import Reacher

    base = task_of(name)
    return Reacher() if base == "reacher" else PointMaze(MAZES[base])


def collect(name: str, episodes: int, rng: np.random.Generator) -> tuple[Episodes, np.ndarray]:
    """One data set and the kind of behaviour of each trajectory.

    Raises:
        KeyError: for an unknown data set.
        ValueError: for a coverage set whose collection holds too few successes.
    """
    from tasks.offline_rl import maze_controllers, reacher

    base = task_of(name)
    if base == "reacher":
        data, kinds = reacher.collect_reacher(reacher.BEHAVIOURS, episodes, rng, batch_task(name))
    else:
        task = batch_task(name)
        data, kinds = maze_controllers.collect_maze(task.spec, maze_controllers.BEHAVIOURS[base], episodes, rng, task)
    if name == "no_failures":
        positive, _ = split_by_return(data)
        return data.take(positive), kinds[positive]
    if name.startswith("medium_n"):
        kept = keep_successes(data, int(name.removeprefix("medium_n")), rng)
        return data.take(kept), kinds[kept]
    return data, kinds


def keep_successes(data: Episodes, count: int, rng: np.random.Generator, failures: int = 126) -> np.ndarray:
    """Indices of `count` random successes and up to `failures` random failures, in the order of the data.

    Raises:
        ValueError: if there are fewer successes.
    """
    positive, negative = split_by_return(data)
    if len(positive) < count:
        raise ValueError(f"asked for {count} successes, but {data.n_episodes} trajectories hold {len(positive)}; collect more of them")
    return np.sort(np.r_[rng.permutation(positive)[:count], rng.permutation(negative)[:failures]])


def prepare(params: SparseDataParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: for every data set and seed `<name>.<seed>.parquet` with manifest `.json`, `.npz` (split, neighbours), `.starts.npz`.

    Metrics by data set: `behaviour.success`, `data.{transitions,successes,saturated_share}`, `neighbours.{action_distance,within_sigma}`,
    and the success of every kind of behaviour, `<kind>.success`.
    """
    jobs = [(name, s, params, out) for name in params.names() for s in range(params.seeds)]
    found: dict[str, list[float]] = {}
    for values in log.progress(map_parallel(_make, jobs), total=len(jobs), desc="collect"):
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    metrics: Metrics = {}
    for name, column in found.items():
        metrics |= summarise(name, column)
    return metrics


def _make(job: tuple[str, int, SparseDataParams, Path]) -> dict[str, float]:
    name, s, params, out = job
    number = params.names().index(name)
    size = params.coverage_episodes if name.startswith("medium_n") else params.episodes.get(name, 150)
    # The coverage sets of a seed share one collection, so that more successes are a superset of the same behaviour.
    stream = [params.seed, s, len(KNOWN) if name.startswith("medium_n") else KNOWN.index(name)]
    data, kinds = collect(name, size, np.random.default_rng(stream))
    data = replace(data, about={**data.about, **_provenance(params, name, s, kinds)})
    check_sparse(data)
    train, held = hold_out(data, params.held_out, np.random.default_rng([*stream, 1]))
    ready = learning_data(data.take(train))
    write_episodes(out / f"{name}.{s}.parquet", data)
    write_neighbours(out / f"{name}.{s}.npz", ready, train, held)
    _write_starts(out / f"{name}.{s}.starts.npz", name, params, np.random.default_rng([params.seed, s, number, 2]))
    return _describe(name, data, kinds, ready)


def _provenance(params: SparseDataParams, name: str, s: int, kinds: np.ndarray) -> dict[str, Any]:
    from importlib import metadata

    counts = {str(kind): int((kinds == kind).sum()) for kind in np.unique(kinds)}
    versions = {package: metadata.version(package) for package in ("mujoco", "gymnasium", "gymnasium-robotics")}
    return {"name": name, "seed": [params.seed, s], "eta": 0.0, "kinds": counts, "versions": versions}


def _write_starts(path: Path, name: str, params: SparseDataParams, rng: np.random.Generator) -> None:
    task, arrays = batch_task(name), {}
    for split, count in (("validation", params.validation), ("test", params.test)):
        arrays[f"{split}_states"], arrays[f"{split}_goals"] = task.starts(count, rng)
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _describe(name: str, data: Episodes, kinds: np.ndarray, ready: LearningData) -> dict[str, float]:
    success = data.returns > 0
    rows = ready.positive_rows
    values = {
        f"behaviour.success.{name}": float(success.mean()),
        f"data.transitions.{name}": float(len(data)),
        f"data.successes.{name}": float(success.sum()),
        f"data.saturated_share.{name}": float((np.abs(ready.action[rows]) >= 1).mean()),
    }
    values |= {f"{kind}.success.{name}": float(success[kinds == kind].mean()) for kind in np.unique(kinds)}
    if len(ready.negative):
        gap = np.linalg.norm(ready.action[rows] - ready.action[ready.neighbour[rows]], axis=1)
        values |= {
            f"neighbours.action_distance.{name}": float(gap.mean()),
            f"neighbours.within_sigma.{name}": float((gap < SIGMA).mean()),
        }
    return values


def load_learning_data(folder: Path, name: str, s: int) -> LearningData:
    """Training trajectories of a data set that `prepare` wrote."""
    data = read_episodes(folder / f"{name}.{s}.parquet")
    train, _, neighbour = read_neighbours(folder / f"{name}.{s}.npz")
    return learning_data(data.take(train), neighbour=neighbour)


def load_shuffled(folder: Path, name: str, s: int) -> LearningData:
    """The control: the same training trajectories, but which of them count as successes is drawn at random."""
    data = read_episodes(folder / f"{name}.{s}.parquet")
    train, _, _ = read_neighbours(folder / f"{name}.{s}.npz")
    return learning_data(shuffle_successes(data.take(train), np.random.default_rng([s, 71])))


def shuffle_successes(data: Episodes, rng: np.random.Generator) -> Episodes:
    """The same steps with the episodes' returns permuted; a success gets its reward at its last step."""
    last = data.starts + data.lengths - 1
    reward = np.zeros(len(data))
    reward[last] = rng.permutation(data.returns)
    return replace(data, reward=reward)


def load_held_out(folder: Path, name: str, s: int) -> Episodes | None:
    """Trajectories that no learner saw, or None if none of them succeeds."""
    data = read_episodes(folder / f"{name}.{s}.parquet")
    _, held, _ = read_neighbours(folder / f"{name}.{s}.npz")
    return data.take(held) if len(held) and (data.returns[held] > 0).any() else None


def load_starts(folder: Path, name: str, seeds: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    """First states (S, E, s) and goals (S, E, g) of all seeds."""
    states, goals = [], []
    for s in range(seeds):
        with np.load(folder / f"{name}.{s}.starts.npz") as arrays:
            states.append(arrays[f"{split}_states"])
            goals.append(arrays[f"{split}_goals"])
    return np.stack(states), np.stack(goals)
