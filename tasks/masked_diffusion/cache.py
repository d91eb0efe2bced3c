"""Keys and values of attention that are kept between calls of a denoiser, with one boundary between frozen and active rows.

Row p of every layer belongs to position p. Attention is bidirectional, so that neither the order of rows nor their age matters to
it: a call writes the states of its own inputs into their rows and reads these rows together with all frozen ones (and, for a dual
cache, with the rows behind its inputs as they were left). Nothing is copied when a block is frozen: the boundary moves.
The cache knows nothing about tokens, schedulers or models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Shape:
    """What a cache must hold: layers, heads of keys and values, width of a head."""

    layers: int
    heads: int
    width: int


class StateCache:
    """States of up to `capacity` positions.

    Args:
        shape: layers, heads, width of a head.
        capacity: positions, prompt included.
        dtype: of the states.
        device: where they lie.

    Attributes:
        frozen: rows before it are final (until `freeze` is told otherwise).
        written: how many states have become final, counted again when they are written again.
        appends: (start, stop) of every such write, in order.

    >>> import torch
    >>> cache = StateCache(Shape(layers=1, heads=1, width=2), capacity=4)
    >>> cache.begin(0, 3)
    >>> keys, values = cache.extend(0, torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2))
    >>> cache.freeze(2)
    >>> cache.begin(2, 1)
    >>> cache.extend(0, torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))[0][0, 0, :, 0].tolist()
    [1.0, 1.0, 0.0]
    """

    def __init__(self, shape: Shape, capacity: int, dtype: torch.dtype | None = None, device: str | torch.device = "cpu") -> None:
        import torch

        if capacity < 1:
            raise ValueError(f"capacity must be at least 1 position, got {capacity}")
        size = (shape.layers, 1, shape.heads, capacity, shape.width)
        self._keys = torch.zeros(size, dtype=dtype, device=device)
        self._values = torch.zeros(size, dtype=dtype, device=device)
        self._start, self._stop, self._visible = 0, 0, 0
        self.capacity = capacity
        self.frozen = 0
        self.written = 0
        self.appends: list[tuple[int, int]] = []

    def begin(self, start: int, length: int, visible: int | None = None) -> None:
        """Announce a call whose inputs are the positions start .. start + length - 1.

        Args:
            start: first of them; rows before it must be frozen.
            length: how many.
            visible: rows that the call may read, its own included; default start + length. Rows behind the inputs are read as they
                were left by earlier calls (dual cache).

        Raises:
            ValueError: if rows before `start` are not frozen, or the rows do not fit.
        """
        stop = start + length
        seen = stop if visible is None else visible
        if start > self.frozen:
            raise ValueError(f"a call at position {start} would skip states, only {self.frozen} are frozen")
        if not stop <= seen <= self.capacity:
            raise ValueError(f"positions {start}..{stop} with {seen} visible rows do not fit into a cache of {self.capacity}")
        self._start, self._stop, self._visible = start, stop, seen

    def extend(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the inputs' states of a layer, (1, heads, length, width), and return all that are visible, (1, heads, visible, width)."""
        self._keys[layer, :, :, self._start : self._stop] = keys
        self._values[layer, :, :, self._start : self._stop] = values
        return self._keys[layer, :, :, : self._visible], self._values[layer, :, :, : self._visible]

    def freeze(self, upto: int) -> None:
        """Move the boundary to `upto`: of the rows of the last call, those before it are final.

        Raises:
            ValueError: if the last call did not reach that far.
        """
        if upto > self._stop:
            raise ValueError(f"cannot freeze {upto} rows, the last call ended at {self._stop}")
        if upto > self._start:
            self.written += upto - self._start
            self.appends.append((self._start, upto))
        self.frozen = upto

    def keep_all(self) -> None:
        """Count the rows of the last call as written without moving the boundary (dual cache: rows behind it are read too)."""
        self.written += self._stop - self._start
        self.appends.append((self._start, self._stop))
