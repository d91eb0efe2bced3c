"""`papers apply lmask`: tours for a person's own instances with time windows, beside PyVRP's answer.

Weights come from a file (`--weights`, for example one of a pipeline's `train-medium` folder). Without, a small network is trained for a
fixed number of updates on look-alikes of the given instances: nodes drawn from theirs, moved a little, solved exactly where that is quick.
An instance is `solved` with a tour that keeps every window, `infeasible` where the search or exact dynamic programming proved it, else
`unknown`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from pydantic import Field

from tasks.common.node import Log, Params
from tasks.routing import figures
from tasks.routing.attention_model import AttentionModel
from tasks.routing.augmentation import augment
from tasks.routing.checkpoints import load_model
from tasks.routing.exact import DpTooLarge, arrays_of, solve_exactly
from tasks.routing.imitation import ImitationParams, imitate
from tasks.routing.instances import Instances, join
from tasks.routing.lazymask import INFEASIBLE, lazy_decode
from tasks.routing.policies import earliest_deadline, nearest
from tasks.routing.readers import ReadInstances, Rounding, read_any
from tasks.routing.reference_solvers import solve_with_pyvrp
from tasks.routing.training import RouteParams, train_policy
from tasks.routing.tsptw import tsptw
from tasks.training.devices import PresentDevice

LOOK_ALIKES = 256
ENOUGH_LABELS = 32
LABELS_OF_LOOK_ALIKES = 20_000
LABELS_OF_PROOFS = 3_000_000
VISIT_COLUMNS = ["instance", "position", "node", "start", "ready", "due"]


class SolveParams(Params):
    """Options of `papers apply lmask`."""

    instances: Path = Field(
        description="CSV with columns x, y, ready, due (and service, id, instance), first row of an instance the depot; Dumas text; NPZ; "
        "or a folder of such files"
    )
    weights: Path | None = Field(None, description="trained weights (safetensors); default: train on look-alikes of the instances")
    updates: int = Field(150, ge=1, description="updates of that training")
    backtracks: int = Field(200, ge=0, description="backtracks that each search may take")
    images: int = Field(8, ge=1, le=8, description="symmetric images of an instance that the network solves, the best is kept")
    rounding: Rounding = Field("none", description="floor: distances rounded down, as in published results on Dumas files")
    pyvrp: bool = Field(True, description="solve with PyVRP too")
    iterations: int = Field(1000, ge=1, description="of PyVRP")
    seed: int = Field(0, ge=0, description="seed of training and of PyVRP")
    device: PresentDevice = Field("cpu", description="torch device of the network")


@dataclass
class Solution:
    """What is known about one instance; costs in the user's unit of length, inf where there is no tour."""

    name: str
    given: ReadInstances
    status: Literal["solved", "infeasible", "unknown"] = "unknown"
    tour: list[int] = field(default_factory=list)
    found_by: str = ""
    proof: str = ""
    cost: float = np.inf
    lmask_cost: float = np.inf
    backtracks: int = 0
    pyvrp_cost: float = np.nan
    pyvrp_tour: list[int] = field(default_factory=list)


def solve_instances(params: SolveParams, out: Path, log: Log) -> dict[str, float | int | str]:
    """Tours with time windows by LMask for your own instances, next to PyVRP's."""
    solutions = [Solution(name, given) for name, given in read_instances_of(params.instances, params.rounding)]
    model = _model(params, [s.given.instances for s in solutions], log)
    sizes = sorted({s.given.instances.nodes for s in solutions})
    for nodes in log.progress(sizes, desc="sizes"):
        _search([s for s in solutions if s.given.instances.nodes == nodes], model, params)
    for solution in log.progress(solutions, desc="proofs and PyVRP"):
        if solution.status == "unknown":
            _prove(solution)
        if params.pyvrp:
            found = solve_with_pyvrp(solution.given.instances, params.iterations, params.seed)
            solution.pyvrp_cost, solution.pyvrp_tour = found.cost * solution.given.unit, found.tour.tolist()
    table = pd.DataFrame([_row(solution, params.pyvrp) for solution in solutions])
    if out.suffix == ".csv":
        table.to_csv(out, index=False)
    else:
        out.mkdir()
        table.to_csv(out / "solutions.csv", index=False)
        visits = [_visits(solution) for solution in solutions if solution.tour]
        pd.concat(visits or [pd.DataFrame(columns=VISIT_COLUMNS)]).to_csv(out / "visits.csv", index=False)
    log.figure("tours", figures.tours([_drawing(s) for s in solutions]))
    for solution in solutions:
        log.message(_said(solution))
    statuses = [solution.status for solution in solutions]
    summary: dict[str, float | int | str] = {"solved": 0, "infeasible": 0, "unknown": 0}
    summary |= {status: statuses.count(status) for status in statuses}
    summary["weights"] = str(params.weights or "trained on look-alikes")
    if both := [s.cost / s.pyvrp_cost - 1 for s in solutions if s.tour and s.pyvrp_tour and s.pyvrp_cost > 0]:
        summary["mean_gap_to_pyvrp"] = float(np.mean(both))
    return summary


def read_instances_of(path: Path, rounding: Rounding) -> Iterator[tuple[str, ReadInstances]]:
    """All instances of a file, or of every file of a folder, with their names.

    Raises:
        ValueError: if there are none, or a file cannot be read as one.
    """
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path} holds no files; put instances there")
    for file in files:
        found = read_any(file, rounding)
        for i, given in enumerate(found):
            if given.instances.problem != "tsptw":
                raise ValueError(f"{file}: the tool solves time windows, got {given.instances.problem}")
            yield (file.stem if len(found) == 1 else f"{file.stem}-{i + 1}"), given


def look_alikes(given: list[Instances], count: int, generator: torch.Generator) -> Instances:
    """Instances of the first one's size: customers drawn from all given ones, moved by a tenth of the square, windows by as much time.

    Args:
        given: batches of one.
        count: how many.
        generator: randomness.
    """
    nodes = given[0].nodes
    pool = {
        name: torch.cat([getattr(one, name)[0, 1:] / (one.scale if name in ("early", "late", "use") else 1.0) for one in given])
        for name in ("locs", "early", "late", "use")
    }
    horizon = float(torch.stack([one.scale[0] for one in given]).median())
    rows = torch.randint(len(pool["early"]), (count, nodes - 1), generator=generator)
    locs = (pool["locs"][rows] + 0.1 * torch.randn((count, nodes - 1, 2), generator=generator, dtype=torch.float64)).clamp(0, 1)
    shift = 0.1 * torch.randn((count, nodes - 1), generator=generator, dtype=torch.float64)
    late = (pool["late"][rows] * horizon + shift).clamp(min=0.05)
    early = torch.minimum((pool["early"][rows] * horizon + shift).clamp(min=0), late - 0.02)
    early = early.clamp(min=0)
    depot = torch.stack([one.locs[0, 0] for one in given])[torch.randint(len(given), (count,), generator=generator)]
    service = torch.cat([torch.zeros((count, 1), dtype=torch.float64), pool["use"][rows] * horizon], 1)
    first = torch.zeros((count, 1), dtype=torch.float64)
    windows = torch.stack([torch.cat([first, early], 1), torch.cat([first + torch.inf, late], 1)], -1)
    made = tsptw(torch.cat([depot[:, None], locs], 1), windows, service)
    closed = (made.late[:, 1:] + made.use[:, 1:] + made.distance[:, 1:, 0]).masked_fill(~torch.isfinite(made.late[:, 1:]), 0).amax(1)
    windows[:, 0, 1] = torch.where(closed > 0, closed, torch.inf)
    return tsptw(made.locs, windows, service)


def _model(params: SolveParams, given: list[Instances], log: Log) -> AttentionModel:
    if params.weights is not None:
        return load_model(params.weights, "tsptw").to(params.device)
    log.message(f"no --weights: training a small network for {params.updates} updates on instances like the given ones")
    generator = torch.Generator().manual_seed(params.seed)
    model = AttentionModel("tsptw", 64, 4, 2, 128, generator=generator).to(params.device)
    bar = iter(log.progress(range(params.updates), desc="training"))

    def advance(step: int, seen: object) -> None:
        next(bar, None)

    typical = sorted(given, key=lambda one: one.nodes)[len(given) // 2 :]
    examples = look_alikes(typical, LOOK_ALIKES, generator)
    kept, tours = [], []
    for i, arrays in enumerate(arrays_of(examples)):
        try:
            found = solve_exactly(arrays, LABELS_OF_LOOK_ALIKES)
        except (DpTooLarge, ValueError):
            continue
        if found.feasible:
            kept.append(i)
            tours.append(torch.as_tensor(found.tour))
    if len(kept) >= ENOUGH_LABELS:
        options = ImitationParams(updates=params.updates, batch=64)
        chosen = examples.take(torch.tensor(kept)).to(params.device)
        imitate(model, chosen, torch.stack(tours).to(params.device), options, generator, advance)
        return model.eval()
    log.message(f"only {len(kept)} look-alikes could be solved exactly: training by trial and penalty instead")
    route = RouteParams(route="nobt", updates=params.updates, batch=16, samples=16, rate=1e-3)
    draws = torch.Generator(params.device).manual_seed(params.seed)
    train_policy(model, lambda n: look_alikes(typical, n, generator), route, draws, advance)
    return model.eval()


def _search(solutions: list[Solution], model: AttentionModel, params: SolveParams) -> None:
    """LazyMask with the network on all images, then with two rules; the shortest tour is kept."""
    batch = join([s.given.instances for s in solutions])
    images = augment(batch, params.images).to(params.device)
    for name, instances, policy in (
        ("lmask", images, model.scorer(images)),
        ("nearest node", batch, nearest(batch)),
        ("earliest deadline", batch, earliest_deadline(batch)),
    ):
        found = lazy_decode(instances, policy, params.backtracks, show_budget=False)
        length = torch.where(found.solved, instances.length(found.tours.clamp(min=0)), torch.inf)[:, 0].cpu().numpy()
        for i, solution in enumerate(solutions):
            mine = np.arange(i, len(length), len(solutions))
            best = int(mine[length[mine].argmin()])
            if name == "lmask":
                solution.lmask_cost = float(length[best]) * solution.given.unit
                solution.backtracks = int(found.backtracks[best, 0])
            if (found.status[:, 0].cpu().numpy()[mine] == INFEASIBLE).any():
                solution.status, solution.proof = "infeasible", "search"
            elif length[best] * solution.given.unit < solution.cost:
                solution.status, solution.found_by = "solved", name
                solution.cost, solution.tour = float(length[best]) * solution.given.unit, found.tours[best, 0].tolist()


def _prove(solution: Solution) -> None:
    try:
        found = solve_exactly(next(arrays_of(solution.given.instances)), LABELS_OF_PROOFS)
    except (DpTooLarge, ValueError):
        return
    if found.feasible:
        solution.status, solution.found_by = "solved", "exact search"
        solution.cost, solution.tour = found.cost * solution.given.unit, found.tour.tolist()
    else:
        solution.status, solution.proof = "infeasible", "exact search"


def _row(solution: Solution, pyvrp: bool) -> dict[str, Any]:
    labels = solution.given.labels
    row = {
        "instance": solution.name,
        "nodes": solution.given.instances.nodes,
        "status": solution.status,
        "cost": solution.cost if solution.tour else np.nan,
        "found_by": solution.found_by or solution.proof,
        "lmask_cost": solution.lmask_cost if np.isfinite(solution.lmask_cost) else np.nan,
        "backtracks": solution.backtracks,
        "tour": " ".join(labels[node] for node in solution.tour),
    }
    if pyvrp:
        row["pyvrp_cost"] = solution.pyvrp_cost if solution.pyvrp_tour else np.nan
        row["pyvrp_tour"] = " ".join(labels[node] for node in solution.pyvrp_tour)
    return row


def _visits(solution: Solution) -> pd.DataFrame:
    one, unit, tour = solution.given.instances, solution.given.unit, solution.tour
    clocks = one.clocks(torch.tensor(tour)[None, None])[0, 0].numpy()
    return pd.DataFrame(
        {
            "instance": solution.name,
            "position": np.arange(len(tour)),
            "node": [solution.given.labels[node] for node in tour],
            "start": clocks * unit,
            "ready": one.early[0, tour].numpy() * unit,
            "due": one.late[0, tour].numpy() * unit,
        }
    )


def _drawing(solution: Solution) -> tuple[str, np.ndarray, np.ndarray, np.ndarray]:
    places = solution.given.instances.locs[0].numpy() * solution.given.unit
    title = f"{solution.name}: {solution.status}" + (f", {solution.cost:.5g}" if solution.tour else "")
    if solution.pyvrp_tour:
        title += f"\nPyVRP (wide) {solution.pyvrp_cost:.5g}"
    return title, places, np.array(solution.tour, dtype=int), np.array(solution.pyvrp_tour, dtype=int)


def _said(solution: Solution) -> str:
    if solution.status == "solved":
        return f"{solution.name}: tour of length {solution.cost:.5g} by {solution.found_by}, all windows kept"
    if solution.status == "infeasible":
        return f"{solution.name}: no tour exists, proved by {solution.proof}"
    return f"{solution.name}: no tour found and none ruled out; allow more --backtracks"
