"""Random instances as in the benchmark of Bi et al. (2024) that LMask is tested on; coordinates in units of 100, so in the unit square.

Every function takes a `torch.Generator`, so that a batch is a function of its seed.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from tasks.routing.instances import Instances
from tasks.routing.tspdl import tspdl
from tasks.routing.tsptw import open_depot, tsptw

Hardness = Literal["easy", "medium", "hard"]
WIDTHS = {"easy": (0.5, 0.75), "medium": (0.1, 0.2)}
"""Widths of time windows, as shares of the horizon."""
CONSTRAINED = {"easy": 0.5, "medium": 0.75, "hard": 0.9}
"""Share of ports with a draft limit below the full load."""
HORIZON = 55.0
"""Expected length of a leg between random nodes of the 100 x 100 square, as the benchmark rounds it."""
MOST_SLACK = 50
BLOCK = 1024
"""Draws of draft limits between two looks at how many are feasible."""


def random_tsptw(count: int, nodes: int, hardness: Hardness, generator: torch.Generator) -> Instances:
    """Random instances with time windows.

    Easy and medium: windows start uniformly in [0, T), T = 55 N, and are .5 to .75 or .1 to .2 of T wide; nothing makes them feasible.
    Hard: windows of width at most 1 around the arrival times along a random tour, so that a tour exists.

    Args:
        count: B.
        nodes: N, the depot included, at least 2.
        hardness: easy, medium or hard.
        generator: randomness.

    Raises:
        ValueError: for N < 2, count < 1 or an unknown hardness.

    >>> batch = random_tsptw(2, 5, "hard", torch.Generator().manual_seed(0))
    >>> batch.locs.shape, bool((batch.late >= batch.early).all())
    (torch.Size([2, 5, 2]), True)
    """
    _check(count, nodes, hardness)
    locs = torch.rand((count, nodes, 2), generator=generator, dtype=torch.float64) * 100
    if hardness == "hard":
        early, late = _windows_along_a_tour(locs, generator)
    else:
        low, high = WIDTHS[hardness]
        horizon = HORIZON * nodes
        early = torch.randint(0, int(horizon), (count, nodes), generator=generator).double()
        width = (low + (high - low) * torch.rand((count, nodes), generator=generator, dtype=torch.float64)) * horizon
        late = early + width.round()
    return tsptw(locs / 100, open_depot(locs, early, late) / 100)


def random_tspdl(count: int, nodes: int, hardness: Hardness, generator: torch.Generator, clamp: bool = False) -> Instances:
    """Random instances with draft limits and unit demands.

    Args:
        count: B.
        nodes: N, the depot included, at least 3.
        hardness: half, three quarters or nine tenths of the ports are constrained.
        generator: randomness.
        clamp: lift limits that admit no order instead of drawing them again.

    Raises:
        ValueError: for N < 3, count < 1 or an unknown hardness.

    >>> batch = random_tspdl(2, 6, "hard", torch.Generator().manual_seed(0))
    >>> bool((batch.late[:, 1:] <= 1).all())
    True
    """
    _check(count, nodes, hardness)
    if nodes < 3:
        raise ValueError(f"draft limits need at least two ports, N >= 3, got N = {nodes}")
    locs = torch.rand((count, nodes, 2), generator=generator, dtype=torch.float64)
    return tspdl(locs, _limits(count, nodes, CONSTRAINED[hardness], generator, clamp))


def _windows_along_a_tour(locs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    count, nodes, _ = locs.shape
    order = torch.rand((count, nodes - 1), generator=generator).argsort(1) + 1
    order = torch.cat([torch.zeros_like(order[:, :1]), order], 1)
    along = torch.gather(locs, 1, order[..., None].expand(-1, -1, 2))
    arrival = torch.zeros((count, nodes), dtype=torch.float64)
    arrival[:, 1:] = (along[:, 1:] - along[:, :-1]).square().sum(-1).sqrt().cumsum(1)
    slack = torch.rand((2, count, nodes), generator=generator, dtype=torch.float64) * MOST_SLACK
    early, late = torch.zeros_like(arrival), torch.zeros_like(arrival)
    early.scatter_(1, order, (arrival - slack[0]).clamp(min=0))
    late.scatter_(1, order, arrival + slack[1])
    return early, late


def _limits(count: int, nodes: int, share: float, generator: torch.Generator, clamp: bool) -> Tensor:
    """Draft limits (count, N), by rejection of blocks of draws, or lifted where they admit no order."""
    ports = nodes - 1
    constrained = min(int(share * nodes), ports - 1)  # some port must take the full load, or no draw is ever feasible
    least = torch.arange(1, ports + 1, dtype=torch.float64)
    found: list[Tensor] = []
    while sum(map(len, found)) < count:
        limits = torch.full((BLOCK, ports), float(ports), dtype=torch.float64)
        chosen = torch.rand((BLOCK, ports), generator=generator).argsort(1)[:, :constrained]
        limits.scatter_(1, chosen, torch.randint(1, ports, (BLOCK, constrained), generator=generator).double())
        ordered, order = limits.sort(dim=1, stable=True)
        if clamp:
            limits.scatter_(1, order, torch.maximum(ordered, least))
            found.append(limits)
        else:
            found.append(limits[(ordered >= least).all(1)])
    drawn = torch.cat(found)[:count]
    return torch.cat([torch.full_like(drawn[:, :1], float(ports)), drawn], 1)


def _check(count: int, nodes: int, hardness: str) -> None:
    if nodes < 2:
        raise ValueError(f"an instance needs a depot and at least one customer, N >= 2, got N = {nodes}")
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    if hardness not in get_args(Hardness):
        raise ValueError(f"unknown hardness {hardness!r}; known: easy, medium, hard")
