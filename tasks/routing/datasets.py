"""Prepare stage: instances with their exact answers, for training by imitation, for validation and for the test.

Per set `<name>`: `<name>-test.safetensors` (feasible instances with `cost`, inf where unknown), `<name>-validation.safetensors` likewise,
`<name>-infeasible.safetensors` (instances of the test that provably have no tour, if any) and `<name>-labels.safetensors` (instances with
an optimal `tour`). The medium generator makes instances without a tour; the paper's larger ones are nearly all feasible. The main
measurements therefore use feasible instances, and the others measure proofs.
"""

from __future__ import annotations

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

TEST_SEED, VALIDATION_SEED, LABEL_SEED = 2025, 4321, 777


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
    metrics: Metrics = {}
    for name, given in log.progress(params.sets.items(), desc="sets"):
        parts = {"test": (given.test, TEST_SEED), "validation": (given.validation, VALIDATION_SEED), "labels": (given.labels, LABEL_SEED)}
        for part, (count, seed) in parts.items():
            if count == 0:
                continue
            made = read_test(given, count) if part == "test" and given.file else draw(given, count, seed)
            effort = given.label_effort if part == "labels" else MOST_LABELS
            found = label(made, given.reference, given.iterations, effort)
            none = torch.isnan(found.cost) if part != "labels" else ~torch.isfinite(found.cost)
            kept = made.take(~none)
            extra = {"cost": found.cost[~none], "tour": found.tour[~none]} if part == "labels" else {"cost": found.cost[~none]}
            if len(kept) == 0:
                raise ValueError(f"set {name!r}: none of {count} instances has a tour; take other sizes")
            write_instances(out / f"{name}-{part}.safetensors", kept, **extra)
            if part == "test":
                if none.any():
                    write_instances(out / f"{name}-infeasible.safetensors", made.take(none))
                metrics[f"feasible_share.{name}"] = float((~none).double().mean())
                metrics[f"instances.{name}"] = float(len(kept))
                known = found.cost[~none]
                metrics |= summarise(f"optimal.length.{name}", known[torch.isfinite(known)].numpy()) if torch.isfinite(known).any() else {}
    write_json(out / "sets.json", {name: given.model_dump() for name, given in params.sets.items()})
    return metrics


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
    size = max(1, min(500, len(instances) // 8 + 1))
    chunks = [instances.take(slice(at, at + size)) for at in range(0, len(instances), size)]
    done = list(map_parallel(_label, [_Job(chunk, reference, iterations, most_labels) for chunk in chunks]))
    cost, tour = (torch.cat([torch.as_tensor(part[i]) for part in done]) for i in range(2))
    return Labelled(join(chunks), cost, tour)


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
