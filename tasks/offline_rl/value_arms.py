"""Stage that trains the value-based baselines, all seeds of an arm in one stack; iterates on the way are the short budgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.offline_rl.awr import Awr, AwrConfig, returns_to_go
from tasks.offline_rl.cql import Cql, CqlConfig
from tasks.offline_rl.iql import Iql, IqlConfig
from tasks.offline_rl.learning_data import DataStack
from tasks.offline_rl.policies import Policies, policies_of, write_policies
from tasks.offline_rl.rebrac import ReBracConfig, rebrac
from tasks.offline_rl.sparse_data import load_learning_data
from tasks.offline_rl.td3bc import Td3Bc, Td3BcConfig
from tasks.offline_rl.value_learning import Learner, ValueConfig, ValueRun, train_values

if TYPE_CHECKING:
    import torch

METHODS = ("iql", "td3bc", "cql", "rebrac", "awr")


class ValueParams(Params):
    """Arms by method and name.

    Attributes:
        dataset: name.
        seeds: data sets.
        iql: arms of implicit Q-learning, by name; td3bc, cql, rebrac, awr: likewise.
        seed: of everything random.
        device: torch device.
    """

    dataset: str = "medium"
    seeds: int = Field(6, ge=1)
    iql: dict[str, IqlConfig] = Field({})
    td3bc: dict[str, Td3BcConfig] = Field({})
    cql: dict[str, CqlConfig] = Field({})
    rebrac: dict[str, ReBracConfig] = Field({})
    awr: dict[str, AwrConfig] = Field({})
    seed: int = Field(0, ge=0)
    device: str = "cpu"

    def configs(self) -> dict[str, ValueConfig]:
        """Every arm by name."""
        return {name: config for method in METHODS for name, config in getattr(self, method).items()}


def learner_of(config: ValueConfig, stack: DataStack) -> Callable[[Sequence[torch.Generator], int, int], Learner]:
    """What makes the stacked learner of a configuration.

    Raises:
        TypeError: for the configuration of no known method.
    """

    def make(generators: Sequence[torch.Generator], d: int, a: int) -> Learner:
        if isinstance(config, IqlConfig):
            return Iql(generators, d, a, config, stack.device)
        if isinstance(config, Td3BcConfig):
            return Td3Bc(generators, d, a, config, stack.device)
        if isinstance(config, CqlConfig):
            return Cql(generators, d, a, config, stack.device)
        if isinstance(config, ReBracConfig):
            return rebrac(generators, d, a, config, stack.device)
        if isinstance(config, AwrConfig):
            return Awr(generators, d, a, config, returns_to_go(stack, config.gamma), stack.device)
        raise TypeError(f"no learner for a {type(config).__name__}; known methods: {', '.join(METHODS)}")

    return make


def train(params: ValueParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<data set>.safetensors` (`<arm>/<updates>`), `expected.parquet` (arm, seed, updates, start, value).

    Metrics `<arm>.expected.<data set>`: what the learner expects of its policy from the starts of recorded successes, at the end.
    """
    import pandas as pd

    jobs = [(arm, params, dict(inputs)) for arm in sorted(params.configs(), key=lambda a: -params.configs()[a].updates)]
    policies: dict[str, Policies] = {}
    rows: list[tuple[str, int, int, int, float]] = []
    metrics: Metrics = {}
    for (arm, *_), (mine, expected) in zip(jobs, log.progress(map_parallel(_learn, jobs), total=len(jobs), desc="learn"), strict=True):
        policies |= {f"{arm}/{updates}": p for updates, p in mine.items()}
        for updates, by_seed in expected.items():
            rows += [(arm, s, updates, i, float(v)) for s, values in enumerate(by_seed) for i, v in enumerate(values)]
            log.history(updates, **{f"{arm}.expected": float(sum(v.mean() for v in by_seed) / len(by_seed))})
        metrics |= summarise(f"{arm}.expected.{params.dataset}", [v.mean() for v in expected[max(expected)]])
    write_policies(out / f"{params.dataset}.safetensors", policies)
    write_parquet(out / "expected.parquet", pd.DataFrame(rows, columns=["arm", "seed", "updates", "start", "value"]))
    return metrics


def _learn(job: tuple[str, ValueParams, Mapping[str, Path]]) -> tuple[dict[int, Policies], dict[int, Any]]:
    arm, params, folders = job
    parts = [load_learning_data(folders["prepare"], params.dataset, s) for s in range(params.seeds)]
    config = params.configs()[arm]
    stack = DataStack(parts, params.device)
    seeds = [(params.seed, s, 200 + list(params.configs()).index(arm)) for s in range(params.seeds)]
    found: ValueRun = train_values(stack, range(params.seeds), seeds, config, learner_of(config, stack))
    return {updates: policies_of(weights, parts) for updates, weights in found.weights.items()}, found.expected
