"""Ground truth by dynamic programming, independent of any policy or look-ahead code.

`solve_exactly` extends labels (set of visited customers, last one) -> Pareto list of (clock, cost), one layer per customer, and drops a
label when some unvisited customer cannot be reached in time any more (Dumas et al., 1995). `latest_departures` answers the question of
feasibility alone, backwards and for every state of a small instance. Both take arrays of one instance, as `arrays_of` gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tasks.routing.instances import Instances

MOST_NODES = 56
MOST_LABELS = 20_000_000


class DpTooLarge(RuntimeError):
    """The instance needs more labels than allowed, so that nothing is known about it."""


class Arrays(NamedTuple):
    """One instance as float64 arrays: growth of the clock and lengths (N, N), windows (N,), deadlines with tolerance."""

    steps: np.ndarray
    distance: np.ndarray
    early: np.ndarray
    deadline: np.ndarray


@dataclass(frozen=True)
class Exact:
    """Optimal tour of one instance; cost is inf and the tour empty where none exists."""

    cost: float
    tour: np.ndarray

    @property
    def feasible(self) -> bool:
        """Whether a tour exists."""
        return bool(np.isfinite(self.cost))


def arrays_of(instances: Instances) -> Iterator[Arrays]:
    """The instances one by one as arrays."""
    parts = (instances.steps, instances.distance, instances.early, instances.deadline)
    for row in zip(*(np.ascontiguousarray(part.cpu().numpy()) for part in parts), strict=True):
        yield Arrays(*row)


def solve_exactly(instance: Arrays, most_labels: int = MOST_LABELS) -> Exact:
    """Shortest tour that keeps all limits, or the proof that there is none.

    Args:
        instance: N nodes, at most 56.
        most_labels: limit of memory, about 32 bytes each.

    Raises:
        ValueError: for more than 56 nodes.
        DpTooLarge: if more labels would be needed.

    >>> import torch
    >>> from tasks.routing.generators import random_tsptw
    >>> one = random_tsptw(1, 6, "hard", torch.Generator().manual_seed(0))
    >>> found = solve_exactly(next(arrays_of(one)))
    >>> bool(one.is_tour(torch.as_tensor(found.tour)[None, None]))
    True
    """
    nodes = len(instance.early)
    if nodes > MOST_NODES:
        raise ValueError(f"exact search takes at most {MOST_NODES} nodes, got {nodes}")
    labels = _compiled(_extend_labels)(*instance, most_labels)
    if labels is None:
        raise DpTooLarge(f"more than {most_labels} labels are needed for an instance of {nodes} nodes")
    node, parent, cost, last_layer = labels
    home = cost[last_layer:] + instance.distance[node[last_layer:], 0]
    if home.size == 0:
        return Exact(np.inf, np.empty(0, dtype=np.int64))
    at = last_layer + int(home.argmin())
    tour = []
    while at >= 0:
        tour.append(int(node[at]))
        at = int(parent[at])
    return Exact(float(home.min()), np.array(tour[::-1], dtype=np.int64))


def latest_departures(instance: Arrays) -> np.ndarray:
    r"""Latest clock at which every state can still be completed, (2^(N-1), N).

    A row is a set of customers still to visit, bit j - 1 for customer j, a column the current node; -inf where nothing helps.
    L(R, i) = max over k in R of min(l_k, L(R \ k, k)) - steps_ik, where waiting for e_k is allowed. Feasibility alone, so that sets
    of feasible next nodes are exact for any prefix.

    Raises:
        ValueError: for more than 16 nodes.
    """
    nodes = len(instance.early)
    if nodes > 16:
        raise ValueError(f"all states are kept for at most 16 nodes, got {nodes}")
    found: np.ndarray = _compiled(_latest)(instance.steps, instance.early, instance.deadline)
    return found


def feasible_next(instance: Arrays, prefix: list[int], clock: float, latest: np.ndarray | None = None) -> list[int]:
    """Potential set S: customers that have a feasible completion after `prefix`, which ends at this clock.

    Args:
        instance: at most 16 nodes.
        prefix: nodes visited so far, the depot first.
        clock: at the last of them.
        latest: of `latest_departures`, where it is there already.
    """
    table = latest_departures(instance) if latest is None else latest
    rest = [k for k in range(1, len(instance.early)) if k not in prefix]
    bits = sum(1 << (k - 1) for k in rest)
    found = []
    for k in rest:
        arrival = max(clock + instance.steps[prefix[-1], k], instance.early[k])
        if arrival <= min(instance.deadline[k], table[bits & ~(1 << (k - 1)), k]):
            found.append(k)
    return found


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    import numba

    made: Callable[..., Any] = numba.njit(cache=True)(function)
    return made


def _extend_labels(steps, distance, early, deadline, most_labels):  # type: ignore[no-untyped-def]
    """Labels of all layers: node, parent, cost, and where the last layer starts; None if there are too many."""
    n = early.shape[0]
    node, parent, cost = np.zeros(1, np.int64), np.full(1, -1, np.int64), np.zeros(1)
    clock, visited = np.full(1, early[0]), np.zeros(1, np.int64)
    start = 0
    for _ in range(n - 1):
        size = (node.shape[0] - start) * 4 + 16
        keys, times, costs = np.empty(size, np.int64), np.empty(size), np.empty(size)
        parents, nodes = np.empty(size, np.int64), np.empty(size, np.int64)
        count = 0
        for a in range(start, node.shape[0]):
            mask = visited[a - start]
            for j in range(1, n):
                if mask >> (j - 1) & 1:
                    continue
                t = max(clock[a - start] + steps[node[a], j], early[j])
                if t > deadline[j]:
                    continue
                alive = True
                for k in range(1, n):
                    if k != j and not (mask >> (k - 1) & 1) and max(t + steps[j, k], early[k]) > deadline[k]:
                        alive = False
                        break
                if not alive:
                    continue
                if count == size:
                    if count > most_labels:
                        return None
                    size *= 2
                    keys, times = np.concatenate((keys, keys)), np.concatenate((times, times))
                    costs, parents = np.concatenate((costs, costs)), np.concatenate((parents, parents))
                    nodes = np.concatenate((nodes, nodes))
                keys[count] = (mask | (1 << (j - 1))) * 64 + j
                times[count], costs[count] = t, cost[a] + distance[node[a], j]
                parents[count], nodes[count] = a, j
                count += 1
        by_cost = np.argsort(costs[:count], kind="mergesort")
        by_time = by_cost[np.argsort(times[:count][by_cost], kind="mergesort")]
        order = by_time[np.argsort(keys[:count][by_time], kind="mergesort")]
        kept = np.empty(count, np.int64)
        number, last, best = 0, np.int64(-1), np.inf
        for i in order:
            if keys[i] != last:
                last, best = keys[i], np.inf
            if costs[i] < best:
                best = costs[i]
                kept[number] = i
                number += 1
        kept = kept[:number]
        if node.shape[0] + number > most_labels:
            return None
        start = node.shape[0]
        node, parent, cost = (
            np.concatenate((node, nodes[kept])),
            np.concatenate((parent, parents[kept])),
            np.concatenate((cost, costs[kept])),
        )
        clock, visited = times[kept], keys[kept] // 64
    return node, parent, cost, start


def _latest(steps, early, deadline):  # type: ignore[no-untyped-def]
    """Backwards over subsets in increasing order: a subset's parts have smaller numbers."""
    n = early.shape[0]
    latest = np.full((1 << (n - 1), n), -np.inf)
    latest[0, :] = np.inf
    for rest in range(1, 1 << (n - 1)):
        for i in range(n):
            if i > 0 and rest >> (i - 1) & 1:
                continue
            best = -np.inf
            for k in range(1, n):
                if rest >> (k - 1) & 1:
                    bound = min(deadline[k], latest[rest & ~(1 << (k - 1)), k])
                    if early[k] <= bound:
                        best = max(best, bound - steps[i, k])
            latest[rest, i] = best
    return latest
