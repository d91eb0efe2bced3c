"""Slow and obvious twins of the fast routines, one instance at a time, and small factories."""

from __future__ import annotations

import itertools
import math

import torch

from tasks.routing.generators import random_tspdl, random_tsptw
from tasks.routing.lazymask import Step


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mixed(seed: int, nodes: int, count: int = 6):
    """A batch of medium windows (some infeasible), of hard windows, and of draft limits."""
    return [
        random_tsptw(count, nodes, "medium", seeded(seed)),
        random_tsptw(count, nodes, "hard", seeded(seed + 1)),
        random_tspdl(count, max(nodes, 3), "hard", seeded(seed + 2)),
    ]


def lists(instances, b):
    """Early, deadline and steps of one instance as plain lists."""
    return instances.early[b].tolist(), instances.deadline[b].tolist(), instances.steps[b].tolist()


def all_tours(nodes):
    return [(0, *order) for order in itertools.permutations(range(1, nodes))]


def feasible_tours(instances, b):
    """Every feasible tour of one instance with its length, by trying all."""
    early, deadline, steps = lists(instances, b)
    distance = instances.distance[b].tolist()
    found = []
    for tour in all_tours(instances.nodes):
        clock, good = early[0], True
        for i, j in itertools.pairwise(tour):
            clock = max(clock + steps[i][j], early[j])
            if clock > deadline[j]:
                good = False
                break
        if good:
            found.append((sum(distance[i][j] for i, j in itertools.pairwise((*tour, 0))), tour))
    return found


def best_tour(instances, b):
    return min(feasible_tours(instances, b), default=(math.inf, ()))


def slow_set(instances, b, kind, current, clock, unvisited):
    """Look-ahead set by its definition."""
    early, deadline, steps = lists(instances, b)

    def arrive(at, i, j):
        return max(at + steps[i][j], early[j])

    if kind == "none":
        return set(unvisited)
    if kind == "ssl":
        return set(unvisited) if all(arrive(clock, current, k) <= deadline[k] for k in unvisited) else set()
    found = set()
    for j in unvisited:
        at = arrive(clock, current, j)
        if at <= deadline[j] and (kind == "local" or all(arrive(at, j, k) <= deadline[k] for k in unvisited if k != j)):
            found.add(j)
    return found


def slow_lazy_decode(instances, b, scorer, budget, lookahead="tsl", training=False, show_budget=True):
    """The pseudo-code of LazyMask for one instance, with lists and sets; greedy."""
    early, _, steps = lists(instances, b)
    nodes = instances.nodes

    def candidates(stack):
        visited = {level[0] for level in stack}
        return slow_set(instances, b, lookahead, stack[-1][0], stack[-1][1], [k for k in range(1, nodes) if k not in visited])

    stack = [[0, early[0], None, 0]]
    stack[0][2] = candidates(stack)
    used, given_up, calls = 0, False, 0
    while len(stack) < nodes:
        node, clock, allowed, refined = stack[-1]
        if allowed:
            calls += 1
            mask = torch.zeros((1, 1, nodes), dtype=torch.bool)
            mask[0, 0, list(allowed)] = True
            step = Step(
                torch.tensor([b]),
                torch.tensor([[node]]),
                torch.tensor([[clock]], dtype=torch.float64),
                mask,
                torch.tensor([[refined]]),
                torch.tensor([[show_budget and used >= budget]]),
                torch.tensor([[given_up]]),
            )
            scores = scorer(step)[0, 0].tolist()
            choice = min(allowed, key=lambda j: (-scores[j], j))
            stack.append([choice, max(clock + steps[node][choice], early[choice]), None, 0])
            if len(stack) < nodes:
                stack[-1][2] = candidates(stack)
        elif not training and len(stack) == 1:
            return [0], 0, used, calls
        elif used < budget and len(stack) > 1 and not given_up:
            popped = stack.pop()[0]
            stack[-1][2].discard(popped)
            stack[-1][3] += 1
            used += 1
        elif training:
            visited = {level[0] for level in stack}
            stack[-1][2] = {k for k in range(1, nodes) if k not in visited}
            given_up = True
        else:
            return [level[0] for level in stack], -1, used, calls
    return [level[0] for level in stack], 1, used, calls
