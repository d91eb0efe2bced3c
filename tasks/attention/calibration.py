"""Stage that fits HashAttention and sets every method for its target densities on a few calibration prompts.

The prompts are recorded once: dense prefill of the context, then question and answer. What attention saw there is what everything
is fitted to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pandas as pd
from pydantic import Field, field_validator

from tasks.attention.arms import Tuned
from tasks.attention.baselines import Collisions, HybridFixed, TopP
from tasks.attention.cells import Case, measure
from tasks.attention.hash_attention import HashParams, recall_at, save_hash_attention, train_hash_attention
from tasks.attention.models import ModelParams, attention_shape, hash_examples, open_model
from tasks.attention.predictors import MagicPIG
from tasks.attention.recording import record
from tasks.attention.tuning import GridParams, Tried, try_all, tune
from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics
from tasks.language_models.prompts import read_prompts

if TYPE_CHECKING:
    from tasks.attention.interface import Method, Predictor

CONFIGS, HASHES = "tuned.json", "hash_attention.safetensors"
SHARES = (0.25, 0.5, 0.75)
S = TypeVar("S")
T = TypeVar("T")
Value = TypeVar("Value", int, float)


class CalibrateParams(ModelParams):
    """What is fitted and tried.

    Attributes:
        data: the set of prompts.
        targets: density that is asked for, by the name under which later stages ask for it.
        every: every which layer the search looks at.
        rows: rows of each prompt that the search looks at.
        grid: vAttention's configurations.
        hashing: HashAttention's networks.
        topp: shares of the softmax that are tried for top-p.
        magicpig_bits: bits of MagicPIG's codes.
        magicpig_tables: numbers of tables that are tried.
        seed: of the samples in the search.
    """

    data: str = "calibration"
    targets: dict[str, float] = Field({"05": 0.05, "10": 0.1, "20": 0.2})
    every: int = Field(5, ge=1)
    rows: int = Field(12, ge=1)
    grid: GridParams = GridParams()
    hashing: HashParams = HashParams()
    topp: tuple[float, ...] = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99)
    magicpig_bits: int = Field(8, ge=1, le=15)
    magicpig_tables: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    seed: int = Field(1000, ge=0)

    @field_validator("targets")
    @classmethod
    def _densities(cls, targets: dict[str, float]) -> dict[str, float]:
        for name, density in targets.items():
            if not 0 < density <= 1:
                raise ValueError(f"targets.{name} is a density in (0, 1], got {density}")
        if not targets:
            raise ValueError("targets must name at least one density, got none")
        return targets


def calibrate(params: CalibrateParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `tuned.json`, the networks of HashAttention, and a table of what was tried.

    Metrics: `hashattention.recall.calibration` (share of the 64 heaviest keys among its 64 best, mean over layers and heads, of the
    calibration prompts), `untrained_hash.recall.calibration` (before training), and for each target
    `tuned_{oracle,hash}.{density,err_mean}.<target>`; with another set of prompts, `<data>` and `<data>_<target>` in these places.
    """
    model, _ = open_model(params, inputs)
    prompts = read_prompts(inputs.file("prepare", f"{params.data}.parquet"))
    recorded = [
        record(model, p.context_ids(params.device), p.following_ids(params.device)) for p in log.progress(prompts, desc="recording")
    ]
    shape = attention_shape(recorded[0])
    examples = [hash_examples(layers) for layers in recorded]
    net = train_hash_attention(examples, params.hashing, after=lambda step, loss: log.history(step, hash_loss=loss))
    untrained = train_hash_attention(examples, params.hashing.model_copy(update={"steps": 0}))
    save_hash_attention(net, out / HASHES)

    searched = [[Case.of(r.rows(params.rows)) for r in layers[:: params.every]] for layers in recorded]
    del model, recorded, examples
    metrics: Metrics = {f"layers.count.{params.data}": float(shape.layers), f"heads.count.{params.data}": float(shape.heads)}
    for name, predictor in (("hashattention", net), ("untrained_hash", untrained)):
        metrics[f"{name}.recall.{params.data}"] = _recall(searched, predictor)
    configs = list(params.grid.configs())
    tables: list[pd.DataFrame] = []
    chosen: dict[str, dict[str, Tried]] = {}
    searches = _side_by_side(lambda ranked: try_all(searched, configs, ranked, params.seed), (None, net))
    for name, tried in log.progress(zip(("oracle", "hash"), searches, strict=True), total=2, desc="search"):
        chosen[name] = tune(tried, params.targets)
        tables.append(_table(name, tried))
        for target, best in chosen[name].items():
            cell = target if params.data == "calibration" else f"{params.data}_{target}"
            metrics |= {f"tuned_{name}.density.{cell}": best.density, f"tuned_{name}.err_mean.{cell}": best.err_mean}
    ends = params.grid.ends
    tuned = Tuned(
        ends=ends,
        oracle={target: best.config for target, best in chosen["oracle"].items()},
        hashattention={t: best.config.model_copy(update={"predictor": "hashattention"}) for t, best in chosen["hash"].items()},
        topp=_nearest(params.targets, params.topp, lambda p: _density(searched, TopP(p, ends, ends), None)),
        magicpig=_nearest(
            params.targets,
            params.magicpig_tables,
            lambda tables: _density(searched, Collisions(ends, ends), MagicPIG(params.magicpig_bits, tables, seed=params.seed)),
        ),
        heavy_share={
            target: min(SHARES, key=lambda share: _error(searched, best.density, ends, share, params.seed))
            for target, best in chosen["oracle"].items()
        },
        magicpig_bits=params.magicpig_bits,
    )
    tuned.write(out / CONFIGS)
    write_parquet(out / "tried.parquet", pd.concat(tables, ignore_index=True))
    return metrics


def _side_by_side(work: Callable[[S], T], items: Sequence[S]) -> Iterator[T]:
    """`work` of every item in threads, each of which computes alone: the search's many small products gain nothing from being divided."""
    import torch

    def alone(item: S) -> T:
        torch.set_num_threads(1)
        return work(item)

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(min(len(items), before)) as pool:
            yield from pool.map(alone, items)
    finally:
        torch.set_num_threads(before)


def _recall(prompts: Sequence[Sequence[Case]], predictor: Predictor, count: int = 64) -> float:
    """Mean recall of the heaviest keys; `count` is lowered where rows have fewer keys."""
    found = []
    for cases in prompts:
        for case in cases:
            k = min(count, int(case.exact.counts.min()))
            found.append(float(recall_at(case.scores(predictor), case.logits, case.valid.expand(case.logits.shape), k).mean()))
    return sum(found) / len(found)


def _density(prompts: Sequence[Sequence[Case]], method: Method, predictor: Predictor | None) -> float:
    return sum(measure(cases, method, 0, predictor).summary()["density"] for cases in prompts) / len(prompts)


def _error(prompts: Sequence[Sequence[Case]], density: float, ends: int, share: float, seed: int) -> float:
    method = HybridFixed(min(density, 1.0), ends, ends, share)
    return sum(measure(cases, method, seed + p).summary()["err_mean"] for p, cases in enumerate(prompts))


def _nearest(targets: dict[str, float], values: Sequence[Value], density_of: Callable[[Value], float]) -> dict[str, Value]:
    """For each target the value whose density is nearest to it."""
    densities = list(_side_by_side(density_of, values))
    return {name: min(zip(values, densities, strict=True), key=lambda pair: abs(pair[1] - target))[0] for name, target in targets.items()}


def _table(name: str, tried: Sequence[Tried]) -> pd.DataFrame:
    rows = [{"predictor": name, **t.config.model_dump(include={"heavy", "base", "epsilon"})} for t in tried]
    return pd.DataFrame(rows).assign(density=[t.density for t in tried], err_mean=[t.err_mean for t in tried])
