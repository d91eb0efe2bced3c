"""Many small networks of one shape trained side by side: a leading axis P, one batched product per layer.

Network p has its own generator for its first weights, its data and its noise, so that what it becomes does not depend on what else
is in the stack (up to the rounding of batched products). The module knows nothing about what the networks are for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import nn


class StackedMlp(nn.Module):
    """P perceptrons with ReLU layers.

    Args:
        generators: P sources of the first weights, uniform in +-1/sqrt(fan in) as torch's linear layers.
        sizes: (inputs, hidden..., outputs).
        squash: tanh at the output.
        layer_norm: normalise every hidden layer before its ReLU, without learned scale.
        dropout: share of hidden units dropped in `forward(..., generator=...)`.

    Shape:
        (P, B, inputs) -> (P, B, outputs).

    Raises:
        ValueError: for fewer than two sizes, no generators, or a dropout outside [0, 1).

    Example:
        >>> nets = StackedMlp([torch.Generator().manual_seed(s) for s in (0, 1)], (3, 8, 2), squash=True)
        >>> nets(torch.zeros(2, 5, 3)).shape
        torch.Size([2, 5, 2])
    """

    __call__: Callable[..., torch.Tensor]

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        sizes: Sequence[int],
        *,
        squash: bool = False,
        layer_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if len(sizes) < 2 or not generators or min(sizes) < 1:
            raise ValueError(f"needs at least one generator and two positive sizes, got {len(generators)} and {tuple(sizes)}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        self.sizes, self.squash, self.layer_norm, self.dropout = tuple(sizes), squash, layer_norm, dropout
        shapes = [s for inner, outer in itertools.pairwise(sizes) for s in ((inner, outer), (1, outer))]
        bounds = [inner**-0.5 for inner in sizes[:-1] for _ in range(2)]
        first = [[(2 * torch.rand(s, generator=g) - 1) * b for s, b in zip(shapes, bounds, strict=True)] for g in generators]
        self.tensors = nn.ParameterList([nn.Parameter(torch.stack(column)) for column in zip(*first, strict=True)])

    @property
    def count(self) -> int:
        """Number P of networks."""
        return len(self.tensors[0])

    def forward(
        self,
        inputs: torch.Tensor,
        generators: Sequence[torch.Generator] | None = None,
        *,
        frozen: bool = False,
        first: int | None = None,
    ) -> torch.Tensor:
        """Outputs (P, B, o) of inputs (P, B, i).

        Args:
            inputs: one batch per network.
            generators: with them, dropout is active.
            frozen: gradients reach the inputs alone, not the weights.
            first: use the first so many networks only.
        """
        hidden = inputs
        tensors = [t[:first] for t in self.tensors] if first is not None else list(self.tensors)
        if frozen:
            tensors = [t.detach() for t in tensors]
        last = len(tensors) // 2 - 1
        for layer in range(last + 1):
            hidden = torch.baddbmm(tensors[2 * layer + 1], hidden, tensors[2 * layer])
            if layer == last:
                break
            if self.layer_norm:
                hidden = torch.nn.functional.layer_norm(hidden, hidden.shape[-1:])
            hidden = hidden.relu()
            if self.dropout and generators is not None:
                kept = torch.stack([torch.rand(hidden.shape[1:], generator=g) for g in generators]) >= self.dropout
                hidden = hidden * kept.to(hidden) / (1 - self.dropout)
        return hidden.tanh() if self.squash else hidden

    def weights(self) -> list[torch.Tensor]:
        """Copies of the tensors as they stand, on the CPU: (P, i, o), (P, 1, o) by layer."""
        return [tensor.detach().cpu().clone() for tensor in self.tensors]

    def load(self, weights: Sequence[torch.Tensor]) -> None:
        """Overwrite the tensors.

        Raises:
            ValueError: for tensors of other shapes.
        """
        if [tuple(w.shape) for w in weights] != [tuple(t.shape) for t in self.tensors]:
            raise ValueError(
                f"the weights have shapes {[tuple(w.shape) for w in weights]}, expected {[tuple(t.shape) for t in self.tensors]}"
            )
        with torch.no_grad():
            for tensor, value in zip(self.tensors, weights, strict=True):
                tensor.copy_(value)


def generators_of(seeds: Sequence[Sequence[int]]) -> list[torch.Generator]:
    """One generator per entry, seeded by a tuple of whole numbers such as (seed, arm)."""
    import numpy as np

    return [torch.Generator().manual_seed(int(np.random.SeedSequence(list(s)).generate_state(1, np.uint64)[0] >> 1)) for s in seeds]


def target_update(target: nn.Module, online: nn.Module, rate: float) -> None:
    """Target networks follow: w' <- (1 - rate) w' + rate w."""
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), rate)
