"""Travelling salesman with time windows: t_j = max(t_i + s_i + d_ij, e_j) <= l_j; waiting is free, the cost is the length of the tour."""

from __future__ import annotations

import torch
from torch import Tensor

from tasks.routing.instances import Instances, check_locs, check_nodes, euclidean


def tsptw(locs: Tensor, windows: Tensor, service: Tensor | None = None, distance: Tensor | None = None) -> Instances:
    """Instances with time windows.

    Args:
        locs: coordinates, (B, N, 2); node 0 is the depot.
        windows: (earliest, latest) start of service, (B, N, 2); travel takes its length in time.
        service: service times, (B, N), default 0.
        distance: travel lengths, (B, N, N), default Euclidean; the look-ahead sets rely on the triangle inequality.

    Returns:
        Instances whose return to the depot is never late by itself: a due time of the depot is moved into the customers' windows,
        l_j <- min(l_j, l_0 - s_j - d_j0), which changes no feasible tour because every way home from j takes at least d_j0.

    Raises:
        ValueError: for shapes that do not fit, coordinates that are not finite, negative service, or a window with e > l, naming the node.

    >>> pair = tsptw([[[0, 0], [3, 4]]], [[[0, 9], [6, 8]]])
    >>> pair.clocks(torch.tensor([[[0, 1]]]))
    tensor([[[0., 6.]]], dtype=torch.float64)
    >>> pair.late
    tensor([[9., 4.]], dtype=torch.float64)
    """
    places = check_locs(locs)
    ends = check_nodes("windows", windows, places, 2)
    used = torch.zeros_like(places[..., 0]) if service is None else check_nodes("service", service, places)
    if (used < 0).any():
        b, j = (used < 0).nonzero()[0].tolist()
        raise ValueError(f"service time of node {j} of instance {b} must be at least 0, got {used[b, j].item()}")
    early, late = ends.unbind(-1)
    if (early > late).any():
        b, j = (early > late).nonzero()[0].tolist()
        raise ValueError(f"window of node {j} of instance {b} ends before it starts: [{early[b, j].item()}, {late[b, j].item()}]")
    if not torch.isfinite(early).all():
        b, j = (~torch.isfinite(early)).nonzero()[0].tolist()
        raise ValueError(f"window of node {j} of instance {b} must start at a finite time, got {early[b, j].item()}")
    lengths = euclidean(places) if distance is None else check_nodes("distance", distance, places, places.shape[1])
    home = late[:, :1] - used - lengths[:, :, 0]
    tight = torch.cat([late[:, :1], torch.minimum(late, home)[:, 1:]], 1)
    return Instances("tsptw", places, early, tight, used, lengths, used[:, :, None] + lengths)


def open_depot(locs: Tensor, early: Tensor, late: Tensor) -> Tensor:
    """Windows (B, N, 2) with a depot that never makes a return late: [0, max_j(l_j + d_j0)]; `early` and `late` are (B, N)."""
    latest = (late + euclidean(locs)[:, :, 0])[:, 1:].amax(1)
    windows = torch.stack([early, late], -1)
    windows[:, 0, 0], windows[:, 0, 1] = 0.0, latest
    return windows
