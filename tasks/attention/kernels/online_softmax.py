"""Softmax attention in parts: partial sums with their own shifts, and how they merge.

A part of the keys gives its largest logit, the sum of its weighted exponentials, and the sum of its values with the same weights; two parts
merge exactly by rescaling to the larger shift (Milakov & Gimelshein 2018; flash decoding). This is the block algorithm of the Triton
kernel, written in torch, so that its arithmetic is tested where there is no GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

EMPTY = -1e30
"""Shift of a part that reads nothing; finite, so that no difference of shifts is undefined."""


@dataclass(frozen=True)
class Partial:
    """Attention over a part of the keys, not yet normalised; float32.

    Attributes:
        shift: the largest logit, log-weight included, (...,); `EMPTY` where nothing is read.
        total: sum of exp(logit + log w - shift), (...,).
        mixed: sum of the values with these weights, (..., d).
    """

    shift: Tensor
    total: Tensor
    mixed: Tensor

    def output(self) -> Tensor:
        """The attention output, (..., d); 0 where nothing is read."""
        return self.mixed / self.total.clamp(min=torch.finfo(torch.float32).tiny)[..., None]


def partial(logits: Tensor, weights: Tensor, values: Tensor) -> Partial:
    """One part: logits and weights (..., m), 0 where a key is not read, and values (..., m, d)."""
    shifted = torch.where(weights > 0, logits.float() + weights.clamp(min=torch.finfo(torch.float32).tiny).log(), EMPTY)
    shift = shifted.amax(-1) if shifted.shape[-1] else torch.full(shifted.shape[:-1], EMPTY)
    e = torch.where(weights > 0, torch.exp(shifted - shift[..., None]), 0.0)
    return Partial(shift, e.sum(-1), (e[..., None, :] @ values.float())[..., 0, :])


def merge(parts: Sequence[Partial]) -> Partial:
    """Several parts as one.

    Raises:
        ValueError: if there are none.

    Example:
        >>> logits, ones, values = torch.arange(6.0), torch.ones(6), torch.arange(6.0)[:, None]
        >>> halves = [partial(logits[s], ones[s], values[s]) for s in (slice(0, 2), slice(2, 6))]
        >>> torch.allclose(merge(halves).output(), logits.softmax(0) @ values)
        True
    """
    if not parts:
        raise ValueError("parts must hold at least one part, got none")
    shifts = torch.stack([p.shift for p in parts])
    shift = shifts.amax(0)
    scale = torch.exp(shifts - shift)
    total = (scale * torch.stack([p.total for p in parts])).sum(0)
    return Partial(shift, total, (scale[..., None] * torch.stack([p.mixed for p in parts])).sum(0))


def merge_parts(shift: Tensor, total: Tensor, mixed: Tensor) -> Tensor:
    """The output from parts as kernels write them, with shifts in units of log 2.

    Args:
        shift: the largest logit of each part, (..., S); very negative, or -inf, for a part that reads nothing.
        total: sums of exponentials, (..., S).
        mixed: sums of values with these weights, (..., S, d).

    Returns:
        (..., d); 0 where no part reads anything.

    Example:
        >>> merge_parts(torch.tensor([[0.0, 1.0]]), torch.tensor([[2.0, 1.0]]), torch.tensor([[[2.0], [3.0]]])).tolist()
        [[2.0]]
    """
    scale = torch.exp2(shift - shift.amax(-1, keepdim=True))
    whole = (scale * total).sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    return (scale[..., None] * mixed).sum(-2) / whole


def split_decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    indices: Tensor,
    weights: Tensor,
    scaling: float | None = None,
    *,
    chunk: int = 64,
    splits: int = 4,
) -> Tensor:
    """What the Triton kernel computes, step by step: list entries in `splits` programs, each in blocks of `chunk`, then merged.

    Arguments as in `tasks.attention.kernels.gather_decode.sparse_decode`; B must be 1 as there.
    """
    heads, width = query.shape
    per_group = heads // keys.shape[0]
    factor = 1 / math.sqrt(width) if scaling is None else scaling
    length = indices.shape[1]
    per_split = math.ceil(math.ceil(length / splits) / chunk) * chunk
    found = []
    for split in range(splits):
        running = Partial(torch.full((heads,), EMPTY), torch.zeros(heads), torch.zeros(heads, values.shape[-1]))
        for first in range(split * per_split, min((split + 1) * per_split, length), chunk):
            at = indices[:, first : first + chunk].long()
            group = (torch.arange(heads) // per_group)[:, None]
            logits = (keys[group, at].float() * query.float()[:, None]).sum(-1) * factor
            running = merge([running, partial(logits, weights[:, first : first + chunk], values[group, at])])
        found.append(running)
    return merge(found).output()
