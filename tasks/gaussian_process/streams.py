"""Randomness of several seeds at once: one generator per seed, draws stacked along a leading axis.

A seed's draws do not depend on which other seeds are in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor


class SeedStreams:
    """Independent streams of random numbers, one per seed.

    Args:
        seeds: one whole number per replica, at least one.
        purpose: tells apart streams of the same seed (noise of the paths, choice of rows, ...).
        device: where draws are made.
        dtype: of normal draws.

    Raises:
        ValueError: for no seeds.

    >>> both, alone = SeedStreams([0, 1]), SeedStreams([1])
    >>> torch.equal(both.normal(2, 3)[1], alone.normal(2, 3)[0])
    True
    """

    def __init__(self, seeds: Sequence[int], purpose: int = 0, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        if not len(seeds):
            raise ValueError("seeds must name at least one seed, got none")
        self.generators = [torch.Generator(device).manual_seed(1_000_003 * (purpose + 1) + int(seed)) for seed in seeds]
        self.device, self.dtype = device, dtype

    def __len__(self) -> int:
        return len(self.generators)

    def copy(self) -> SeedStreams:
        """Streams that go on as these would."""
        other = copy(self)
        other.generators = [g.clone_state() for g in self.generators]
        return other

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers (R, *shape)."""
        return torch.stack([torch.randn(shape, generator=g, device=self.device, dtype=self.dtype) for g in self.generators])

    def uniform(self, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1), (R, *shape)."""
        return torch.stack([torch.rand(shape, generator=g, device=self.device, dtype=self.dtype) for g in self.generators])

    def rows(self, n: int, batch: int) -> Tensor:
        """Row numbers (R, min(batch, n)), drawn without replacement from range(n)."""
        return torch.stack([torch.randperm(n, generator=g, device=self.device)[:batch] for g in self.generators])
