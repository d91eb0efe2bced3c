"""The eight symmetries of the unit square: they leave distances, windows and optimal tours alone, but not what a network sees."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tasks.routing.instances import Instances

SYMMETRIES = 8


def dihedral(locs: Tensor, which: int) -> Tensor:
    """Coordinates (..., 2) under symmetry `which` of 0..7; 0 is the identity, 4 to 7 swap the axes.

    Raises:
        ValueError: for another number.

    >>> dihedral(torch.tensor([0.1, 0.3]), 5)
    tensor([0.7000, 0.1000])
    """
    if not 0 <= which < SYMMETRIES:
        raise ValueError(f"symmetry must be one of 0 to 7, got {which}")
    x, y = locs.unbind(-1)
    if which >= 4:
        x, y = y, x
    return torch.stack([1 - x if which & 1 else x, 1 - y if which & 2 else y], -1)


def augment(instances: Instances, count: int = SYMMETRIES) -> Instances:
    """The first `count` images of every instance, image after image: (B, N) -> (count * B, N); reshape results to (count, B).

    Distances are taken over, not computed again, so that every image has exactly the same tours.
    """
    locs = torch.cat([dihedral(instances.locs, which) for which in range(count)])
    return replace(instances.take(torch.arange(len(instances), device=locs.device).repeat(count)), locs=locs)


def random_images(instances: Instances, generator: torch.Generator) -> Instances:
    """Every instance under a symmetry of its own."""
    which = torch.randint(SYMMETRIES, (len(instances),), generator=generator)
    images = torch.stack([dihedral(instances.locs, w) for w in range(SYMMETRIES)])
    return replace(instances, locs=images[which.to(images.device), torch.arange(len(instances), device=images.device)])
