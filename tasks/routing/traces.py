"""The whole search of one instance, popped branches included, for drawings."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tasks.routing.instances import Instances
from tasks.routing.lazymask import Scorer, lazy_decode


class Trace(NamedTuple):
    """One solved instance: its tour, and every push in order.

    Attributes:
        instance: a batch of one.
        tour: nodes, (N,).
        pushes: (level, node, clock, level's node before), one row each.
        backtracks: how many were popped again.
    """

    instance: Instances
    tour: np.ndarray
    pushes: np.ndarray
    backtracks: int


def search_trace(instances: Instances, policy: Callable[[Instances], Scorer], most_backtracks: int = 15, budget: int = 200) -> Trace:
    """Search of the solved instance with most backtracks up to a limit (the first one, if none has any).

    Raises:
        ValueError: if the policy solves none within the limit.
    """
    found = lazy_decode(instances, policy(instances), budget)
    backtracks = torch.where(found.within(most_backtracks), found.backtracks, -1)[:, 0]
    if int(backtracks.max()) < 0:
        raise ValueError(f"no instance of {len(instances)} was solved within {most_backtracks} backtracks; allow more")
    at = int(backtracks.argmax())
    one = instances.take(slice(at, at + 1))
    pushes: list[tuple[Tensor, ...]] = []
    again = lazy_decode(one, policy(one), budget, pushes=pushes)  # type: ignore[arg-type]
    rows, before = [], {0: 0}
    for _, level, node, clock in pushes:
        depth = int(level)
        rows.append((depth, int(node), float(clock), before[depth - 1]))
        before[depth] = int(node)
    return Trace(one, again.tours[0, 0].numpy(), np.array(rows), int(again.backtracks))
