"""Exponential moving average of weights (Polyak & Juditsky, 1992), for any list of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class MovingAverage:
    """Averaged copy of parameters: a <- d_n a + (1 - d_n) w after step n, with the warm-up d_n = min(decay, n / (n + 10)).

    The warm-up lets the average of a short run forget its random start.

    Args:
        parameters: what is averaged; kept by reference.
        decay: in [0, 1); 0 follows the parameters exactly.

    Raises:
        ValueError: for a decay outside [0, 1).

    >>> import torch
    >>> w = torch.nn.Parameter(torch.zeros(2))
    >>> average = MovingAverage([w], decay=0.9)
    >>> _ = w.data.fill_(1.0)
    >>> average.update()
    >>> with average.swapped_in():
    ...     inside = w.detach().clone()
    >>> inside[0].item() > 0.5, w[0].item()
    (True, 1.0)
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must lie in [0, 1), got {decay}")
        self._parameters = list(parameters)
        self._averages = [parameter.detach().clone() for parameter in self._parameters]
        self._decay = decay
        self._steps = 0

    def update(self) -> None:
        """Take the parameters as they stand into the average."""
        import torch

        self._steps += 1
        decay = min(self._decay, self._steps / (self._steps + 10))
        with torch.no_grad():
            torch._foreach_lerp_(self._averages, [p.detach() for p in self._parameters], 1 - decay)

    def copy_to_parameters(self) -> None:
        """Overwrite the parameters by their average, for good."""
        import torch

        with torch.no_grad():
            torch._foreach_copy_([p.data for p in self._parameters], self._averages)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Parameters equal their average inside the block and come back after it."""
        kept = [parameter.detach().clone() for parameter in self._parameters]
        self.copy_to_parameters()
        try:
            yield
        finally:
            for parameter, value in zip(self._parameters, kept, strict=True):
                parameter.data.copy_(value)
