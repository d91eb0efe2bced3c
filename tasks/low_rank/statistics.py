"""Calibration of a model: both passes over a calibration set, and the file that holds the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from tasks.common.formats import write_atomically
from tasks.low_rank.attention import PROJECTIONS, AttentionBlock, Projection, attention_blocks
from tasks.low_rank.collector import (
    LOSS_SCALE,
    Bases,
    Batch,
    GradientCollector,
    LayerStatistics,
    MomentCollector,
    gradients_from_embeddings,
    sample_losses,
)

MakeBases = Callable[[Sequence[AttentionBlock], Sequence[LayerStatistics]], Bases]


def calibrate(
    model: nn.Module,
    batches: Sequence[Batch],
    make_bases: MakeBases | None = None,
    rotation: torch.Tensor | None = None,
    *,
    magnitudes: bool = False,
    watch: Callable[[Iterable[Batch]], Iterable[Batch]] = iter,
) -> list[LayerStatistics]:
    """Moments of the activations, then Fisher information and, with `make_bases`, the importance of singular triples.

    Args:
        model: a decoder, in evaluation mode afterwards.
        batches: what the model takes, and labels; every row is a sample.
        make_bases: makes the triples from the blocks and the moments.
        rotation: S (E, E), orthogonal: the Fisher information of S W is collected as well, for keys and values.
        magnitudes: collect E|g| as well.
        watch: wraps each pass's batches, for a progress bar.

    Returns:
        statistics of every layer, float32 on the model's device.

    Raises:
        ValueError: for an empty calibration set, or a sample without labels.
    """
    if not batches:
        raise ValueError("the calibration set is empty; give at least one batch")
    model.eval()
    with MomentCollector(model) as moments, torch.no_grad():
        for batch in watch(batches):
            moments.mask = mask_of(batch)
            getattr(model, "base_model", model)(**inputs_of(batch), use_cache=False)  # no words are scored
    statistics = moments.statistics()
    bases = make_bases(moments.blocks, statistics) if make_bases else None
    with GradientCollector(model, bases, rotation, magnitudes=magnitudes) as gradients, gradients_from_embeddings(model):
        for batch in watch(batches):
            losses = sample_losses(model(**inputs_of(batch), use_cache=False).logits, batch["labels"])
            torch.autograd.backward(LOSS_SCALE * losses.sum())
    gradients.add_to(statistics)
    return statistics


def inputs_of(batch: Batch) -> dict[str, torch.Tensor]:
    """A batch without its labels."""
    return {name: value for name, value in batch.items() if name != "labels"}


def mask_of(batch: Batch) -> torch.Tensor | None:
    """Which tokens are no padding, (B, T), or None where all are."""
    mask = batch.get("attention_mask")
    return None if mask is None else mask.bool()


def save_statistics(path: Path, statistics: Sequence[LayerStatistics]) -> None:
    """Write second moments as packed triangles, Fisher information and E|g| in bfloat16, and importances."""
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    for layer, found in enumerate(statistics):
        rows, columns = torch.tril_indices(*found.second_moment.shape)
        tensors[f"{layer}.second_moment"] = found.second_moment[rows, columns].cpu().contiguous()
        tensors[f"{layer}.abs_mean"] = found.abs_mean.cpu()
        tensors |= {f"{layer}.fisher.{p}": value.to(torch.bfloat16).cpu().contiguous() for p, value in found.fisher.items()}
        tensors |= {f"{layer}.rotated.{p}": value.to(torch.bfloat16).cpu().contiguous() for p, value in found.fisher_rotated.items()}
        tensors |= {f"{layer}.magnitude.{p}": value.to(torch.bfloat16).cpu().contiguous() for p, value in found.abs_gradient.items()}
        tensors |= {f"{layer}.importance.{name}": value.cpu().contiguous() for name, value in found.importance.items()}
    write_atomically(path, lambda p: save_file(tensors, p))


def load_statistics(path: Path) -> list[LayerStatistics]:
    """Read what `save_statistics` wrote, as float32."""
    from safetensors.torch import load_file

    tensors = load_file(path)
    layers = 1 + max(int(name.split(".", 1)[0]) for name in tensors)
    statistics = []
    for layer in range(layers):
        mean = tensors[f"{layer}.abs_mean"]
        moment = torch.zeros(len(mean), len(mean))
        rows, columns = torch.tril_indices(len(mean), len(mean))
        moment[rows, columns] = moment[columns, rows] = tensors[f"{layer}.second_moment"]
        found = {kind: _projections(tensors, f"{layer}.{kind}") for kind in ("fisher", "magnitude", "rotated")}
        marks = f"{layer}.importance."
        importance = {name.removeprefix(marks): value for name, value in tensors.items() if name.startswith(marks)}
        statistics.append(LayerStatistics(moment, mean, found["fisher"], found["magnitude"], importance, found["rotated"]))
    return statistics


def _projections(tensors: Mapping[str, torch.Tensor], name: str) -> dict[Projection, torch.Tensor]:
    return {p: tensors[f"{name}.{p}"].float() for p in PROJECTIONS if f"{name}.{p}" in tensors}


def check_layers(model: nn.Module, statistics: Sequence[LayerStatistics]) -> list[AttentionBlock]:
    """The model's blocks, after a look at whether the statistics are its own.

    Raises:
        ValueError: if numbers of layers or hidden sizes differ.
    """
    blocks = attention_blocks(model)
    if len(blocks) != len(statistics) or blocks[0].hidden != len(statistics[0].abs_mean):
        raise ValueError(
            f"the statistics are of {len(statistics)} layers with hidden size {len(statistics[0].abs_mean)}, the model has "
            f"{len(blocks)} layers with {blocks[0].hidden}; calibrate this model"
        )
    return blocks
