"""Leaf stage that times one decode step of attention, sparse and dense side by side in one process, one thread.

Sparse arms are timed with selection (signatures, sample, budget) and without; the baseline of a ratio is the fastest dense variant of
the same dtype in the same round, torch's and our own. Keys and values are random: time depends on how many are read, not on which.
Calls take several queries and seeds in turn, as decoding does: a call that reads the keys of the call before finds them in the
processor's cache.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from tasks.attention.budgets import normal_quantile
from tasks.attention.kernels import fused_decode, gather_decode, numba_decode
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.plotting import COLOURS, figure
from tasks.common.statistics import paired, summarise
from tasks.language_models.timing import Rounds, interleaved

if TYPE_CHECKING:
    import torch
    from torch import Tensor

DENSE = ("sdpa", "folded", "matmul", "dense_kernel")
ADAPTIVE = {"heavy": 0.02, "base": 0.01, "epsilon": 0.1, "delta": 0.1}


class SpeedParams(Params):
    """What is timed.

    Attributes:
        contexts: keys.
        heads: query heads.
        groups: key/value heads, by name of the layout; as many as query heads, or fewer.
        width: of a head.
        densities: percent of keys read.
        rounds: each gives one ratio.
        steps: queries and seeds that sparse calls take in turn.
        seed: of keys, values and draws.
    """

    contexts: tuple[int, ...] = (8192, 32768, 131072)
    heads: int = Field(8, ge=1)
    groups: dict[str, int] = Field({"mha": 8, "gqa": 2})
    width: int = Field(128, ge=8)
    densities: tuple[int, ...] = (2, 5, 10, 20)
    rounds: int = Field(5, ge=2)
    steps: int = Field(8, ge=1)
    seed: int = Field(0, ge=0)

    @field_validator("contexts")
    @classmethod
    def _long_enough(cls, contexts: tuple[int, ...]) -> tuple[int, ...]:
        for n in contexts:
            if n < 256:
                raise ValueError(f"contexts must be at least 256 keys, got {n}")
        return contexts


def evaluate(params: SpeedParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<arm>.{ms,speedup}.<dtype>_<layout>_<context>k`, over rounds.

    Arms: `numba_<percent>` (one kernel that selects and attends), `attend_<percent>` (the same kernel from ready lists),
    `torch_<percent>` (gathering, from ready lists), `adaptive` (the budget follows the data), `dense_kernel` (reads every key), and
    `dense`, the fastest of the dense variants.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    metrics: Metrics = {}
    try:
        for cell, arms, read in log.progress(_cells(params), total=4 * len(params.contexts), desc="layouts"):
            repeats = 3 if "128k" not in cell else 1
            times = interleaved(arms, rounds=params.rounds, repeats=repeats, warm_up=1, minimum_ms=2.0)
            metrics |= _metrics(times, cell, params)
            metrics[f"adaptive.density.{cell}"] = read
            arms.clear()
            gc.collect()
    finally:
        torch.set_num_threads(before)
    log.figure("speed", _figure(metrics, params))
    return metrics


def _cells(params: SpeedParams) -> Iterator[tuple[str, dict[str, Callable[[], object]], float]]:
    import torch

    for n in params.contexts:
        draws = torch.Generator().manual_seed(params.seed)
        most = max(params.groups.values())
        keys, values = (torch.randn(most, n, params.width, generator=draws) for _ in range(2))
        query = torch.randn(params.heads, params.width, generator=draws)
        planes = fused_decode.signature_planes(params.width, draws)
        signed = fused_decode.signatures(keys, planes)
        for dtype in (torch.float32, torch.bfloat16):
            keys, values = keys.to(dtype), values.to(dtype)
            for layout, groups in params.groups.items():
                cell = f"{_short(dtype)}_{layout}_{max(n // 1024, 1)}k"
                yield cell, *arms_of(query, keys[:groups], values[:groups], signed[:groups], planes, params)
        del keys, values
        gc.collect()


def arms_of(
    query: Tensor, keys: Tensor, values: Tensor, signed: Tensor, planes: Tensor, params: SpeedParams
) -> tuple[dict[str, Callable[[], object]], float]:
    """What is timed on one cache, and the density of the adaptive arm. Sparse arms begin with `query` and go on with random ones."""
    import torch

    n = keys.shape[1]
    draws = torch.Generator().manual_seed(params.seed + 1)
    queries = [query, *query.new_empty(params.steps - 1, *query.shape).normal_(generator=draws)]
    arms: dict[str, Callable[[], object]] = dict(gather_decode.dense_variants(query, keys, values))
    arms["dense_kernel"] = lambda: numba_decode.dense_decode(query, keys, values)

    def fused(sizes: fused_decode.FusedSizes) -> list[Callable[[], tuple[Tensor, Tensor]]]:
        return [
            partial(fused_decode.vattention_decode, q, keys, values, signed, planes, sizes, params.seed + step)
            for step, q in enumerate(queries)
        ]

    for percent in params.densities:
        sizes = fused_decode.FusedSizes.of_density(n, percent / 100)
        lists = [fused_decode.vattention_lists(q, keys, signed, planes, sizes, params.seed + step) for step, q in enumerate(queries)]
        arms[f"numba_{percent:02d}"] = _in_turn(fused(sizes))
        arms[f"attend_{percent:02d}"] = _in_turn(
            [partial(numba_decode.sparse_decode, q, keys, values, *read) for q, read in zip(queries, lists, strict=True)]
        )
        if keys.dtype == query.dtype:
            arms[f"torch_{percent:02d}"] = _in_turn(
                [partial(gather_decode.sparse_decode, q, keys, values, *read) for q, read in zip(queries, lists, strict=True)]
            )
    ratio = (normal_quantile(ADAPTIVE["delta"]) / ADAPTIVE["epsilon"]) ** 2
    adaptive = fused(fused_decode.FusedSizes(16, 16, round(ADAPTIVE["heavy"] * n), max(round(ADAPTIVE["base"] * n), 16), ratio))
    arms["adaptive"] = _in_turn(adaptive)
    return arms, sum(float(step()[1].float().mean()) for step in adaptive) / len(adaptive) / n


def _in_turn(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """A function that makes the next of the calls, over and over."""
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def _metrics(times: Rounds, cell: str, params: SpeedParams) -> Metrics:
    metrics = summarise(f"dense.ms.{cell}", times.best(DENSE))
    speedups = {}
    for arm in times.milliseconds:
        if arm in DENSE[:-1]:
            continue
        speedups[arm] = times.ratios(DENSE, arm)
        metrics |= summarise(f"{arm}.ms.{cell}", times.milliseconds[arm]) | summarise(f"{arm}.speedup.{cell}", speedups[arm])
    few, many = (f"numba_{percent:02d}" for percent in (min(params.densities), 10))
    if {few, many} <= speedups.keys():
        metrics |= paired(f"{few}.speedup.{cell}-{many}.speedup.{cell}", speedups[few], speedups[many])
        metrics |= paired(f"dense_kernel.speedup.{cell}-{many}.speedup.{cell}", speedups["dense_kernel"], speedups[many])
    return metrics


def _short(dtype: torch.dtype) -> str:
    return "f32" if str(dtype).endswith("float32") else "bf16"


def _figure(metrics: Metrics, params: SpeedParams):  # type: ignore[no-untyped-def]
    fig, axes = figure(9.0, 6.2, 2, 2, sharex=True, sharey=True)
    for row, dtype in enumerate(("f32", "bf16")):
        for column, layout in enumerate(params.groups):
            panel = axes[row][column]
            for i, n in enumerate(params.contexts):
                cell = f"{dtype}_{layout}_{max(n // 1024, 1)}k"
                for arm, style in (("numba", "o-"), ("attend", "s:")):
                    values = [metrics[f"{arm}_{p:02d}.speedup.{cell}"] for p in params.densities]
                    label = f"{max(n // 1024, 1)}K keys" + ("" if arm == "numba" else ", selection not counted")
                    panel.plot(params.densities, values, style, ms=4, color=COLOURS[i], label=label)
            panel.axhline(1, color="black", lw=1)
            groups = params.groups[layout]
            panel.set_title(f"{'float32' if dtype == 'f32' else 'bfloat16'}, {params.heads} query and {groups} key/value heads", fontsize=9)
            panel.set(xscale="log", yscale="log")
            panel.set_xticks(params.densities, [f"{p} %" for p in params.densities])
            panel.minorticks_off()
    low, high = axes[0][0].get_ylim()
    shown = [gain for gain in (0.2, 0.5, 1, 2, 5, 10, 20, 50) if low <= gain <= high]
    axes[0][0].set_yticks(shown, [f"{gain:g}" for gain in shown])
    axes[0][0].minorticks_off()
    for panel in axes[-1]:
        panel.set_xlabel("keys read")
    for panel in axes[:, 0]:
        panel.set_ylabel("times faster than the best dense")
    axes[0][0].legend(fontsize=7)
    return fig
