"""Reference solvers on the same instances: PyVRP (time windows), OR-Tools routing (both problems), and LKH3 where a binary is given.

All work on whole numbers. Lengths are rounded; travel times and window starts are rounded up, window ends down, so that a tour that is
feasible for the solver is feasible on the unrounded data. Every tour is checked there again, and its cost is the unrounded length. A solver
that finds nothing has proved nothing: `found` is False, and the caller decides what that means. Effort is counted in iterations or
solutions, not seconds, so that results do not depend on the machine.
"""

from __future__ import annotations

import itertools
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasks.routing.instances import Instances

SCALE = 100_000
"""Whole units per unit of length; at 1 000 the rounding of N legs alone would shift a length by 0.0005 N."""
LONGEST_S = 60
"""Wall time for OR-Tools where it looks at no other limit (insertion under tight draft limits); what meets it varies with the machine."""


class SolverMissing(RuntimeError):
    """An optional solver is not there; the message says how to name it."""


@dataclass(frozen=True)
class Reference:
    """Best tour that a solver found for one instance, checked on unrounded data; cost is inf and the tour empty if there is none."""

    cost: float
    tour: np.ndarray

    @property
    def found(self) -> bool:
        """Whether there is a feasible tour."""
        return bool(np.isfinite(self.cost))


NOTHING = Reference(float("inf"), np.empty(0, dtype=np.int64))


def solve_with_pyvrp(instance: Instances, iterations: int = 500, seed: int = 0, scale: int = SCALE) -> Reference:
    """Iterated local search of PyVRP (Wouda, Lan & Kool, 2024) on one instance with time windows.

    Args:
        instance: a batch of one.
        iterations: of the search.
        seed: of the search.
        scale: whole units per unit of length.

    Raises:
        ValueError: for another problem than time windows, or more than one instance.

    >>> from tasks.routing.generators import random_tsptw
    >>> one = random_tsptw(1, 6, "hard", torch.Generator().manual_seed(0))
    >>> found = solve_with_pyvrp(one, iterations=20)
    >>> bool(one.is_tour(torch.as_tensor(found.tour)[None, None]))
    True
    """
    from pyvrp import Model
    from pyvrp.stop import MaxIterations

    _check_one(instance, "tsptw")
    early, late, distance, steps = _whole(instance, scale)
    model = Model()
    spots = [model.add_location(*place) for place in np.round(instance.locs[0].numpy() * scale).astype(int).tolist()]
    nodes: list[Any] = [model.add_depot(spots[0], int(early[0]), int(late[0]))]
    nodes += [model.add_client(s, tw_early=int(e), tw_late=int(max(e, f))) for s, e, f in zip(spots[1:], early[1:], late[1:], strict=True)]
    model.add_vehicle_type(start_depot=nodes[0], end_depot=nodes[0])
    for i, start in enumerate(spots):
        for j, end in enumerate(spots):
            if i != j:
                # Service is part of the way from i, as in the clock of `Instances`.
                model.add_edge(start, end, distance=int(distance[i, j]), duration=int(steps[i, j]))
    best = model.solve(MaxIterations(iterations), seed=seed, collect_stats=False, display=False).best
    if not best.is_feasible() or len(best.routes()) != 1:
        return NOTHING
    return checked(instance, [0, *_visits(best.routes()[0])])


def solve_with_ortools(instance: Instances, solutions: int = 200, checks: int = 5_000, scale: int = SCALE) -> Reference:
    """OR-Tools routing, cheapest insertion (or the order of deadlines) and guided local search, on one instance of either problem.

    Args:
        instance: a batch of one.
        solutions: accepted solutions after which the search stops.
        checks: per node, of the limit by the search, after which it stops too: without them it never ends on an instance where it stalls
            (it then makes no branches and meets no failures either).
        scale: whole units per unit of length (of the total demand, for draft limits).
    """
    from ortools.constraint_solver import pywrapcp, routing_enums_pb2

    _check_one(instance)
    early, late, distance, steps = _whole(instance, scale)
    nodes = instance.nodes
    manager = pywrapcp.RoutingIndexManager(nodes, 1, 0)
    routing = pywrapcp.RoutingModel(manager)
    lengths, growth = distance.tolist(), steps.tolist()
    cost = routing.RegisterTransitCallback(lambda a, b: lengths[manager.IndexToNode(a)][manager.IndexToNode(b)])
    clock = routing.RegisterTransitCallback(lambda a, b: growth[manager.IndexToNode(a)][manager.IndexToNode(b)])
    routing.SetArcCostEvaluatorOfAllVehicles(cost)
    horizon = int(late.max() + steps.max() + 1)
    routing.AddDimension(clock, horizon if instance.problem == "tsptw" else 0, horizon, False, "clock")  # loads do not wait
    dimension = routing.GetDimensionOrDie("clock")
    for j in range(1, nodes):
        dimension.CumulVar(manager.NodeToIndex(j)).SetRange(int(early[j]), int(max(early[j], late[j])))
    dimension.CumulVar(routing.Start(0)).SetRange(int(early[0]), int(early[0]))
    search = pywrapcp.DefaultRoutingSearchParameters()
    search.first_solution_strategy = routing_enums_pb2.FirstSolutionStrategy.PARALLEL_CHEAPEST_INSERTION
    search.local_search_metaheuristic = routing_enums_pb2.LocalSearchMetaheuristic.GUIDED_LOCAL_SEARCH
    search.solution_limit = solutions
    search.time_limit.seconds = LONGEST_S
    solver = routing.solver()
    looks = itertools.count(1)
    routing.AddSearchMonitor(solver.CustomLimit(lambda: next(looks) > checks * nodes))
    answer = routing.SolveWithParameters(search)
    by_deadline = [0, *(np.argsort(late[1:], kind="stable") + 1).tolist()]
    if answer is None and checked(instance, by_deadline).found:  # insertion may fail where a start by deadline does not
        answer = routing.SolveFromAssignmentWithParameters(routing.ReadAssignmentFromRoutes([by_deadline[1:]], True), search)
    if answer is None:
        return NOTHING
    tour, at = [], routing.Start(0)
    while not routing.IsEnd(at):
        tour.append(manager.IndexToNode(at))
        at = answer.Value(routing.NextVar(at))
    return checked(instance, tour)


def solve_with_lkh(instance: Instances, binary: Path | None, seed: int = 0, scale: int = SCALE) -> Reference:
    """LKH-3 (Helsgaun, 2017) on one instance with time windows, by a binary that the user has installed.

    Raises:
        SolverMissing: if no binary is named, or the file is not there.
    """
    if binary is None or not binary.is_file():
        raise SolverMissing(f"LKH3 is not in any package index; build it from its sources and name the binary (got {binary})")
    _check_one(instance, "tsptw")
    early, late, distance, _ = _whole(instance, scale)
    with tempfile.TemporaryDirectory() as folder:
        problem, parameters, answer = (Path(folder) / name for name in ("problem.tsptw", "parameters", "tour"))
        problem.write_text(_lkh_problem(early, late, distance))
        parameters.write_text(f"PROBLEM_FILE = {problem}\nTOUR_FILE = {answer}\nSEED = {seed + 1}\nRUNS = 1\nTRACE_LEVEL = 0\n")
        subprocess.run([str(binary), str(parameters)], cwd=folder, check=True, capture_output=True, timeout=600)
        if not answer.is_file():
            return NOTHING
        lines = answer.read_text().split("TOUR_SECTION", 1)[1].split()
    tour = [int(word) - 1 for word in lines[: lines.index("-1")]]
    at = tour.index(0)
    return checked(instance, tour[at:] + tour[:at])


def checked(instance: Instances, tour: list[int]) -> Reference:
    """A tour with its unrounded length, or nothing if it breaks a limit of the unrounded data."""
    made = torch.tensor(tour)[None, None]
    if made.shape[-1] != instance.nodes or not bool(instance.is_tour(made)):
        return NOTHING
    return Reference(float(instance.length(made)), np.array(tour, dtype=np.int64))


def _whole(instance: Instances, scale: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Window starts up, ends down, lengths to the nearest, growth of the clock up; a hair first, or 0.3 * scale would round up."""
    hair = 1e-6
    early = np.ceil(instance.early[0].numpy() * scale - hair)
    late = np.floor(np.minimum(instance.late[0].numpy(), 1e6) * scale + hair)
    distance = np.round(instance.distance[0].numpy() * scale)
    steps = np.ceil(instance.steps[0].numpy() * scale - hair)
    if instance.problem == "tspdl":  # loads are sums of exact demands: limits may keep the tolerance instead of losing a unit
        late = np.floor(np.minimum(instance.deadline[0].numpy(), 1e6) * scale + instance.nodes)
    return early.astype(np.int64), late.astype(np.int64), distance.astype(np.int64), steps.astype(np.int64)


def _visits(route: Any) -> list[int]:
    """Nodes of a route of PyVRP in order; clients are numbered after the only depot."""
    return [int(activity.idx) + 1 for activity in route if activity.is_client()]


def _check_one(instance: Instances, problem: str | None = None) -> None:
    if len(instance) != 1:
        raise ValueError(f"a reference solver takes one instance at a time, got {len(instance)}")
    if problem and instance.problem != problem:
        raise ValueError(f"this solver takes instances of {problem}, got {instance.problem}; use solve_with_ortools")


def _lkh_problem(early: np.ndarray, late: np.ndarray, distance: np.ndarray) -> str:
    rows = "\n".join(" ".join(map(str, row)) for row in distance.tolist())
    windows = "\n".join(f"{j + 1} {e} {f}" for j, (e, f) in enumerate(zip(early.tolist(), late.tolist(), strict=True)))
    head = f"NAME : instance\nTYPE : TSPTW\nDIMENSION : {len(early)}\nEDGE_WEIGHT_TYPE : EXPLICIT\nEDGE_WEIGHT_FORMAT : FULL_MATRIX\n"
    return f"{head}EDGE_WEIGHT_SECTION\n{rows}\nTIME_WINDOW_SECTION\n{windows}\n-1\nDEPOT_SECTION\n1\n-1\nEOF\n"
