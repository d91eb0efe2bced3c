"""Calibration statistics of a decoder's attention projections, collected with hooks while the model runs.

Two passes, each a context manager: `MomentCollector` sees the inputs x of the projections (E[x x^T], E|x|), `GradientCollector` also the
gradients g of the loss with respect to each projection's weight, ONE SAMPLE AT A TIME: the diagonal Fisher information E[g o g], where
asked for E|g|, and the importance E[(sigma u^T G v)^2] of singular triples. A sample's gradient is X^T dY, from its inputs and the
gradient of its outputs, so that a batch of samples needs one backward pass and no weight requires a gradient. All sums are float32,
whatever the model's type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tasks.low_rank.attention import PROJECTIONS, AttentionBlock, Projection, attention_blocks
from tasks.low_rank.factorisations import Spectrum
from tasks.low_rank.heads import split_heads

Batch = Mapping[str, torch.Tensor]
"""What the model takes (`input_ids`, `attention_mask`, `pixel_values`, ...) and `labels` (B, T), -100 where the loss is not counted."""

Bases = Mapping[tuple[int, str], Spectrum]
"""Singular triples whose importance is wanted, by layer and projection; `qkv` means the three side by side."""

LOSS_SCALE = 2.0**10
ROTATED: tuple[Projection, ...] = ("k", "v")


@dataclass
class LayerStatistics:
    """What is known of one layer; gradients' statistics are (h, E, H) per projection, empty after a pass without gradients."""

    second_moment: torch.Tensor
    abs_mean: torch.Tensor
    fisher: dict[Projection, torch.Tensor] = field(default_factory=dict)
    abs_gradient: dict[Projection, torch.Tensor] = field(default_factory=dict)
    importance: dict[str, torch.Tensor] = field(default_factory=dict)
    fisher_rotated: dict[Projection, torch.Tensor] = field(default_factory=dict)
    """E[(S g) o (S g)], of the weight that acts on rotated inputs, where a rotation S was given."""


class MomentCollector:
    """Second moments and mean magnitudes of the projections' inputs, over the tokens of `mask`."""

    def __init__(self, model: nn.Module) -> None:
        self.blocks = attention_blocks(model)
        size, device = self.blocks[0].hidden, next(model.parameters()).device
        self.moments = [torch.zeros(size, size, device=device) for _ in self.blocks]
        self.magnitudes = [torch.zeros(size, device=device) for _ in self.blocks]
        self.tokens = [0] * len(self.blocks)
        self.mask: torch.Tensor | None = None
        self._hooks: list[Any] = []

    def __enter__(self) -> MomentCollector:
        for layer, block in enumerate(self.blocks):
            self._hooks.append(block.projection("q").register_forward_pre_hook(self._seen(layer)))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _seen(self, layer: int) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
        def hook(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            x = inputs[0].detach().float()  # (B, T, E)
            x = x.flatten(0, 1) if self.mask is None else x[self.mask]
            self.moments[layer].addmm_(x.T, x)
            self.magnitudes[layer].add_(x.abs().sum(0))
            self.tokens[layer] += len(x)

        return hook

    def statistics(self) -> list[LayerStatistics]:
        """Means over all tokens so far.

        Raises:
            ValueError: if the model never ran.
        """
        if not all(self.tokens):
            raise ValueError("the calibration set is empty: no token went through the model")
        return [LayerStatistics(m / n, a / n) for m, a, n in zip(self.moments, self.magnitudes, self.tokens, strict=True)]


class GradientCollector:
    """Per-sample gradients of the projections' weights, squared and summed; rows of a batch are samples.

    Args:
        model: the decoder.
        bases: singular triples whose importance is wanted.
        rotation: S (E, E), orthogonal: Fisher information of S W is collected too, for keys and values.
        magnitudes: collect E|g| too.
        scale: by which the loss was multiplied.
    """

    def __init__(
        self,
        model: nn.Module,
        bases: Bases | None = None,
        rotation: torch.Tensor | None = None,
        *,
        magnitudes: bool = False,
        scale: float = LOSS_SCALE,
    ) -> None:
        self.blocks = attention_blocks(model)
        self.bases, self.rotation, self.scale = dict(bases or {}), rotation, scale
        self.squares: list[torch.Tensor] = [self._empty(block) for block in self.blocks]
        self.magnitudes: list[torch.Tensor] = [self._empty(block) for block in self.blocks] if magnitudes else []
        self.rotated: list[torch.Tensor] = [self._empty(block, ROTATED) for block in self.blocks] if rotation is not None else []
        self.importance = {key: torch.zeros_like(base.sigma) for key, base in self.bases.items()}
        self.samples = 0
        self._inputs: dict[int, torch.Tensor] = {}
        self._outputs: dict[int, dict[str, torch.Tensor]] = {}
        self._hooks: list[Any] = []

    def __enter__(self) -> GradientCollector:
        for layer, block in enumerate(self.blocks):
            for projection in PROJECTIONS:
                self._hooks.append(block.projection(projection).register_forward_hook(self._forward(layer, projection)))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _empty(self, block: AttentionBlock, projections: Sequence[Projection] = PROJECTIONS) -> torch.Tensor:
        columns = sum(block.heads(p) for p in projections) * block.head_dim
        return torch.zeros(block.hidden, columns, device=next(block.module.parameters()).device)

    def _forward(self, layer: int, projection: Projection) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            self._inputs[layer] = inputs[0].detach()
            if not output.requires_grad:
                raise ValueError("no gradient reaches the projections; run the model under `gradients_from_embeddings`")
            output.register_hook(lambda gradient: self._backward(layer, projection, gradient))  # type: ignore[no-untyped-call]

        return hook

    def _backward(self, layer: int, projection: Projection, gradient: torch.Tensor) -> None:
        waiting = self._outputs.setdefault(layer, {})
        waiting[projection] = gradient.detach()
        if len(waiting) == len(PROJECTIONS):
            self._add(layer, self._inputs.pop(layer), self._outputs.pop(layer))

    def _add(self, layer: int, inputs: torch.Tensor, gradients: Mapping[str, torch.Tensor]) -> None:
        x = inputs.float()  # (B, T, E)
        dy = torch.cat([gradients[p] for p in PROJECTIONS], dim=-1).float() / self.scale  # (B, T, q + k + v)
        for sample_x, sample_dy in zip(x, dy, strict=True):
            gradient = sample_x.T @ sample_dy  # (E, q + k + v) of one sample
            self.squares[layer].addcmul_(gradient, gradient)
            if self.magnitudes:
                self.magnitudes[layer].add_(gradient.abs_())
            if self.rotation is not None:
                rotated = (sample_x @ self.rotation.T).T @ sample_dy[:, -self.rotated[layer].shape[1] :]  # keys and values come last
                self.rotated[layer].addcmul_(rotated, rotated)
        if layer == 0:
            self.samples += len(x)
        for (owner, name), base in self.bases.items():
            if owner == layer:
                part = dy if name == "qkv" else gradients[name].float() / self.scale
                self.importance[owner, name] += _squared_changes(x, part, base)

    def add_to(self, statistics: Sequence[LayerStatistics]) -> None:
        """Put means over the samples into the statistics of each layer.

        Raises:
            ValueError: if no sample was seen.
        """
        if not self.samples:
            raise ValueError("the calibration set is empty: no sample's gradient was taken")
        for layer, (block, target) in enumerate(zip(self.blocks, statistics, strict=True)):
            sums = [(self.squares, target.fisher, PROJECTIONS)]
            if self.magnitudes:
                sums.append((self.magnitudes, target.abs_gradient, PROJECTIONS))
            if self.rotated:
                sums.append((self.rotated, target.fisher_rotated, ROTATED))
            for found, into, projections in sums:
                widths = [block.heads(p) * block.head_dim for p in projections]
                for projection, part in zip(projections, torch.split(found[layer] / self.samples, widths, dim=1), strict=True):
                    into[projection] = split_heads(part.T, block.heads(projection)).contiguous()
        for (layer, name), total in self.importance.items():
            statistics[layer].importance[name] = total / self.samples


def _squared_changes(x: torch.Tensor, dy: torch.Tensor, base: Spectrum) -> torch.Tensor:
    """Sum over samples of (sigma u^T G v)^2, through tokens: G = X^T dY is never formed. Shape of sigma, (h, k) or (k,)."""
    if base.sigma.ndim == 1:
        change = ((x @ base.left) * (dy @ base.right.T)).sum(1)  # (B, k)
    else:
        heads, dimension = base.right.shape[0], base.right.shape[2]
        left = torch.einsum("bte,hek->bthk", x, base.left)
        right = torch.einsum("bthd,hkd->bthk", dy.reshape(*dy.shape[:2], heads, dimension), base.right)
        change = (left * right).sum(1)  # (B, h, k)
    return (change * base.sigma).square().sum(0)


@contextmanager
def gradients_from_embeddings(model: nn.Module) -> Iterator[None]:
    """Let gradients flow through the model from the embeddings on, without one for any weight."""
    wanted = [(p, p.requires_grad) for p in model.parameters()]
    hook = model.get_input_embeddings().register_forward_hook(lambda _m, _i, output: output.requires_grad_(True))  # type: ignore[operator]
    try:
        for parameter, _ in wanted:
            parameter.requires_grad_(False)
        yield
    finally:
        hook.remove()
        for parameter, before in wanted:
            parameter.requires_grad_(before)


def sample_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean negative log-likelihood of each sample's labelled tokens, (B,).

    Raises:
        ValueError: if a sample has no labelled token after its first.
    """
    targets = labels[:, 1:]
    counted = targets != -100
    if not counted.any(dim=1).all():
        raise ValueError("a calibration sample has no labelled token to predict; labels are -100 everywhere")
    each = nn.functional.cross_entropy(logits[:, :-1].float().transpose(1, 2), targets, ignore_index=-100, reduction="none")
    return each.sum(1) / counted.sum(1)
