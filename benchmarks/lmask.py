"""Decoded instances per second of LMask, of PIP's decoding and of PyVRP, and how they grow with N, at equal feasibility.

The network is untrained but for a short imitation, which is the same for LMask and PIP; rates depend on how often it backtracks. PyVRP runs
until its first feasible tour, and for the iterations that `--iterations` says. CPU seconds of this process, one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from tasks.routing.attention_model import AttentionModel
from tasks.routing.exact import arrays_of, solve_exactly
from tasks.routing.generators import random_tsptw
from tasks.routing.imitation import ImitationParams, imitate
from tasks.routing.instances import Instances
from tasks.routing.lazymask import lazy_decode
from tasks.routing.reference_solvers import solve_with_pyvrp


def rate(count: int, work: Callable[[], float]) -> tuple[float, float]:
    """Instances per CPU second, and the share that `work` says was feasible."""
    started = time.process_time()
    share = work()
    return count / (time.process_time() - started), share


def trained(updates: int) -> AttentionModel:
    """A network that has imitated exact tours of 20 nodes; it decodes any N."""
    generator = torch.Generator().manual_seed(0)
    instances = random_tsptw(2000, 20, "hard", generator)
    tours = torch.stack([torch.as_tensor(solve_exactly(arrays).tour) for arrays in arrays_of(instances)])
    model = AttentionModel("tsptw", 64, 4, 2, 128, generator=generator)
    imitate(model, instances, tours, ImitationParams(updates=updates), generator)
    return model.eval()


def decoded(instances: Instances, model: AttentionModel, budget: int) -> float:
    """Decode a batch; the share of feasible tours."""
    return float(lazy_decode(instances, model.scorer(instances), budget).solved.double().mean())


def solved(instances: Instances, iterations: int) -> float:
    """Solve one by one with PyVRP; the share of feasible tours."""
    return sum(solve_with_pyvrp(instances.take(slice(i, i + 1)), iterations).found for i in range(len(instances))) / len(instances)


def main() -> None:
    """Measure and print one line per N and method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[20, 50, 100])
    parser.add_argument("--instances", type=int, default=500)
    parser.add_argument("--solver-instances", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--updates", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = trained(arguments.updates)
    print(f"{'N':>4} {'method':24} {'instances/s':>12} {'feasible':>9}")
    for nodes in arguments.nodes:
        batch = random_tsptw(arguments.instances, nodes, "hard", torch.Generator().manual_seed(2025))
        few = batch.take(slice(0, arguments.solver_instances))
        for name, count, work in (
            ("LMask, R = 200", len(batch), lambda batch=batch: decoded(batch, model, 200)),
            ("PIP decoding, R = 0", len(batch), lambda batch=batch: decoded(batch, model, 0)),
            (f"PyVRP, {arguments.iterations} iterations", len(few), lambda few=few: solved(few, arguments.iterations)),
        ):
            speed, share = rate(count, work)
            print(f"{nodes:4} {name:24} {speed:12.1f} {100 * share:8.1f}%")


if __name__ == "__main__":
    main()
