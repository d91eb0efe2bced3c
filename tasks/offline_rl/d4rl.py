"""Stages on Minari's D4RL and MuJoCo data sets (gpu profile): the paper's tasks by their official identifiers, from the local store.

Adroit sets are labelled by `infos["success"]`, locomotion sets by the 75th percentile of returns, as in the paper. Scores are normalised
with D4RL's published constants; success is reported too, because reward functions of the environments changed between versions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import paired, summarise
from tasks.offline_rl.awr import AwrConfig
from tasks.offline_rl.cloning import CloningConfig
from tasks.offline_rl.contrastive import ContrastiveConfig
from tasks.offline_rl.cql import CqlConfig
from tasks.offline_rl.degradation import nearest_failures_chunked
from tasks.offline_rl.episodes import NoNegativeTrajectories, read_episodes, split_by_return, write_episodes
from tasks.offline_rl.iql import IqlConfig
from tasks.offline_rl.learning_data import hold_out, learning_data, read_neighbours, write_neighbours
from tasks.offline_rl.minari_episodes import Rule, flatten_one, open_minari, read_minari_episodes
from tasks.offline_rl.offline_arms import Config, train_arm
from tasks.offline_rl.policies import Policies, read_policies, write_policies
from tasks.offline_rl.rebrac import ReBracConfig
from tasks.offline_rl.rollout_continuous import rollout
from tasks.offline_rl.td3bc import Td3BcConfig
from tasks.offline_rl.transitions import Standardiser

REFERENCE = {
    "pen": (96.262799, 3076.8331017826877),
    "door": (-56.512833, 2880.5693087298737),
    "hammer": (-274.856578, 12794.134825156867),
    "relocate": (-6.425911, 4233.877797728884),
    "hopper": (-20.272305, 3234.3),
    "walker2d": (1.629008, 4592.3),
    "halfcheetah": (-280.178953, 12135.0),
}
"""Returns of a random and of an expert policy that D4RL publishes, by environment."""


class D4rlTask(Params):
    """One data set.

    Attributes:
        dataset: Minari's identifier, or a folder in its format.
        rule: which trajectories are successes.
        reference: environment of `REFERENCE`, or empty for no normalised score.
    """

    dataset: str
    rule: Rule = "auto"
    reference: str = ""


class D4rlParams(Params):
    """Tasks by name.

    Attributes:
        tasks: by the name that metrics bear.
        quantile: of returns, above which a trajectory is a success under the rule `quantile`.
        held_out: share of trajectories that no learner sees.
        seeds: policies per arm.
        seed: of everything random.
        device: torch device.
    """

    tasks: dict[str, D4rlTask] = Field(
        {"door_cloned": D4rlTask(dataset="D4RL/door/cloned-v2", rule="info", reference="door")}, min_length=1
    )
    quantile: float = Field(0.75, gt=0, lt=1)
    held_out: float = Field(0.1, ge=0, lt=1)
    seeds: int = Field(3, ge=1)
    seed: int = Field(0, ge=0)
    device: str = "cpu"


class TrainD4rlParams(D4rlParams):
    """Arms by method and name.

    Attributes:
        contrastive: arms that learn no values; cloning, iql, td3bc, cql, rebrac, awr: baselines.
    """

    contrastive: dict[str, ContrastiveConfig] = Field({"preforl": ContrastiveConfig()})
    cloning: dict[str, CloningConfig] = Field({})
    iql: dict[str, IqlConfig] = Field({})
    td3bc: dict[str, Td3BcConfig] = Field({})
    cql: dict[str, CqlConfig] = Field({})
    rebrac: dict[str, ReBracConfig] = Field({})
    awr: dict[str, AwrConfig] = Field({})

    def configs(self) -> dict[str, Config]:
        """Every arm by name."""
        groups = ("contrastive", "cloning", "iql", "td3bc", "cql", "rebrac", "awr")
        return {name: config for group in groups for name, config in getattr(self, group).items()}


class EvaluateD4rlParams(D4rlParams):
    """Rollouts.

    Attributes:
        episodes: per policy.
        method: the arm that differences are taken of.
    """

    episodes: int = Field(20, ge=1)
    method: str = "preforl"


def normalised_score(returns: np.ndarray, reference: str) -> np.ndarray:
    """D4RL's score: 0 for the random policy, 100 for the expert.

    Raises:
        KeyError: for an environment without published constants.

    Example:
        >>> normalised_score(np.array([2880.5693087298737]), "door").tolist()
        [100.0]
    """
    if reference not in REFERENCE:
        raise KeyError(f"no reference returns for {reference!r}; known: {', '.join(REFERENCE)}")
    random, expert = REFERENCE[reference]
    return np.asarray(100 * (returns - random) / (expert - random))


def prepare(params: D4rlParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<task>.parquet`, manifest, and split with nearest failures. Metrics `behaviour.success.<task>`, `data.transitions.<task>`."""
    metrics: Metrics = {}
    for number, (name, task) in enumerate(log.progress(params.tasks.items(), desc="read")):
        data = read_minari_episodes(open_minari(task.dataset), task.rule, params.quantile)
        train, held = hold_out(data, params.held_out, np.random.default_rng([params.seed, number]))
        kept = data.take(train)
        positive, negative = split_by_return(kept)
        neighbour = np.full(len(kept), -1)
        if len(negative):
            obs = Standardiser.of(kept.obs)(kept.obs)
            rows, failed = kept.rows(positive), kept.rows(negative)
            neighbour[rows] = failed[nearest_failures_chunked(obs[rows], obs[failed], params.device)]
        write_episodes(out / f"{name}.parquet", data)
        write_neighbours(out / f"{name}.npz", learning_data(kept, neighbour=neighbour), train, held)
        metrics |= {f"behaviour.success.{name}": float((data.returns > 0).mean()), f"data.transitions.{name}": float(len(data))}
    return metrics


def train(params: TrainD4rlParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<task>.safetensors` by arm. Metrics `<arm>.cannot_run.<task>` = 1 where the data rule an arm out."""
    metrics: Metrics = {}
    for name in params.tasks:
        data = read_episodes(inputs.file("prepare-d4rl", f"{name}.parquet"))
        kept, _, neighbour = read_neighbours(inputs.file("prepare-d4rl", f"{name}.npz"))
        ready = learning_data(data.take(kept), neighbour=neighbour)
        policies: dict[str, Policies] = {}
        for number, (arm, config) in enumerate(log.progress(params.configs().items(), desc=name)):
            seeds = [(params.seed, s, number) for s in range(params.seeds)]

            def after(step: int, value: float, arm: str = arm, name: str = name, every: int = max(config.updates // 50, 1)) -> None:
                if step % every == 0:
                    log.history(step, **{f"{arm}.loss.{name}": value / params.seeds})

            try:
                policies[arm] = train_arm(config, ready, seeds, params.device, after)
            except NoNegativeTrajectories:
                metrics[f"{arm}.cannot_run.{name}"] = 1.0
        write_policies(out / f"{name}.safetensors", policies)
    return metrics


def evaluate(params: EvaluateD4rlParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `returns.parquet`. Metrics `<arm>.{success,return,normalised_score}.<task>`, differences of the method to every arm."""
    import pandas as pd

    jobs = [
        (name, arm, policies, params)
        for name in params.tasks
        for arm, policies in read_policies(inputs.file("train-d4rl", f"{name}.safetensors")).items()
    ]
    found: dict[tuple[str, str, str], np.ndarray] = {}
    rows = []
    for (name, arm, *_), (returns, success) in zip(
        jobs, log.progress(map_parallel(_roll, jobs), total=len(jobs), desc="roll out"), strict=True
    ):
        found[arm, "success", name] = success.mean(1)
        found[arm, "return", name] = returns.mean(1)
        if reference := params.tasks[name].reference:
            found[arm, "normalised_score", name] = normalised_score(returns.mean(1), reference)
        rows += [
            (name, arm, s, e, float(r), bool(w)) for (s, e), r, w in zip(np.ndindex(returns.shape), returns.flat, success.flat, strict=True)
        ]
    metrics: Metrics = {}
    for (arm, quantity, name), values in found.items():
        metrics |= summarise(f"{arm}.{quantity}.{name}", values)
        ours = found.get((params.method, quantity, name))
        if ours is not None and arm != params.method:
            metrics |= paired(f"{params.method}.{quantity}.{name}-{arm}.{quantity}.{name}", ours, values)
    write_parquet(out / "returns.parquet", pd.DataFrame(rows, columns=["data", "arm", "seed", "episode", "return", "success"]))
    return metrics


def _roll(job: tuple[str, str, Policies, EvaluateD4rlParams]) -> tuple[np.ndarray, np.ndarray]:
    name, _, policies, params = job
    dataset = open_minari(params.tasks[name].dataset)
    starts = np.random.default_rng([params.seed, list(params.tasks).index(name), 3]).integers(2**31, size=params.episodes)
    return roll_out(dataset, policies, [int(x) for x in starts], params.tasks[name].rule == "quantile", _level(params, name))


def _level(params: EvaluateD4rlParams, name: str) -> float:
    """Return above which a rollout counts as a success under the rule `quantile`."""
    task = params.tasks[name]
    if task.rule != "quantile":
        return 0.0
    return float(read_minari_episodes(open_minari(task.dataset), task.rule, params.quantile).about["level"])


def roll_out(dataset: Any, policies: Policies, seeds: list[int], by_return: bool, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns and successes (S, E) in the environment that a Minari data set names."""
    from tasks.offline_rl.rollout_continuous import register

    register(str(dataset.env_spec.id) if dataset.env_spec is not None else "")
    runs = rollout(dataset.recover_environment, lambda states: policies.act(states[:, None])[:, 0], flatten_one, len(policies), seeds)
    return runs.returns, runs.returns > level if by_return else runs.success
