"""Travelling salesman with draft limits: a ship picks up q_j at every port and may enter port j with at most D_j on board.

The load on arrival includes the port's own demand: load + q_j <= D_j. With unit demands this is a deadline on the position in the tour.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tasks.routing.instances import EPS, InfeasibleInstance, Instances, check_locs, check_nodes, euclidean


def tspdl(locs: Tensor, limits: Tensor, demand: Tensor | None = None) -> Instances:
    """Instances with draft limits, in units of the total demand.

    Args:
        locs: coordinates, (B, N, 2); node 0 is the depot.
        limits: draft limits D, (B, N); the depot's is not read.
        demand: q, (B, N) with q_0 = 0; default one per port.

    Raises:
        ValueError: for shapes that do not fit, demands that are negative or all zero, or a demand of the depot.
        InfeasibleInstance: if no order keeps the limits (for unit demands: fewer than k ports may be entered late enough).

    >>> ports = tspdl([[[0, 0], [1, 0], [2, 0]]], [[2, 2, 1]])
    >>> ports.is_tour(torch.tensor([[[0, 1, 2], [0, 2, 1]]]))
    tensor([[False,  True]])
    """
    places = check_locs(locs)
    drafts = check_nodes("limits", limits, places)
    loads = torch.ones_like(drafts).index_fill(1, torch.tensor([0]), 0.0) if demand is None else check_nodes("demand", demand, places)
    if (loads < 0).any() or (loads[:, 0] != 0).any() or (loads.sum(1) == 0).any():
        raise ValueError("demand must be at least 0 everywhere, 0 at the depot and not 0 at all ports")
    total = loads.sum(1, keepdim=True)
    late, loads = drafts / total, loads / total
    late = torch.cat([torch.ones_like(late[:, :1]), late[:, 1:]], 1)
    if (missed := unreachable_ports(late[:, 1:], loads[:, 1:])).any():
        b = int(missed.nonzero()[0])
        raise InfeasibleInstance(f"draft limits of instance {b} admit no order: {int(missed[b])} ports are over their limit at best")
    lengths = euclidean(places)
    zeros = torch.zeros_like(loads)
    return Instances("tspdl", places, zeros, late, loads, lengths, loads[:, None, :].expand_as(lengths).contiguous())


def unreachable_ports(limits: Tensor, demand: Tensor) -> Tensor:
    """Number of ports over their limit when they are visited in order of their limits, (B, n) -> (B,).

    Zero if and only if some order keeps all limits: the limits are deadlines of the load, and earliest deadline first is optimal (Jackson).

    >>> unreachable_ports(torch.tensor([[1.0, 1.0, 3.0], [1.0, 2.0, 3.0]]), torch.ones(2, 3))
    tensor([1, 0])
    """
    order = limits.argsort(dim=1, stable=True)
    loads = torch.gather(demand, 1, order).cumsum(1)
    return (loads > torch.gather(limits, 1, order) + EPS).sum(1)
