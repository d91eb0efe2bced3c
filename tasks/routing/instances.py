"""Batches of constrained tours: one form for time windows (TSPTW) and draft limits (TSPDL).

Both problems carry one number along the tour, the *clock*: the time of service, or the load on board. Going from i to j it becomes
max(clock_i + steps_ij, early_j), and the visit is allowed while it is at most late_j + EPS. Everything that searches, masks or learns
sees only this form; `tasks.routing.tsptw` and `tasks.routing.tspdl` build it. Node 0 is the depot. All arithmetic is float64: windows
reach far beyond 1 in scaled units, and EPS would drown in float16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Problem = Literal["tsptw", "tspdl"]
EPS = 1e-5
"""Tolerance of every comparison, for coordinates in the unit square."""


class InfeasibleInstance(ValueError):
    """An instance that provably has no tour; the message says what is violated."""


@dataclass(frozen=True)
class Instances:
    """B instances with N nodes each.

    Attributes:
        problem: what the clock means.
        locs: coordinates, (B, N, 2).
        early: earliest service (0 for draft limits), (B, N); the tour starts at early of the depot.
        late: latest service, or draft limit, (B, N).
        use: service times, or demands, (B, N).
        distance: travel lengths, (B, N, N).
        steps: growth of the clock from i to j, (B, N, N).
    """

    problem: Problem
    locs: Tensor
    early: Tensor
    late: Tensor
    use: Tensor
    distance: Tensor
    steps: Tensor

    def __len__(self) -> int:
        return self.locs.shape[0]

    @property
    def nodes(self) -> int:
        """N, the depot included."""
        return self.locs.shape[1]

    @property
    def deadline(self) -> Tensor:
        """Latest clock with the tolerance, (B, N)."""
        return self.late + EPS

    @property
    def scale(self) -> Tensor:
        """Unit of the clock in features, (B,): the depot's latest time, or the sum of demands; 1 where windows never close."""
        unit = self.late[:, 0] if self.problem == "tsptw" else self.use.sum(1)
        return torch.where(torch.isfinite(unit) & (unit > 0), unit, torch.ones_like(unit))

    def features(self) -> Tensor:
        """What a network sees of a node, (B, N, 4): x, y and, in units of `scale`, window ends (TSPTW) or demand and limit (TSPDL)."""
        first = self.early if self.problem == "tsptw" else self.use
        last = torch.where(torch.isfinite(self.late), self.late / self.scale[:, None], torch.ones_like(self.late))
        return torch.cat([self.locs, (first / self.scale[:, None])[..., None], last[..., None]], -1)

    def take(self, rows: Tensor | slice) -> Instances:
        """Some of the instances, by index, mask or slice."""
        return Instances(self.problem, *(getattr(self, name)[rows] for name in _TENSORS))

    def to(self, device: str | torch.device) -> Instances:
        """The same instances on a device."""
        return Instances(self.problem, *(getattr(self, name).to(device) for name in _TENSORS))

    def length(self, tours: Tensor) -> Tensor:
        """Length of closed tours, (B, S, N) -> (B, S).

        >>> from tasks.routing.tsptw import tsptw
        >>> square = tsptw([[[0, 0], [0, 1], [1, 1], [1, 0]]], [[[0, 9]] * 4])
        >>> square.length(torch.tensor([[[0, 1, 2, 3], [0, 2, 1, 3]]])).round(decimals=3)
        tensor([[4.0000, 4.8280]], dtype=torch.float64)
        """
        total = torch.zeros(tours.shape[:2], dtype=torch.float64, device=tours.device)
        for a, b in _legs(tours):
            total = total + _entry(self.distance, a, b)
        return total + _entry(self.distance, tours[..., -1], tours[..., 0])

    def clocks(self, tours: Tensor) -> Tensor:
        """Clock at every visit of tours (B, S, L) that start at the depot, (B, S, L)."""
        clock = self.early[:, :1].expand(tours.shape[:2])
        found = [clock]
        for a, b in _legs(tours):
            clock = torch.maximum(clock + _entry(self.steps, a, b), torch.gather(self.early, 1, b))
            found.append(clock)
        return torch.stack(found, -1)

    def excess(self, tours: Tensor) -> Tensor:
        """How far each visit is over its limit, (B, S, L), 0 where it is kept."""
        late = torch.gather(self.late[:, None].expand(-1, tours.shape[1], -1), 2, tours)
        over = self.clocks(tours) - late
        return torch.where(over > EPS, over, torch.zeros_like(over))

    def is_tour(self, tours: Tensor) -> Tensor:
        """Which tours (B, S, N) start at the depot, visit every node once and keep every limit, (B, S)."""
        complete = (tours.sort(-1).values == torch.arange(self.nodes, device=tours.device)).all(-1) & (tours[..., 0] == 0)
        return complete & (self.excess(tours.clamp(min=0)) == 0).all(-1)


_TENSORS = ("locs", "early", "late", "use", "distance", "steps")


def join(parts: list[Instances]) -> Instances:
    """One batch out of several with the same problem and N."""
    return Instances(parts[0].problem, *(torch.cat([getattr(part, name) for part in parts]) for name in _TENSORS))


def euclidean(locs: Tensor) -> Tensor:
    """Distances between all nodes, (B, N, 2) -> (B, N, N)."""
    return (locs[:, :, None] - locs[:, None]).square().sum(-1).sqrt()


def check_locs(locs: Tensor) -> Tensor:
    """Coordinates as float64.

    Raises:
        ValueError: for another shape than (B, N, 2), N < 2, or numbers that are not finite.
    """
    made = torch.as_tensor(locs, dtype=torch.float64)
    if made.ndim != 3 or made.shape[2] != 2:
        raise ValueError(f"locs must have shape (B, N, 2), got {tuple(made.shape)}")
    if made.shape[1] < 2:
        raise ValueError(f"an instance needs a depot and at least one customer, N >= 2, got N = {made.shape[1]}")
    if not torch.isfinite(made).all():
        b, j = (~torch.isfinite(made).all(-1)).nonzero()[0].tolist()
        raise ValueError(f"coordinates of node {j} of instance {b} are not finite: {made[b, j].tolist()}")
    return made


def check_nodes(name: str, values: Tensor, locs: Tensor, *tail: int) -> Tensor:
    """One number (or `tail` of them) per node, as float64 without NaN.

    Raises:
        ValueError: for a shape that does not fit the coordinates, or NaN.
    """
    made = torch.as_tensor(values, dtype=torch.float64)
    wanted = (*locs.shape[:2], *tail)
    if tuple(made.shape) != wanted:
        raise ValueError(f"{name} must have shape {wanted} to fit locs, got {tuple(made.shape)}")
    if torch.isnan(made).any():
        raise ValueError(f"{name} of node {int(torch.isnan(made).nonzero()[0, 1])} is not a number")
    return made


def _legs(tours: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return ((tours[..., i], tours[..., i + 1]) for i in range(tours.shape[-1] - 1))


def _entry(matrix: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """matrix[instance, a, b] for a, b (B, S)."""
    rows = torch.arange(matrix.shape[0], device=matrix.device)[:, None]
    return matrix[rows, a, b]
