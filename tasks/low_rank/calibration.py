"""Node that calibrates a language model: activation moments, Fisher information and importances, for every seed's text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import Field

from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.language_models.pretrained import load_model
from tasks.low_rank.attention import PROJECTIONS
from tasks.low_rank.collector import Batch, LayerStatistics
from tasks.low_rank.methods import importance_bases
from tasks.low_rank.prepared import Part, sequences
from tasks.low_rank.statistics import calibrate as calibrate_model
from tasks.low_rank.statistics import save_statistics
from tasks.quantisation.rotations import block_rotation


class CalibrateParams(Params):
    """How the model is calibrated.

    Attributes:
        seeds: as many as were prepared, or fewer.
        batch: sequences per pass; results do not depend on it beyond rounding.
        rotated: collect the Fisher information of rotated keys and values too, for quantised training.
        magnitudes: collect E|g| too, for the ablation of first order.
        dtype: in which the model runs, forwards and backwards; sums are float32 and the loss is scaled in any case.
        device: torch device.
        workers: processes, by default as many as the stage may use; a process takes seconds to start.
    """

    seeds: int = Field(3, ge=1)
    batch: int = Field(4, ge=1)
    rotated: bool = True
    magnitudes: bool = False
    dtype: str = "float32"
    device: str = "cpu"
    workers: int | None = Field(None, ge=1)


def statistics_file(folder: Path, seed: int) -> Path:
    """Where the statistics of a seed lie."""
    return folder / f"statistics-s{seed}.safetensors"


def text_batches(ids: torch.Tensor, batch: int, device: str = "cpu") -> list[Batch]:
    """Sequences as batches in which every token is a label."""
    return [{"input_ids": part.to(device), "labels": part.to(device)} for part in torch.split(ids, batch)]


def calibrate(params: CalibrateParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `statistics-s<seed>.safetensors` for every seed.

    Metrics: `fisher.<what>.<projection>` over seeds: `tail`, the largest value over the mean (largest of all layers), and `zeros`, the
    share of exact zeros.
    """
    items = [_Work(inputs["warmstart"], inputs["prepare"], out, seed, params) for seed in range(params.seeds)]
    found = list(log.progress(map_parallel(_calibrate, items, workers=params.workers), total=len(items), desc="calibration"))
    return {
        name: value
        for what in ("tail", "zeros")
        for p in PROJECTIONS
        for name, value in summarise(f"fisher.{what}.{p}", [seed[f"{what}.{p}"] for seed in found]).items()
    }


@dataclass(frozen=True)
class _Work:
    model: Path
    texts: Path
    out: Path
    seed: int
    params: CalibrateParams


def _calibrate(work: _Work) -> dict[str, float]:
    statistics = calibrated(work.model, work.texts, work.seed, work.params)
    save_statistics(statistics_file(work.out, work.seed), statistics)
    return tails(statistics)


def calibrated(model: Path, texts: Path, seed: int, params: CalibrateParams, part: Part = "calibration") -> list[LayerStatistics]:
    """Statistics of the model in a folder on one seed's text."""
    network, _ = load_model(model / "model", dtype=params.dtype, device=params.device)
    batches = text_batches(sequences(texts, seed, part), params.batch, params.device)
    rotation = block_rotation(network.config.get_text_config().hidden_size).to(params.device) if params.rotated else None
    return calibrate_model(network, batches, importance_bases, rotation, magnitudes=params.magnitudes)


def tails(statistics: Iterable[LayerStatistics]) -> dict[str, float]:
    """How heavy the tail of the Fisher information is, and how much of it is exactly zero."""
    known = list(statistics)
    found = {}
    for p in PROJECTIONS:
        found[f"tail.{p}"] = max(float(layer.fisher[p].max() / layer.fisher[p].mean()) for layer in known)
        found[f"zeros.{p}"] = sum(float((layer.fisher[p] == 0).float().mean()) for layer in known) / len(known)
    return found
