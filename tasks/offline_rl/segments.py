"""Representative segments: k time-ordered steps of a trajectory, drawn at random (PREFORL, section 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def sample_segments(
    start: torch.Tensor, length: torch.Tensor, count: int, k: int, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Rows of `count` segments, each of one uniformly drawn trajectory.

    Of a trajectory with at least k steps, k different ones are drawn uniformly and kept in time order. A shorter one gives all its
    steps and fills up with repetitions, in time order too.

    Args:
        start: row of the first step of every trajectory, (n,) int64.
        length: its steps, (n,) int64, each at least 1.
        count: how many segments.
        k: steps per segment.
        generator: source of randomness.

    Returns:
        rows (count, k) int64, non-decreasing along the last axis.

    Raises:
        ValueError: for k < 1, count < 1, no trajectories, or one without steps.

    Example:
        >>> import torch
        >>> rows = sample_segments(torch.tensor([0, 10]), torch.tensor([10, 5]), 4, 3, torch.Generator().manual_seed(0))
        >>> rows.shape, bool((rows.diff(dim=1) > 0).all())
        (torch.Size([4, 3]), True)
    """
    import torch

    if k < 1 or count < 1:
        raise ValueError(f"a segment needs k >= 1 steps and count >= 1, got k = {k} and count = {count}")
    if len(start) < 1 or start.shape != length.shape or int(length.min()) < 1:
        raise ValueError(f"needs at least one trajectory with at least one step each, got {len(start)} with lengths {length.tolist()[:5]}")
    device = start.device
    which = torch.randint(len(start), (count,), generator=generator, device=device)
    longest = max(int(length.max()), k)
    steps = length[which, None]  # (count, 1)
    keys = torch.rand((count, longest), generator=generator, device=device)
    keys = keys.masked_fill(torch.arange(longest, device=device) >= steps, 2.0)
    # The k smallest of uniform keys are a uniform k-subset; keys of 2 are beyond the end of a short trajectory.
    chosen = keys.topk(k, dim=1, largest=False).indices
    if int(length.min()) < k:
        again = (torch.rand((count, k), generator=generator, device=device) * steps).long()
        chosen = torch.where(chosen < steps, chosen, again)
    return start[which, None] + chosen.sort(dim=1).values
