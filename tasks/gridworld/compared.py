"""Stage that compares fine-tuned policies of a level: many attempts everywhere, a fixed share of them in minigrid itself."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import paired, summarise
from tasks.gridworld.layouts import Level
from tasks.gridworld.policies import load_policy, load_worlds, make_policy
from tasks.gridworld.real_worlds import RealWorlds
from tasks.rl.attempts import Attempts, attempt, attempts, greedy, summed_up

Starts = Literal["train", "moved", "unseen"]
KS = (1, 2, 5, 10, 20, 50, 100)
PAIRED = ("pass1", "pass10", "pass20", "diversity4", "entropy_nats")


class CompareParams(Params):
    """What is attempted, and how often.

    Attributes:
        level: `fourrooms` or `goto`.
        arms: fine-tuned arms; `pretrained` is always there.
        references: arms that every arm is compared with, seed by seed.
        tries: attempts per configuration, by kind of start: the training ones, `moved` (another room), `unseen` layouts.
        everywhere: arms that are tried from `moved` and `unseen` starts too.
        real_share: share of the attempts that run in minigrid.
        seeds: at most so many policies of each arm; arms with fewer are compared over those they have.
        hidden: as the policies.
        horizon: steps of an episode.
        seed: of everything random.
    """

    level: Level = "fourrooms"
    arms: tuple[str, ...] = Field(("ppo", "poly"), min_length=1)
    references: tuple[str, ...] = ("pretrained", "ppo")
    tries: dict[Starts, int] = Field({"train": 100, "moved": 40, "unseen": 40})
    everywhere: tuple[str, ...] = ("pretrained", "ppo", "poly")
    real_share: float = Field(0.1, ge=0.1, le=1.0)
    seeds: int = Field(3, ge=1)
    hidden: tuple[int, ...] = Field((64, 64), min_length=1)
    horizon: int = Field(100, ge=1)
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _fits(self) -> CompareParams:
        if unknown := {*self.references, *self.everywhere} - {*self.arms, "pretrained"}:
            raise ValueError(
                f"references and everywhere name {sorted(unknown)}, which are no arms; known: pretrained, {', '.join(self.arms)}"
            )
        if self.tries.get("train", 0) < 4 or min(self.tries.values()) < 1:
            raise ValueError(f"tries must be at least 4 for 'train' and 1 elsewhere, got {self.tries}")
        return self


@dataclass(frozen=True)
class Judged:
    """One policy: its quantities by (quantity, starts), successes of every configuration, and how twin and minigrid agreed."""

    values: dict[tuple[str, Starts], float]
    successes: dict[Starts, np.ndarray]
    real: int
    total: int
    mismatches: int


def evaluate(params: CompareParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `successes.parquet` (arm, seed, starts, config, successes, attempts) and figures.

    Metrics: `<arm>.{pass<k>,coverage,return,diversity4,entropy_nats,greedy_success}.<level>`, those of other starts as
    `<level>_moved` and `<level>_unseen`; paired differences to the references; `real.{share,mismatches}.<level>`.
    """
    from tasks.gridworld.figures import draw_all

    folders = {arm: folder_of(inputs, arm) for arm in ("pretrained", *params.arms)}
    prepared = next(inputs[name] for name in inputs if name.startswith("prepare"))
    jobs = [(params, prepared, folder, arm, s) for arm, folder in folders.items() for s in seeds_of(folder, arm, params.seeds)]
    judged: dict[tuple[str, int], Judged] = {}
    for job, one in zip(jobs, log.progress(map_parallel(_judge, jobs), total=len(jobs), desc="attempt"), strict=True):
        judged[job[3], job[4]] = one
    metrics = compare(params, judged)
    _write(out / "successes.parquet", params, judged)
    draw_all(params, inputs, folders, judged, log)
    return metrics


def folder_of(inputs: Inputs, arm: str) -> Path:
    """Folder with the policies of an arm.

    Raises:
        ValueError: for an arm that no stage has trained.
    """
    if arm == "pretrained":
        return next(inputs[name] for name in inputs if name.startswith("warmstart"))
    trained = [inputs[name] for name in inputs if name.startswith("train")]
    for folder in trained:
        if (folder / f"{arm}.0.safetensors").is_file():
            return folder
    known = sorted({path.name.split(".")[0] for folder in trained for path in folder.glob("*.safetensors")})
    raise ValueError(f"unknown arm {arm!r}; trained: {', '.join(known)}")


def policy_file(folder: Path, arm: str, s: int) -> Path:
    """Weights of an arm and seed."""
    return folder / (f"{s}.safetensors" if arm == "pretrained" else f"{arm}.{s}.safetensors")


def seeds_of(folder: Path, arm: str, most: int) -> list[int]:
    """Seeds of an arm that were trained, at most so many."""
    return [s for s in range(most) if policy_file(folder, arm, s).is_file()]


def compare(params: CompareParams, judged: dict[tuple[str, int], Judged]) -> Metrics:
    """Means over seeds of every quantity, and paired differences of every arm to the references."""
    metrics: Metrics = {}
    arms = list(dict.fromkeys(arm for arm, _ in judged))
    level = params.level
    seeds = {arm: [s for a, s in judged if a == arm] for arm in arms}

    def over_seeds(arm: str, key: tuple[str, Starts], among: list[int]) -> list[float]:
        return [judged[arm, s].values[key] for s in among if s in seeds[arm]]

    def named(quantity: str, starts: Starts) -> str:
        return f"{quantity}.{level}" if starts == "train" else f"{quantity}.{level}_{starts}"

    for arm in arms:
        for key in judged[arm, 0].values:
            metrics |= summarise(f"{arm}.{named(*key)}", over_seeds(arm, key, seeds[arm]))
    for arm, other in product(arms, params.references):
        shared = [key for key in judged[arm, 0].values if key in judged[other, 0].values and key[0] in PAIRED]
        for key in shared if arm != other else ():
            name = f"{arm}.{named(*key)}-{other}.{named(*key)}"
            metrics |= paired(name, over_seeds(arm, key, seeds[other]), over_seeds(other, key, seeds[arm]))
    totals = [sum(getattr(one, name) for one in judged.values()) for name in ("real", "total", "mismatches")]
    return metrics | {f"real.share.{level}": totals[0] / totals[1], f"real.mismatches.{level}": float(totals[2])}


def judge_policy(params: CompareParams, prepared: Path, weights: Path, arm: str, s: int) -> Judged:
    """All attempts of one policy; arms of the same seed are driven by the same random numbers."""
    values: dict[tuple[str, Starts], float] = {}
    successes: dict[Starts, np.ndarray] = {}
    counted = np.zeros(3, np.int64)
    for number, (starts, count) in enumerate(params.tries.items()):
        if starts != "train" and arm not in params.everywhere:
            continue
        worlds = load_worlds(prepared / f"{starts}.npz", params.horizon)
        policy = load_policy(weights, make_policy(worlds, params.hidden, 0))
        configs = len(worlds.layouts)
        config, uniforms = _plan(params, configs, count, s, number)
        tried = summed_up(attempt(worlds, policy.behaviour, config, uniforms), count)
        rounds = int(np.ceil(params.real_share * count))
        minigrid = RealWorlds(worlds)  # round by round: one environment for each configuration, and not for each attempt
        cuts = [slice(r * configs, (r + 1) * configs) for r in range(rounds)]
        found = [summed_up(attempt(minigrid, policy.behaviour, config[cut], uniforms[:, cut]), 1) for cut in cuts]
        real = Attempts(*(np.concatenate([getattr(one, f) for one in found]) for f in ("returns", "places", "entropy")))
        differing = (real.returns != tried.returns[:rounds]) | (real.places != tried.places[:rounds])
        tried = Attempts(*(np.concatenate([getattr(real, f), getattr(tried, f)[rounds:]]) for f in ("returns", "places", "entropy")))
        counted += (rounds * configs, count * configs, differing.sum())
        successes[starts] = tried.success.sum(0)
        values |= {(f"pass{k}", starts): tried.pass_at(k) for k in KS if k <= count}
        values[("return", starts)] = float(tried.returns.mean())
        if starts == "train":
            best = attempts(worlds, greedy(policy.behaviour), configs, 1, np.random.default_rng(0))
            values[("coverage", starts)] = float(tried.success.any(0).mean())
            values[("diversity4", starts)] = tried.diversity()
            values[("entropy_nats", starts)] = float(tried.entropy.mean())
            values[("greedy_success", starts)] = best.pass_at(1)
    return Judged(values, successes, *map(int, counted))


def _plan(params: CompareParams, configs: int, count: int, s: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([params.seed, 99, s, number])
    return np.tile(np.arange(configs), count), rng.random((params.horizon, configs * count))


def _judge(job: tuple[CompareParams, Path, Path, str, int]) -> Judged:
    params, prepared, folder, arm, s = job
    return judge_policy(params, prepared, policy_file(folder, arm, s), arm, s)


def _write(path: Path, params: CompareParams, judged: dict[tuple[str, int], Judged]) -> None:
    import pandas as pd

    frames = [
        pd.DataFrame({"config": np.arange(len(solved)), "successes": solved}).assign(
            arm=arm, seed=s, starts=starts, attempts=params.tries[starts]
        )
        for (arm, s), one in judged.items()
        for starts, solved in one.successes.items()
    ]
    write_parquet(path, pd.concat(frames, ignore_index=True))
