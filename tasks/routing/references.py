"""Prepare stage of the reference solvers: PyVRP and OR-Tools on the first instances of each test set, beside the exact answers.

They are references, not competitors: neither learns, and their effort is counted in iterations, so that results do not depend on the
machine.
`references.parquet` has a row per (set, solver, instance). Seconds per instance go to the timings.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from pydantic import Field

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import bootstrap_interval
from tasks.routing.instances import Instances
from tasks.routing.readers import read_instances
from tasks.routing.reference_solvers import solve_with_ortools, solve_with_pyvrp


class SolverParams(Params):
    """How much a solver does: instances of each set, and iterations (PyVRP) or accepted solutions (OR-Tools) for each."""

    sets: tuple[str, ...] = ("hard",)
    instances: int = Field(64, ge=1)
    effort: int = Field(500, ge=1)


class ReferenceParams(Params):
    """The two solvers."""

    pyvrp: SolverParams = SolverParams()
    ortools: SolverParams = SolverParams(instances=8, effort=50)


class _Job(NamedTuple):
    solver: str
    name: str
    instances: Instances
    effort: int


def prepare(params: ReferenceParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Solve and compare with the exact cost; an instance left without a tour counts as unsolved, not as infeasible."""
    jobs, costs = [], []
    for solver, given in (("pyvrp", params.pyvrp), ("ortools", params.ortools)):
        for name in given.sets:
            instances, held = read_instances(inputs.file("prepare", f"{name}-test.safetensors"))
            most = min(given.instances, len(instances))
            for part in torch.arange(most).tensor_split(min(4, most)):
                jobs.append(_Job(solver, name, instances.take(part), given.effort))
                costs.append(held["cost"][part].numpy())
    done = list(log.progress(map_parallel(_solve, jobs), total=len(jobs), desc="solvers"))
    frames = [
        pd.DataFrame({"set": job.name, "solver": job.solver, "found": found, "cost": known, "seconds": seconds / len(found)})
        for job, known, (found, seconds) in zip(jobs, costs, done, strict=True)
    ]
    table = pd.concat(frames, ignore_index=True)
    table["gap"] = table["found"] / table["cost"] - 1
    write_parquet(out / "references.parquet", table.drop(columns="seconds"))
    metrics: Metrics = {}
    for _, rows in table.groupby(["set", "solver"]):
        name, solver = str(rows["set"].iloc[0]), str(rows["solver"].iloc[0])
        solved = np.isfinite(rows["found"].to_numpy())
        metrics[f"{solver}.ins_infeas.{name}"] = float(1 - solved.mean())
        gaps = rows["gap"].to_numpy()
        gaps = gaps[np.isfinite(gaps)]
        if gaps.size:
            lo, hi = bootstrap_interval(gaps, np.random.default_rng(0))
            key = f"{solver}.gap.{name}"
            metrics |= {key: float(gaps.mean()), f"{key}.lo": lo, f"{key}.hi": hi, f"{key}.n": float(gaps.size)}
        log.timing(**{f"{solver}_{name}_s_per_instance": float(rows["seconds"].mean())})
    return metrics


def _solve(job: _Job) -> tuple[np.ndarray, float]:
    solve = solve_with_pyvrp if job.solver == "pyvrp" else solve_with_ortools
    started = time.process_time()
    found = [solve(job.instances.take(slice(i, i + 1)), job.effort).cost for i in range(len(job.instances))]
    return np.array(found), time.process_time() - started
