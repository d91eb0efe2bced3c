"""Which singular triples every head keeps: those that matter most to the loss, so that ranks differ.

The importance of a triple is I = E[(sigma u^T G v)^2], the squared first-order change of one sample's loss when the triple is removed, G
being that sample's gradient in the coordinates of the SVD. For queries, keys and values apart, the globally best triples of all layers and
heads are kept (QSVD; official code of WSVD).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)


def global_ranks(importance: Mapping[Key, torch.Tensor], rank: int) -> dict[Key, torch.Tensor]:
    """Masks of the most important triples, as many as `rank` everywhere would keep, and at least one for every head.

    Args:
        importance: per layer, of every triple, (h, k) or (k,).
        rank: the mean number of triples per head.

    Raises:
        ValueError: for importances that are negative or not finite, or a rank outside 1...k.

    >>> import torch
    >>> masks = global_ranks({0: torch.tensor([[9.0, 8.0, 7.0]]), 1: torch.tensor([[3.0, 2.0, 1.0]])}, rank=2)
    >>> [int(mask.sum()) for mask in masks.values()]
    [3, 1]
    """
    flat = torch.cat([value.detach().double().reshape(-1).cpu() for value in importance.values()])
    if not (torch.isfinite(flat).all() and (flat >= 0).all()):
        raise ValueError("importances must be finite and not negative")
    triples = min(value.shape[-1] for value in importance.values())
    if not 1 <= rank <= triples:
        raise ValueError(f"the mean rank must lie in 1...{triples}, got {rank}")
    first, start, heads = [], 0, 0
    for value in importance.values():
        best = value.reshape(-1, value.shape[-1]).argmax(dim=1).cpu()
        first.append(start + torch.arange(len(best)) * value.shape[-1] + best)
        start, heads = start + value.numel(), heads + len(best)
    raised = flat.clone()
    raised[torch.cat(first)] = torch.inf  # every head keeps its best triple
    order = raised.argsort(descending=True, stable=True)
    mask = torch.zeros(len(flat), dtype=torch.bool)
    mask[order[: rank * heads]] = True
    parts = torch.split(mask, [value.numel() for value in importance.values()])
    return {key: part.reshape(value.shape) for (key, value), part in zip(importance.items(), parts, strict=True)}
