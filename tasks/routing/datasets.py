"""Prepare stage: instances with their exact answers, for training by imitation, for validation and for the test.

Per set `<name>`: `<name>-test.safetensors` (feasible instances with `cost`, inf where unknown), `<name>-validation.safetensors` likewise,
`<name>-infeasible.safetensors` (instances of the test that provably have no tour, if any) and `<name>-labels.safetensors` (instances with
an optimal `tour`). The medium generator makes instances without a tour; the paper's larger ones are nearly all feasible. The main
measurements therefore use feasible instances, and the others measure proofs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, model_validator

from tasks.common.formats import write_json
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.routing.exact import MOST_LABELS, DpTooLarge, arrays_of, solve_exactly
from tasks.routing.generators import Hardness, random_tspdl, random_tsptw
from tasks.routing.instances import Instances, Problem, join
from tasks.routing.readers import read_dumas, read_npz, write_instances
from tasks.routing.reference_solvers import solve_with_ortools, solve_with_pyvrp

PARTS = {"test": 2025, "validation": 4321, "labels": 777}
"""Parts of a set and their seeds."""
CHUNK = 250
FEW_JOBS = 12


class SetParams(Params):
    """One set of instances.

    Attributes:
        problem, hardness, nodes: which generator; `nodes` counts the depot.
        test: instances of the test, before those without a tour are put aside.
        validation: instances that training may look at.
        labels: instances with optimal tours, for imitation.
        label_effort: labels of dynamic programming after which an instance is not imitated; the largest are left out.
        reference: how costs are found; `pyvrp` and `ortools` prove nothing, so that an instance they leave is kept as unknown.
        iterations: of PyVRP, or solutions of OR-Tools.
        file: the benchmark's NPZ, or a folder of Dumas text files with this many nodes each, read instead of a generated test.
    """

    problem: Problem = "tsptw"
    hardness: Hardness = "hard"
    nodes: int = Field(20, ge=3)
    test: int = Field(400, ge=2)
    validation: int = Field(100, ge=2)
    labels: int = Field(0, ge=0)
    label_effort: int = Field(20_000, ge=1)
    reference: Literal["exact", "pyvrp", "ortools"] = "exact"
    iterations: int = Field(500, ge=1)
    file: str = ""

    @model_validator(mode="after")
    def _labels_are_exact(self) -> SetParams:
        if self.labels and self.reference != "exact":
            raise ValueError(f"labels come from exact search, got labels = {self.labels} with reference {self.reference!r}")
        return self


class PrepareParams(Params):
    """The sets by name."""

    sets: dict[str, SetParams] = Field({"hard": SetParams()}, min_length=1)


class Labelled(NamedTuple):
    """Instances with their costs (inf: unknown, NaN: proved infeasible) and tours (zeros where there is none)."""

    instances: Instances
    cost: torch.Tensor
    tour: torch.Tensor


class _Job(NamedTuple):
    instances: Instances
    reference: str
    iterations: int
    most_labels: int


def prepare(params: PrepareParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Make, label and write all sets; reports the share of feasible instances and the mean optimal length."""
    parts = [(name, part) for name in params.sets for part in PARTS if _count(params.sets[name], part)]
    made = [_draw_part(params.sets[name], part) for name, part in parts]
    asked = [
        (batch, given.reference, given.iterations, given.label_effort if part == "labels" else MOST_LABELS)
        for batch, (name, part) in zip(made, parts, strict=True)
        for given in [params.sets[name]]
    ]
    metrics: Metrics = {}
    for (name, part), found in zip(parts, label_all(asked, log), strict=True):
        none = ~torch.isfinite(found.cost) if part == "labels" else torch.isnan(found.cost)
        kept = found.instances.take(~none)
        if len(kept) == 0:
            raise ValueError(f"set {name!r}: none of {len(none)} instances has a tour; take other sizes")
        extra = {"tour": found.tour[~none]} if part == "labels" else {}
        write_instances(out / f"{name}-{part}.safetensors", kept, cost=found.cost[~none], **extra)
        if part == "test":
            if none.any():
                write_instances(out / f"{name}-infeasible.safetensors", found.instances.take(none))
            metrics[f"feasible_share.{name}"] = float((~none).double().mean())
            metrics[f"instances.{name}"] = float(len(kept))
            known = found.cost[torch.isfinite(found.cost)]
            metrics |= summarise(f"optimal.length.{name}", known.numpy()) if len(known) else {}
    write_json(out / "sets.json", {name: given.model_dump() for name, given in params.sets.items()})
    return metrics


def _count(given: SetParams, part: str) -> int:
    return int(getattr(given, part))


def _draw_part(given: SetParams, part: str) -> Instances:
    if part == "test" and given.file:
        return read_test(given, given.test)
    return draw(given, _count(given, part), PARTS[part])


def read_test(given: SetParams, count: int) -> Instances:
    """Instances of the files that a set names.

    Raises:
        ValueError: if they are of another problem or size, or there are none.
    """
    path = Path(given.file).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file())
        found = [read_dumas(file).instances for file in files][:count]
        if sizes := sorted({one.nodes for one in found} - {given.nodes}) or not found:
            raise ValueError(f"{path} must hold Dumas files of {given.nodes} nodes each, got {len(found)} files, others of {sizes}")
        made = join(found)
    else:
        made = read_npz(path, count)
    if (made.problem, made.nodes) != (given.problem, given.nodes):
        raise ValueError(f"{path} holds {made.problem} with {made.nodes} nodes, wanted are {given.problem} with {given.nodes}")
    return made


def draw(given: SetParams, count: int, seed: int) -> Instances:
    """Instances of a set, as a function of the seed."""
    generator = torch.Generator().manual_seed(seed)
    make = random_tsptw if given.problem == "tsptw" else random_tspdl
    return make(count, given.nodes, given.hardness, generator)


def label(instances: Instances, reference: str, iterations: int, most_labels: int = MOST_LABELS) -> Labelled:
    """Costs and tours of a batch; the same whatever the number of processes."""
    return label_all([(instances, reference, iterations, most_labels)])[0]


def label_all(asked: Sequence[tuple[Instances, str, int, int]], log: Log | None = None) -> list[Labelled]:
    """Label several batches, given as the arguments of `label`, in one pool of processes."""
    jobs, owners = [], []
    for owner, (batch, reference, iterations, most_labels) in enumerate(asked):
        for part in torch.arange(len(batch)).split(CHUNK):  # type: ignore[no-untyped-call]
            jobs.append(_Job(batch.take(part), reference, iterations, most_labels))
            owners.append(owner)
    # A handful of instances is labelled sooner than processes start.
    done = map_parallel(_label, jobs, workers=1 if len(jobs) <= FEW_JOBS else None)
    shown = list(log.progress(done, total=len(jobs), desc="instances") if log else done)
    found = []
    for owner, (batch, *_) in enumerate(asked):
        mine = [shown[i] for i, of in enumerate(owners) if of == owner]
        cost, tour = (torch.cat([torch.as_tensor(part[i]) for part in mine]) for i in range(2))
        found.append(Labelled(batch, cost, tour))
    return found


def _label(job: _Job) -> tuple[np.ndarray, np.ndarray]:
    costs, tours = np.full(len(job.instances), np.inf), np.zeros((len(job.instances), job.instances.nodes), dtype=np.int64)
    for i, arrays in enumerate(arrays_of(job.instances)):
        if job.reference == "exact":
            try:
                found = solve_exactly(arrays, job.most_labels)
            except DpTooLarge:
                continue  # stays unknown
            costs[i] = found.cost if found.feasible else np.nan
        else:
            one = job.instances.take(slice(i, i + 1))
            solve = solve_with_pyvrp if job.reference == "pyvrp" else solve_with_ortools
            found = solve(one, job.iterations)  # type: ignore[assignment]
            costs[i] = found.cost
        if len(found.tour):
            tours[i] = found.tour
    return costs, tours
