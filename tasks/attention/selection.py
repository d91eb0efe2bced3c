"""Sets of keys: the ones that are always read, and uniform samples of the rest.

All functions work on rows at once: masks are bool tensors (..., R, n). Random numbers come from the generator that is passed in.
Source: Desai et al. 2025 (arXiv 2510.05688), section 3; without replacement, so that no key is read twice.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

Size = int | float
"""A number of keys, or a share of the valid keys (a float in [0, 1])."""


def size_of(size: Size, counts: Tensor) -> Tensor:
    """How many keys a size means for rows with `counts` candidates (...,): a whole number as it is, a share rounded up.

    Example:
        >>> size_of(0.25, torch.tensor([10, 8])).tolist(), size_of(3, torch.tensor([10, 2])).tolist()
        ([3, 2], [3, 2])
    """
    if isinstance(size, float):
        # 1e-6 keeps 0.1 * 30 = 3.0000000000000004 from becoming 4.
        return torch.ceil(counts.double() * size - 1e-6).clamp(min=0).long().minimum(counts)
    return torch.full_like(counts, int(size)).minimum(counts)


def sink_mask(valid: Tensor, count: Tensor) -> Tensor:
    """The first `count` (...,) valid keys of every row (..., n)."""
    return valid & (valid.cumsum(-1) <= count[..., None])


def window_mask(valid: Tensor, count: Tensor) -> Tensor:
    """The last `count` (...,) valid keys of every row (..., n)."""
    ranks = valid.cumsum(-1)
    return valid & (ranks > ranks[..., -1:] - count[..., None])


def top_mask(scores: Tensor, candidates: Tensor, count: Tensor) -> Tensor:
    """The `count` candidates with the largest scores in every row; ties go to the keys that torch.topk prefers.

    Args:
        scores: (..., R, n).
        candidates: bool, broadcastable to `scores`.
        count: how many, broadcastable to (..., R), at most as many as there are candidates.

    Returns:
        bool, (..., R, n).
    """
    most = int(count.max()) if count.numel() else 0
    chosen = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    if most == 0:
        return chosen
    order = scores.masked_fill(~candidates, -math.inf).topk(most, dim=-1, sorted=bool((count != most).any())).indices
    kept = torch.arange(most, device=scores.device) < count[..., None]
    return chosen.scatter_(-1, order, kept.expand(order.shape))


def deterministic_set(valid: Tensor, scores: Tensor, sink: Size, window: Size, heavy: Size) -> Tensor:
    """Keys that every row reads: its first and last ones, and those of the rest that the predictor ranks highest.

    Args:
        valid: bool, broadcastable to `scores`.
        scores: (..., R, n).
        sink: size of the beginning, as a number or a share of the valid keys.
        window: size of the end.
        heavy: how many more are read, by score.

    Returns:
        bool, (..., R, n). Where beginning and end overlap, a key counts once.
    """
    counts = valid.sum(-1)
    ends = sink_mask(valid, size_of(sink, counts)) | window_mask(valid, size_of(window, counts))
    rest = valid & ~ends
    count = size_of(heavy, counts).minimum(rest.sum(-1))
    return top_mask(scores, rest, count) | ends


def random_order(residual: Tensor, generator: torch.Generator) -> Tensor:
    """The place of each key in a uniformly random order of its row's residual: 1 ... n_s inside, larger than n_s outside.

    Rows of one head share one random permutation of the positions, each from a random start. For one row this is a uniformly random
    order, at the cost of a running sum instead of a sort; different rows read different parts of it.

    Args:
        residual: bool, (..., R, n).
        generator: randomness.

    Returns:
        int32, (..., R, n).
    """
    *lead, rows, n = residual.shape
    heads = math.prod(lead)
    device = residual.device
    order = torch.rand(heads, n, generator=generator, device=device).argsort(-1)  # (heads, n): position at each place
    place = torch.empty_like(order).scatter_(-1, order, torch.arange(n, device=device).expand(heads, n))
    start = torch.randint(n, (heads, rows, 1), generator=generator, device=device)
    flat = residual.reshape(heads, rows, n)
    seen = flat.gather(-1, order[:, None].expand(-1, rows, -1)).cumsum(-1, dtype=torch.int32)  # residual keys up to each place
    # Turned so that a row begins at its own start: subtract what was seen before it, and add the total to the places before it.
    total = seen[..., -1:]
    before = torch.where(start > 0, seen.gather(-1, (start - 1).clamp(min=0)), 0)
    ranks = seen.gather(-1, place[:, None].expand(-1, rows, -1)) - before
    ranks = torch.where(ranks <= 0, ranks + total, ranks)
    return ranks.masked_fill(~flat, n + 1).reshape(residual.shape)


def draw_counts(residual: Tensor, count: Tensor, generator: torch.Generator) -> Tensor:
    """How often each key is drawn in `count` (...,) draws WITH replacement from its row's residual, int64 (..., n).

    The ablation of sampling without replacement.
    """
    n_s = residual.sum(-1)
    most = int(count.max()) if count.numel() else 0
    counts = torch.zeros(residual.shape, dtype=torch.int64, device=residual.device)
    if most == 0:
        return counts
    uniform = torch.rand(*residual.shape[:-1], most, generator=generator, device=residual.device, dtype=torch.float64)
    ranks = torch.minimum((uniform * n_s[..., None]).long() + 1, n_s[..., None].clamp(min=1))
    keys = torch.searchsorted(residual.cumsum(-1).contiguous(), ranks.contiguous())
    kept = (torch.arange(most, device=residual.device) < count[..., None]) & (n_s[..., None] > 0)
    return counts.scatter_add_(-1, keys.clamp(max=residual.shape[-1] - 1), kept.long())


def sample_weights(fixed: Tensor, counts: Tensor, n_s: Tensor, b: Tensor) -> Tensor:
    """Weights of a sample: 1 on the fixed set, n_s / b for each time that a residual key was drawn.

    Args:
        fixed: bool, (..., R, n).
        counts: how often each key was drawn (bool or integer), (..., R, n), zero on the fixed set.
        n_s: sizes of the residuals, (..., R).
        b: draws, (..., R); where it is 0 only the fixed set counts.

    Returns:
        float32, (..., R, n); over the sample they sum to n_s.

    Example:
        >>> sample_weights(torch.tensor([True, False, False]), torch.tensor([0, 1, 0]), torch.tensor(2), torch.tensor(1)).tolist()
        [1.0, 2.0, 0.0]
    """
    share = (n_s.float() / b.clamp(min=1).float())[..., None]
    drawn = torch.where(counts, share, 0.0) if counts.dtype == torch.bool else counts * share
    return drawn.masked_fill(fixed, 1.0)
