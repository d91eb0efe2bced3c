"""Policies without parameters: the greedy rules of the benchmark and the uniform one, as functions from a `Step` to scores.

`nearest` inside the two-step set is the benchmark's Greedy-L, `earliest_deadline` its Greedy-C; with a budget they are LazyMask without
learning.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tasks.routing.instances import Instances
from tasks.routing.lazymask import Scorer, Step


def nearest(instances: Instances) -> Scorer:
    """Prefer the nearest node.

    >>> from tasks.routing.lazymask import lazy_decode
    >>> from tasks.routing.tsptw import tsptw
    >>> line = tsptw([[[0, 0], [2, 0], [1, 0]]], [[[0, 9]] * 3])
    >>> lazy_decode(line, nearest(line), budget=0).tours
    tensor([[[0, 2, 1]]])
    """

    def score(step: Step) -> Tensor:
        return -instances.distance[step.rows[:, None], step.current]

    return score


def earliest_deadline(instances: Instances) -> Scorer:
    """Prefer the node whose window closes first, or whose draft limit is smallest; ties by lower index."""

    def score(step: Step) -> Tensor:
        return -instances.late[step.rows][:, None].expand(step.allowed.shape)

    return score


def uniform(instances: Instances) -> Scorer:
    """No preference: with a generator, a uniform draw from the set."""

    def score(step: Step) -> Tensor:
        return torch.zeros(step.allowed.shape, dtype=torch.float64, device=instances.locs.device)

    return score


def table(scores: Tensor) -> Scorer:
    """Fixed preferences (B, N, N) of each node after each other: a policy whose arithmetic does not depend on the batch."""

    def score(step: Step) -> Tensor:
        return scores[step.rows[:, None], step.current]

    return score
