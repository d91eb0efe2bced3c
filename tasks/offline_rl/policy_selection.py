"""From iterates to a success rate: choose the iterate on validation starts, judge it on test starts, the same way for every arm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tasks.offline_rl.batch_rollout import BatchRuns, BatchTask, run_policies
from tasks.offline_rl.policies import Policies, read_policies, stack_policies
from tasks.offline_rl.sparse_data import batch_task, load_starts


@dataclass(frozen=True)
class Selection:
    """One arm on one data set, S seeds.

    Attributes:
        updates: of the iterates, (C,).
        validation: success of every iterate on the validation starts, (C, S).
        chosen: index of the chosen iterate, the earliest of the best, (S,).
        policies: the chosen ones.
        test: what they did from the test starts.
    """

    updates: np.ndarray
    validation: np.ndarray
    chosen: np.ndarray
    policies: Policies
    test: BatchRuns

    @property
    def success(self) -> np.ndarray:
        """Success rate on the test starts, (S,)."""
        return np.asarray(self.test.success.mean(1))

    @property
    def steps_to_goal(self) -> np.ndarray:
        """Mean steps to the goal, failures counted with the horizon, (S,)."""
        return np.asarray(self.test.steps.mean(1))


Starts = tuple[np.ndarray, np.ndarray]


def select_and_test(task: BatchTask, iterates: Mapping[int, Policies], validation: Starts, test: Starts) -> Selection:
    """Choose and judge.

    Args:
        task: the simulator.
        iterates: policies of S seeds by number of updates.
        validation: states (S, E, s) and goals (S, E, g), seed by seed.
        test: likewise.

    Raises:
        ValueError: without iterates.
    """
    if not iterates:
        raise ValueError("no iterates to choose from; the arm was not trained on this data set")
    updates = np.array(sorted(iterates))
    every = stack_policies([iterates[u] for u in updates])  # (C S)
    seeds, count = len(validation[0]), len(updates)
    states, goals = (np.tile(x, (count, 1, 1)) for x in validation)
    rate = run_policies(task, every.act, states, goals).success.mean(1).reshape(count, seeds)
    chosen = rate.argmax(0)
    policies = every.take(chosen * seeds + np.arange(seeds))
    return Selection(updates, rate, chosen, policies, run_policies(task, policies.act, *test))


@dataclass(frozen=True)
class ArmJob:
    """What a worker needs to judge one arm on one data set."""

    data: str
    arm: str
    files: tuple[Path, ...]
    prepared: Path
    seeds: int
    most_updates: int | None = None


def judge_arm(job: ArmJob) -> Selection:
    """Read the iterates of an arm, at most `most_updates` old, and `select_and_test` them."""
    arm_iterates = iterates_of(job.files, job.arm, job.most_updates)
    validation, test = (load_starts(job.prepared, job.data, job.seeds, split) for split in ("validation", "test"))
    return select_and_test(batch_task(job.data), arm_iterates, validation, test)


def iterates_of(files: tuple[Path, ...], arm: str, most_updates: int | None = None) -> dict[int, Policies]:
    """Policies of an arm by number of updates, from whichever file holds it.

    Raises:
        KeyError: if none does, or none is young enough.
    """
    found = {}
    for file in files:
        for name, policies in read_policies(file).items():
            who, _, updates = name.partition("/")
            if who == arm and (most_updates is None or int(updates) <= most_updates):
                found[int(updates)] = policies
    if not found:
        raise KeyError(f"no iterate of {arm!r} with at most {most_updates} updates in {', '.join(map(str, files))}")
    return found


def arms_in(files: tuple[Path, ...]) -> list[str]:
    """Arms that the files hold, in order."""
    return list(dict.fromkeys(name.partition("/")[0] for file in files for name in read_policies(file)))
