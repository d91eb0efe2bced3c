"""Node that factorises and fine-tunes a language model per head, for every arm and seed.

All arms start from the same kind of factors and take the same steps; they differ in the weights of the objective. For each arm the iterate
after the last step is kept, and the one that the held-out text chooses.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.language_models.pretrained import load_model
from tasks.low_rank.attention import AttentionBlock, Projection
from tasks.low_rank.calibration import statistics_file
from tasks.low_rank.checkpoints import save_factors
from tasks.low_rank.collector import LayerStatistics
from tasks.low_rank.factorisations import HeadFactors
from tasks.low_rank.fine_tuning import DAMPING, Weighting, element_weights, weighted_error
from tasks.low_rank.measurement import Reference
from tasks.low_rank.methods import Allocation, ModelFactors, spectra_of, truncated
from tasks.low_rank.prepared import sequences
from tasks.low_rank.selection import Tuned, select, tune_model
from tasks.low_rank.statistics import check_layers, load_statistics


class Arm(Params):
    """One way to factorise and fine-tune.

    Attributes:
        projections: which are factorised.
        kept: rho1, the share of their parameters that is kept.
        weighting: of the objective; `shuffled` has the element weights in random places.
        start: what descent starts from.
        allocation: of ranks over layers and heads.
        steps: of Adam; 0 keeps the start.
        rate: of Adam; the paper's is 1e-4, a small model needs more.
        keep_every: iterates among which the held-out text chooses.
        damping: added to the weights, as a share of their mean.
    """

    projections: tuple[Projection, ...] = ("k", "v")
    kept: float = Field(0.5, gt=0)
    weighting: Weighting | Literal["shuffled"] = "element"
    start: Literal["head_white", "head_svd"] = "head_white"
    allocation: Allocation = "uniform"
    steps: int = Field(100, ge=0)
    rate: float = Field(1e-3, gt=0)
    keep_every: int = Field(25, ge=1)
    damping: float = Field(DAMPING, ge=0)


class TrainParams(Params):
    """Which arms, on how many seeds.

    Attributes:
        seeds: as many as were calibrated, or fewer.
        arms: by name.
        dtype: in which the model is run on held-out text.
        device: torch device.
        workers: processes, by default as many as the stage may use; a process takes seconds to start.
    """

    seeds: int = Field(3, ge=1)
    arms: dict[str, Arm] = Field(default_factory=lambda: {"wsvd_kv": Arm()}, min_length=1)
    dtype: str = "bfloat16"
    device: str = "cpu"
    workers: int | None = Field(None, ge=1)


def factors_file(folder: Path, arm: str, seed: int, iterate: Literal["selected", "last"] = "selected") -> Path:
    """Where the factors of an arm lie."""
    return folder / f"{arm}-{iterate}-s{seed}.safetensors"


def train(params: TrainParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: factors of every arm (`<arm>-selected-s<seed>`, `<arm>-last-s<seed>`), `objective.parquet` and `errors.parquet`.

    `objective.parquet` has (seed, arm, step, objective, held_out_kl_nats), the divergence where it was measured; `errors.parquet` has
    (seed, arm, layer, projection, before, last, selected), errors weighted with the element-wise Fisher information. Metrics over seeds:
    `fit_<arm>.{selected_step,held_out_kl_nats,objective}.smollm2`.
    """
    import pandas as pd

    folders = (inputs["warmstart"], inputs["prepare"], inputs["train-calibrate"], out)
    items = [_Work(*folders, seed, params) for seed in range(params.seeds)]
    found = list(log.progress(map_parallel(_train, items, workers=params.workers), total=len(items), desc="seeds"))
    write_parquet(out / "objective.parquet", pd.DataFrame([row for seed in found for row in seed.curve]))
    write_parquet(out / "errors.parquet", pd.DataFrame([row for seed in found for row in seed.errors]))
    metrics: Metrics = {}
    for arm in params.arms:
        for what in ("selected_step", "held_out_kl_nats", "objective"):
            metrics |= summarise(f"fit_{arm}.{what}.smollm2", [seed.chosen[arm][what] for seed in found])
    for row in found[0].curve:
        log.history(row["step"], **{f"{row['arm']}_objective": row["objective"]})
    return metrics


@dataclass(frozen=True)
class _Work:
    model: Path
    texts: Path
    statistics: Path
    out: Path
    seed: int
    params: TrainParams


@dataclass(frozen=True)
class _Found:
    curve: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    chosen: dict[str, dict[str, float]]


def _train(work: _Work) -> _Found:
    params = work.params
    model, _ = load_model(work.model / "model", dtype=params.dtype, device=params.device)
    statistics = load_statistics(statistics_file(work.statistics, work.seed))
    blocks = check_layers(model, statistics)
    held_out = Reference.of(model, sequences(work.texts, work.seed, "held_out").to(params.device))
    found = _Found([], [], {})
    starts: dict[str, ModelFactors] = {}
    measured: dict[int, float] = {}  # by the start, which arms share
    for name, arm in params.arms.items():
        start = start_of(arm, blocks, statistics, starts)
        tuned = tune_model(
            blocks,
            start,
            partial(arm_weights, arm, statistics, work.seed),
            steps=arm.steps,
            rate=arm.rate,
            keep_every=arm.keep_every,
        )
        step, curve = select(tuned, model, held_out, measured.get(id(start)))
        measured[id(start)] = curve[0]
        save_factors(factors_file(work.out, name, work.seed), tuned.factors(step, best=True), torch.bfloat16)
        save_factors(factors_file(work.out, name, work.seed, "last"), tuned.factors(arm.steps), torch.bfloat16)
        objective = tuned.objective()
        found.curve.extend(
            {"seed": work.seed, "arm": name, "step": s, "objective": float(objective[s]), "held_out_kl_nats": curve.get(s, np.nan)}
            for s in range(arm.steps + 1)
        )
        found.errors.extend({"seed": work.seed, "arm": name, **row} for row in fisher_errors(tuned, step, blocks, statistics))
        found.chosen[name] = {"selected_step": float(step), "held_out_kl_nats": curve[step], "objective": float(objective[-1])}
    return found


def start_of(
    arm: Arm, blocks: Sequence[AttentionBlock], statistics: Sequence[LayerStatistics], known: dict[str, ModelFactors]
) -> ModelFactors:
    """What the arm's descent starts from; equal starts are made once (`known`)."""
    key = f"{arm.start} {arm.projections} {arm.kept} {arm.allocation}"
    if key not in known:
        spectra = spectra_of(arm.start, blocks, statistics, arm.projections)
        ranking = statistics if arm.allocation == "global" else None
        known[key] = truncated(arm.start, spectra, blocks, arm.kept, ranking, arm.projections)
    return known[key]


def arm_weights(arm: Arm, statistics: Sequence[LayerStatistics], seed: int, layer: int, projection: Projection) -> torch.Tensor:
    """Weights F of an arm's objective, (h, E, H)."""
    known = statistics[layer]
    magnitude = known.abs_gradient.get(projection)
    if arm.weighting != "shuffled":
        return element_weights(known.fisher[projection], arm.weighting, magnitude, arm.damping)
    weights = element_weights(known.fisher[projection], "element", None, arm.damping)
    stream = np.random.default_rng([seed, layer, zlib.crc32(projection.encode())])
    order = torch.from_numpy(stream.permutation(weights.numel())).to(weights.device)
    return weights.flatten()[order].reshape(weights.shape)


def fisher_errors(tuned: Tuned, step: int, blocks: Sequence[AttentionBlock], statistics: Sequence[LayerStatistics]) -> list[dict[str, Any]]:
    """Element-wise Fisher-weighted errors of the start, of the last iterate and of the selected one, by layer and projection."""
    stages = {"before": tuned.start, "last": tuned.factors(tuned.kept[-1]), "selected": tuned.factors(step, best=True)}
    rows = []
    for layer, p in tuned.start:
        weights, W = element_weights(statistics[layer].fisher[p]), blocks[layer].weight(p)
        row: dict[str, Any] = {"layer": layer, "projection": p}
        for name, factors in stages.items():
            found = factors[layer, p]
            assert isinstance(found, HeadFactors)
            row[name] = float(weighted_error(weights, W, found.A, found.B))
        rows.append(row)
    return rows
