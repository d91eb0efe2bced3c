"""LazyMask: constructive decoding that starts each step from an over-estimate of the feasible next nodes and backtracks when it runs empty.

Li, Zou, Wu & Wen (2026), Algorithm 1. Per trajectory there is a stack of levels, level d holding the d-th node, the clock at it, and the
set of allowed next nodes. Where the set of the top level is empty, the top node is popped and removed from the set one level below. Only
pruned sets are remembered, and only for the prefix that is on the stack, so memory is O(N^2) per trajectory.

The module knows no network: a policy is a function from a `Step` to scores. With `budget=0` it is plain masked decoding that stops at the
first dead end; with `budget=0, training=True` it is the decoding of PIP, which relaxes the mask there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tasks.routing.instances import Instances
from tasks.routing.lookahead import CandidateSets, Lookahead

SOLVED, INFEASIBLE, BUDGET, RUNNING = 1, 0, -1, 2
"""A tour was found; none exists (proved); backtracks used up; internal."""


class Step(NamedTuple):
    """What a policy sees when it scores next nodes: for b instances with S partial tours each.

    Attributes:
        rows: which instances, (b,).
        current: last nodes, (b, S).
        clock: at them, (b, S).
        allowed: candidates, (b, S, N); rows of partial tours that do not move now are all True.
        refined: how often the set of this level was pruned, (b, S).
        exhausted: whether the backtracks are used up, (b, S).
        relaxed: whether the set was given up once, (b, S).
    """

    rows: Tensor
    current: Tensor
    clock: Tensor
    allowed: Tensor
    refined: Tensor
    exhausted: Tensor
    relaxed: Tensor


Scorer = Callable[[Step], Tensor]
"""Scores (b, S, N) of a step; only those of allowed nodes are read."""


@dataclass(frozen=True)
class Decoded:
    """Results for B instances with S trajectories each.

    Attributes:
        tours: (B, S, N), the depot first; -1 where a trajectory stopped before.
        status: SOLVED, INFEASIBLE or BUDGET, (B, S). In training mode a relaxed tour counts as BUDGET.
        backtracks: nodes popped, (B, S).
        calls: choices made by the policy, (B, S).
        current, clock, refined: node, clock and number of prunings when the last choice at each level was made, (B, S, N - 1).
        allowed: sets from which they were made, (B, S, N - 1, N).
        exhausted, relaxed: flags at those choices, (B, S, N - 1).
    """

    tours: Tensor
    status: Tensor
    backtracks: Tensor
    calls: Tensor
    current: Tensor
    clock: Tensor
    refined: Tensor
    allowed: Tensor
    exhausted: Tensor
    relaxed: Tensor

    @property
    def solved(self) -> Tensor:
        """Which trajectories are feasible tours, (B, S)."""
        return self.status == SOLVED

    def within(self, budget: int) -> Tensor:
        """Which trajectories a smaller budget would have solved too, (B, S): exact as long as the policy does not see the budget."""
        return self.solved & (self.backtracks <= budget)


def lazy_decode(
    instances: Instances,
    policy: Scorer,
    budget: int,
    *,
    lookahead: Lookahead = "tsl",
    samples: int = 1,
    generator: torch.Generator | None = None,
    training: bool = False,
    show_budget: bool = True,
    pushes: list[tuple[Tensor, Tensor, Tensor, Tensor]] | None = None,
) -> Decoded:
    """Decode S tours per instance.

    Args:
        instances: B instances.
        policy: scores next nodes.
        budget: R, most backtracks per trajectory, at least 0. With R large enough a feasible tour is found whenever one exists.
        lookahead: the over-estimate; with `none` tours are free and `status` says which keep the limits.
        samples: S.
        generator: draw from softmax(scores) over the set; without one take the best, ties by lower index.
        training: every trajectory ends with a tour. Where it would stop, all unvisited nodes are allowed and backtracking ends.
        show_budget: whether `Step.exhausted` is live; held at False otherwise, so that choices do not depend on R.
        pushes: where every push is noted, popped ones too: trajectory (b * S + s), level, node and clock, each (m,).

    Raises:
        ValueError: for a budget below 0, samples below 1 or an unknown look-ahead.
        FloatingPointError: if the policy gives a score that is not a number to an allowed node.

    >>> from tasks.routing.generators import random_tsptw
    >>> from tasks.routing.policies import nearest
    >>> hard = random_tsptw(3, 10, "hard", torch.Generator().manual_seed(1))
    >>> found = lazy_decode(hard, nearest(hard), budget=100)
    >>> bool(hard.is_tour(found.tours)[found.solved].all())
    True
    """
    if budget < 0:
        raise ValueError(f"budget must be at least 0, got {budget}")
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    search = _Search(instances, CandidateSets(instances, lookahead), samples, budget, training)
    while search.settle():
        pushed = search.forward(policy, generator, show_budget)
        if pushes is not None:
            pushes.append(pushed)
    return search.result(lookahead)


class _Search:
    """State of all trajectories, flat: M = B * S rows."""

    def __init__(self, instances: Instances, sets: CandidateSets, samples: int, budget: int, training: bool) -> None:
        count, nodes, device = len(instances) * samples, instances.nodes, instances.locs.device
        self.instances, self.sets, self.samples, self.budget, self.training = instances, sets, samples, budget, training
        self.depth = torch.zeros(count, dtype=torch.long, device=device)
        self.status = torch.full((count,), RUNNING, dtype=torch.int8, device=device)
        self.backtracks, self.calls = torch.zeros_like(self.depth), torch.zeros_like(self.depth)
        self.given_up = torch.zeros(count, dtype=torch.bool, device=device)
        self.unvisited = torch.ones((count, nodes), dtype=torch.bool, device=device)
        self.unvisited[:, 0] = False
        self.node = torch.full((count, nodes), -1, dtype=torch.long, device=device)
        self.node[:, 0] = 0
        self.clock = torch.zeros((count, nodes), dtype=torch.float64, device=device)
        self.clock[:, 0] = instances.early[:, 0].repeat_interleave(samples)
        self.allowed = torch.zeros((count, nodes, nodes), dtype=torch.bool, device=device)
        self.refined = torch.zeros((count, nodes), dtype=torch.long, device=device)
        self.exhausted, self.relaxed = torch.zeros_like(self.unvisited), torch.zeros_like(self.unvisited)
        every = torch.arange(len(instances), device=device)
        shape = (len(instances), samples)
        first = sets(every, self.node[:, 0].view(shape), self.clock[:, 0].view(shape), self.unvisited.view(*shape, nodes))
        self.allowed[:, 0] = first.reshape(count, nodes)
        self.rows = torch.arange(count, device=device)

    def settle(self) -> bool:
        """Backtrack, relax or stop where sets are empty, until every running trajectory can move; False when none is left."""
        rows = self.rows
        while rows.numel():
            depth = self.depth[rows]
            stuck = rows[~self.allowed[rows, depth].any(-1)]
            if not stuck.numel():
                break
            at_root = self.depth[stuck] == 0
            if self.training:
                spent = at_root | (self.backtracks[stuck] >= self.budget) | self.given_up[stuck]
                self._relax(stuck[spent])
                self._pop(stuck[~spent])
            else:
                spent = self.backtracks[stuck] >= self.budget
                self.status[stuck[at_root]] = INFEASIBLE
                self.status[stuck[spent & ~at_root]] = BUDGET
                self._pop(stuck[~spent & ~at_root])
            rows = stuck[self.status[stuck] == RUNNING]
        self.rows = self.rows[self.status[self.rows] == RUNNING]
        return bool(self.rows.numel())

    def _pop(self, rows: Tensor) -> None:
        depth = self.depth[rows]
        last = self.node[rows, depth]
        self.unvisited[rows, last] = True
        self.node[rows, depth] = -1
        self.depth[rows] = depth - 1
        self.allowed[rows, depth - 1, last] = False
        self.refined[rows, depth - 1] += 1
        self.backtracks[rows] += 1

    def _relax(self, rows: Tensor) -> None:
        self.allowed[rows, self.depth[rows]] = self.unvisited[rows]
        self.given_up[rows] = True

    def forward(self, policy: Scorer, generator: torch.Generator | None, show_budget: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One choice for every running trajectory. The policy is called per instance, for all its trajectories."""
        rows, samples = self.rows, self.samples
        instance = torch.unique_consecutive(rows // samples)
        grid = instance[:, None] * samples + torch.arange(samples, device=rows.device)
        moving = torch.zeros_like(self.given_up)
        moving[rows] = True
        moving = moving[grid]
        depth = self.depth[grid]
        exhausted = self.backtracks[grid] >= self.budget if show_budget else torch.zeros_like(moving)
        step = Step(
            instance,
            self.node[grid, depth],
            self.clock[grid, depth],
            self.allowed[grid, depth] | ~moving[..., None],
            self.refined[grid, depth],
            exhausted,
            self.given_up[grid],
        )
        choice = choose(policy(step), step.allowed, generator)
        arrival = self.sets.arrival(instance, step.current, step.clock).gather(-1, choice[..., None])[..., 0]
        level, chosen, flat = depth[moving], choice[moving], grid[moving]
        self.exhausted[flat, level], self.relaxed[flat, level] = step.exhausted[moving], step.relaxed[moving]
        self.calls[flat] += 1
        self.node[flat, level + 1], self.clock[flat, level + 1] = chosen, arrival[moving]
        self.unvisited[flat, chosen] = False
        self.refined[flat, level + 1] = 0
        self.depth[flat] = level + 1
        done = level + 1 == self.instances.nodes - 1
        self.status[flat[done]] = SOLVED
        self.rows = flat[~done]
        if self.rows.numel():
            ahead = self.sets(instance, torch.where(moving, choice, 0), arrival, self.unvisited[grid])
            self.allowed[flat, level + 1] = ahead[moving]
        return flat, level + 1, chosen, arrival[moving]

    def result(self, lookahead: Lookahead) -> Decoded:
        shape = (len(self.instances), self.samples)
        tours = self.node.view(*shape, -1)
        status = self.status.view(shape)
        if self.training or lookahead == "none":
            kept = self.instances.is_tour(tours)
            status = torch.where((status == SOLVED) & ~kept, BUDGET, status)
        levels = slice(0, self.instances.nodes - 1)
        current, clock, refined = (part.view(*shape, -1)[..., levels] for part in (self.node, self.clock, self.refined))
        exhausted, relaxed = (part.view(*shape, -1)[..., levels] for part in (self.exhausted, self.relaxed))
        allowed = self.allowed.view(*shape, self.instances.nodes, -1)[:, :, levels]
        backtracks, calls = self.backtracks.view(shape), self.calls.view(shape)
        return Decoded(tours, status, backtracks, calls, current, clock, refined, allowed, exhausted, relaxed)


def choose(scores: Tensor, allowed: Tensor, generator: torch.Generator | None) -> Tensor:
    """Best allowed node, ties by lower index, or a draw from the softmax of allowed scores; (..., N) -> (...).

    Raises:
        FloatingPointError: if an allowed score is not a number.

    >>> choose(torch.tensor([[1.0, 3.0, 3.0, 9.0]]), torch.tensor([[True, True, True, False]]), None)
    tensor([1])
    """
    if torch.isnan(scores).logical_and(allowed).any():
        raise FloatingPointError("the policy gave a score that is not a number to an allowed node")
    if generator is not None:
        noise = torch.rand(scores.shape, generator=generator, device=scores.device, dtype=torch.float64)
        scores = scores - torch.log(-torch.log(noise.clamp(1e-300, 1 - 1e-16)))
    masked = torch.where(allowed, scores, -torch.inf)
    index = torch.arange(scores.shape[-1], device=scores.device)
    return torch.where(allowed & (masked == masked.amax(-1, keepdim=True)), index, scores.shape[-1]).amin(-1)
