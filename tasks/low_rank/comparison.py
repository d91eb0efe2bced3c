"""Node that compares every factorisation method with the dense model on evaluation text, at equal shares of parameters.

Closed-form methods are made here from the statistics; fine-tuned factors come from the stage before. Names: `<method>_r<100 rho1>` where
queries, keys and values are factorised, `<method>_kv` where keys and values are; `_last` is a descent's last iterate. Ratios of parameters
and of the cache stand beside each other, as methods trade them differently.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import nn

from tasks.common.formats import read_parquet, write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import paired, summarise
from tasks.language_models.pretrained import load_model
from tasks.low_rank.attention import AttentionBlock, Projection
from tasks.low_rank.calibration import statistics_file
from tasks.low_rank.checkpoints import load_factors
from tasks.low_rank.collector import LayerStatistics, MomentCollector
from tasks.low_rank.comparison_figures import Shown, draw, spectra_shown
from tasks.low_rank.measurement import Reference, WeightErrors
from tasks.low_rank.methods import JOINT, Method, ModelFactors, Spectra, cache_ratio, parameter_ratio, spectra_of, truncated
from tasks.low_rank.prepared import sequences
from tasks.low_rank.statistics import check_layers, load_statistics
from tasks.low_rank.train import factors_file

DATA = "smollm2"
QUALITY = ("kl_nats", "nats", "perplexity")
ERRORS = ("weight_err", "act_err", "fisher_err")
RATIOS = ("param_ratio", "cache_ratio")


class Cell(Params):
    """A closed-form method and what it factorises.

    Attributes:
        method: which; `diagonal` is whitening without the correlations between channels, `permuted` with other channels' statistics.
        projections: what is factorised.
        kept: shares rho1, an arm each.
        allocation: of ranks.
        rank: in place of the rank that `kept` gives, for comparisons at an equal cache.
        sequences: moments are taken from so many of the calibration sequences, by default from all.
    """

    method: Method | Literal["diagonal", "permuted"]
    projections: tuple[Projection, ...] = ("q", "k", "v")
    kept: tuple[float, ...] = Field((0.5,), min_length=1)
    allocation: Literal["uniform", "global"] = "uniform"
    rank: int | None = Field(None, ge=1)
    sequences: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _rank_what_was_measured(self) -> Cell:
        if self.sequences is not None and self.allocation == "global":
            raise ValueError(f"sequences = {self.sequences} needs allocation: uniform; importances are those of the whole text's triples")
        return self


class EvaluateParams(Params):
    """What is compared.

    Attributes:
        seeds: as many as were trained.
        cells: closed-form methods by the name of their arms, without the ratio.
        tuned: fine-tuned arms, of which the selected iterate is measured.
        last: fine-tuned arms, of which the last iterate is measured too.
        pairs: arms whose differences are reported, first minus second.
        dtype: in which models are run.
        device: torch device.
        workers: processes, by default as many as the stage may use; a process takes seconds to start.
    """

    seeds: int = Field(3, ge=1)
    cells: dict[str, Cell] = Field(default_factory=lambda: {"head_white": Cell(method="head_white")})
    tuned: tuple[str, ...] = ("wsvd_kv",)
    last: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    dtype: str = "bfloat16"
    device: str = "cpu"
    workers: int | None = Field(None, ge=1)


def evaluate(params: EvaluateParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `quality.parquet` (seed, arm, and a column per metric) and the figures.

    Metrics over seeds: `<arm>.<metric>.smollm2`, `dense.{nats,perplexity}.smollm2`, paired differences `<a>.<metric>-<b>.<metric>` of
    `pairs`; from the training stage `<arm>.{fisher_err_dropped,below_row}.smollm2`, shares of all (layer, projection) pairs.
    """
    import pandas as pd

    needs = (inputs["warmstart"], inputs["prepare"], inputs["train-calibrate"], inputs["train"])
    items = [_Work(*needs, seed, params) for seed in range(params.seeds)]
    found = list(log.progress(map_parallel(_evaluate, items, workers=params.workers), total=len(items), desc="seeds"))
    rows = pd.DataFrame([row for seed in found for row in seed.rows])
    write_parquet(out / "quality.parquet", rows)
    metrics = summaries(rows, params.pairs)
    errors = read_parquet(inputs.file("train", "errors.parquet"))
    metrics |= dropped(errors)
    draw(log, rows, read_parquet(inputs.file("train", "objective.parquet")), errors, found[0].shown)
    return metrics


def summaries(rows: Any, pairs: Sequence[tuple[str, str]]) -> Metrics:
    """Means over seeds of every arm's metrics, and of paired differences."""
    metrics: Metrics = {}
    for arm, part in rows.groupby("arm", sort=True):
        ordered = part.sort_values("seed")
        for what in (*QUALITY, *ERRORS, *RATIOS):
            if ordered[what].notna().all():
                metrics |= summarise(f"{arm}.{what}.{DATA}", ordered[what])
    for a, b in pairs:
        left, right = (rows[rows.arm == arm].sort_values("seed") for arm in (a, b))
        for what in ("kl_nats", "nats", "fisher_err"):
            metrics |= paired(f"{a}.{what}.{DATA}-{b}.{what}.{DATA}", left[what], right[what])
    return metrics


def dropped(errors: Any) -> Metrics:
    """Shares of (layer, projection) pairs: last error below the start's (with a selected one that is not above), and below `row_kv`'s."""
    metrics: Metrics = {}
    keys = ["seed", "layer", "projection"]
    for arm, part in errors.groupby("arm", sort=True):
        fell = part.assign(fell=(part["last"] < part["before"]) & (part["selected"] <= part["before"]))
        metrics |= summarise(f"{arm}.fisher_err_dropped.{DATA}", fell.groupby("seed")["fell"].mean())
        rows = errors[errors.arm == "row_kv"]
        both = part.merge(rows, on=keys, suffixes=("", "_row"))
        if len(both) == len(part) and arm != "row_kv":
            share = both.assign(below=both["last"] < both["last_row"]).groupby("seed")["below"].mean()
            metrics |= summarise(f"{arm}.below_row.{DATA}", share)
    return metrics


@dataclass(frozen=True)
class _Work:
    model: Path
    texts: Path
    statistics: Path
    factors: Path
    seed: int
    params: EvaluateParams


@dataclass(frozen=True)
class _Found:
    rows: list[dict[str, Any]]
    shown: Shown | None


def _evaluate(work: _Work) -> _Found:
    params = work.params
    model, _ = load_model(work.model / "model", dtype=params.dtype, device=params.device)
    statistics = load_statistics(statistics_file(work.statistics, work.seed))
    blocks = check_layers(model, statistics)
    reference = Reference.of(model, sequences(work.texts, work.seed, "evaluation").to(params.device))
    errors = WeightErrors(blocks, statistics)
    rows = [_row(work.seed, "dense", 0.0, reference.nats)]
    calibration = sequences(work.texts, work.seed, "calibration").to(params.device)
    closed = closed_form(params.cells, blocks, statistics, lambda count: moments_of(model, calibration[:count]))
    for arm, factors in itertools.chain(closed, tuned_factors(work)):
        quality = reference.quality_with(model, factors)
        row = _row(work.seed, arm, quality.kl_nats, quality.nats)
        row |= errors.of(factors)
        rows.append(row | {"param_ratio": parameter_ratio(factors, blocks), "cache_ratio": cache_ratio(factors, blocks)})
    return _Found(rows, spectra_shown(blocks, statistics, params.cells) if work.seed == 0 else None)


def _row(seed: int, arm: str, divergence: float, nats: float) -> dict[str, Any]:
    import math

    return {"seed": seed, "arm": arm, "kl_nats": divergence, "nats": nats, "perplexity": math.exp(min(nats, 50.0))}


def closed_form(
    cells: dict[str, Cell],
    blocks: Sequence[AttentionBlock],
    statistics: Sequence[LayerStatistics],
    collect: Callable[[int], Sequence[LayerStatistics]] | None = None,
) -> Iterator[tuple[str, ModelFactors]]:
    """Arms of the closed-form methods and their factors; neighbours that share spectra make them once.

    Args:
        cells: by the name of their arms.
        blocks: of the dense model.
        statistics: of the whole calibration text.
        collect: statistics of as many of its sequences, for cells with a number of their own.

    Raises:
        ValueError: for a cell with a number of sequences where none can be collected.
    """
    kind, spectra = "", Spectra()  # of one method at a time, as they are large
    for name, cell in cells.items():
        method: Method = "svdllm" if cell.method == "diagonal" or cell.method == "permuted" else cell.method
        # Spectra of all projections hold those of some, but for the joint factorisation.
        mine = f"{cell.method} {cell.sequences} {cell.projections if method == JOINT else ''}"
        if mine != kind or not set(cell.projections) <= set("".join(p for _, p in spectra)):
            if cell.sequences is not None and collect is None:
                raise ValueError(
                    f"cell {name!r} wants moments from {cell.sequences} sequences, which this stage does not collect; drop `sequences`"
                )
            moments = collect(cell.sequences) if collect and cell.sequences else statistics
            known = [altered(cell.method, layer) for layer in moments]
            spectra.clear()
            kind, spectra = mine, spectra_of(method, blocks, known, cell.projections)
        ranking = statistics if cell.allocation == "global" else None
        for kept in cell.kept:
            yield arm_name(name, cell, kept), truncated(method, spectra, blocks, kept, ranking, cell.projections, cell.rank)


def arm_name(name: str, cell: Cell, kept: float) -> str:
    """`<name>_r50` for all three projections, the name alone where it says what it is (`_kv`, or a rank of its own)."""
    return name if name.endswith("_kv") or cell.rank else f"{name}_r{round(100 * kept)}"


def moments_of(model: nn.Module, ids: torch.Tensor) -> list[LayerStatistics]:
    """Moments of the projections' inputs over sequences (n, T)."""
    with MomentCollector(model) as moments, torch.no_grad():
        model.base_model(input_ids=ids, use_cache=False)  # type: ignore[operator]
    return moments.statistics()


def altered(method: str, known: LayerStatistics) -> LayerStatistics:
    """Statistics whose channels do not correlate (`diagonal`) or belong to other channels (`permuted`), for others as they are."""
    if method == "diagonal":
        return LayerStatistics(torch.diag(known.second_moment.diagonal()), known.abs_mean)
    if method == "permuted":
        order = torch.from_numpy(np.random.default_rng(len(known.abs_mean)).permutation(len(known.abs_mean))).to(known.abs_mean.device)
        return LayerStatistics(known.second_moment[order][:, order], known.abs_mean[order])
    return known


def tuned_factors(work: _Work) -> Iterator[tuple[str, ModelFactors]]:
    """Fine-tuned arms, selected iterates first."""
    for arm in work.params.tuned:
        yield arm, load_factors(factors_file(work.factors, arm, work.seed))
    for arm in work.params.last:
        yield f"{arm}_last", load_factors(factors_file(work.factors, arm, work.seed, "last"))
