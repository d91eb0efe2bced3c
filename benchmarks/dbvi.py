"""What DSVI, DDVI and DBVI cost: time per training step side by side, how it grows, and the error reached in equal time.

Everything runs in one process with one thread, methods taking turns, on one split of Concrete. Figures are medians of rounds; ratios are
taken within a round. Seconds are the process's own, so that other work on the machine does not count. Runs for about two minutes on
an idle core; `--rounds` and `--seconds` make it shorter.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from tasks.common.node import Inputs, NullLog
from tasks.gaussian_process.datasets import PrepareParams, prepare
from tasks.gaussian_process.experiment import Architecture
from tasks.gaussian_process.prediction import judge
from tasks.gaussian_process.problem import Problem, stack_splits
from tasks.gaussian_process.speed import SpeedParams, rounds_of, timed_models, training_step
from tasks.gaussian_process.splits import load_split
from tasks.gaussian_process.streams import SeedStreams

METHODS = ("dsvi", "ddvi", "dbvi")
SIZES = ((32, 2), (64, 2), (128, 2), (32, 3), (32, 4))


def concrete() -> Problem:
    """One split of Concrete."""
    with tempfile.TemporaryDirectory() as scratch:
        prepare(PrepareParams(data=("concrete",), seeds=1), Inputs(), Path(scratch), NullLog())
        return stack_splits([load_split(Path(scratch), "concrete", 0)])


def models_of(problem: Problem, inducing: int, depth: int) -> dict[str, torch.nn.Module]:
    """One untrained model per method."""
    params = SpeedParams(architecture=Architecture(inducing=inducing, depth=depth))
    return {name: model for name, model in timed_models(problem, params).items() if name in METHODS}


def step_times(problem: Problem, rounds: int) -> None:
    """Print milliseconds per step and ratios to DDVI, by number of inducing inputs and of layers."""
    print(f"{'M':>4} {'L':>2} " + " ".join(f"{name + ' ms':>9}" for name in METHODS) + "  dsvi/ddvi  dbvi/ddvi")
    for inducing, depth in SIZES:
        models = models_of(problem, inducing, depth)
        rows = rounds_of({name: training_step(model, problem, 256, 2) for name, model in models.items()}, rounds, 5)
        middle = {name: statistics.median(row[name] for row in rows) for name in METHODS}
        ratios = [statistics.median(row[name] / row["ddvi"] for row in rows) for name in ("dsvi", "dbvi")]
        print(f"{inducing:4d} {depth:2d} " + " ".join(f"{middle[n]:9.1f}" for n in METHODS) + f"  {ratios[0]:9.2f}  {ratios[1]:9.2f}")


def equal_time(problem: Problem, seconds: float) -> None:
    """Print the test RMSE that each method has reached after equal times of training, turn by turn."""
    models = models_of(problem, 32, 2)
    steps = {name: training_step(model, problem, 256, 2, rate=0.01) for name, model in models.items()}
    done, spent = dict.fromkeys(METHODS, 0), dict.fromkeys(METHODS, 0.0)
    print(f"{'seconds':>8} " + " ".join(f"{name:>7}" for name in METHODS) + "  (steps)")
    for mark in (seconds * share for share in (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)):
        for name in METHODS:
            while spent[name] < mark:
                before = time.process_time()
                steps[name]()
                spent[name] += time.process_time() - before
                done[name] += 1
        errors = [judge(models[name], problem, 50, SeedStreams([0], 2))["rmse"][0] for name in METHODS]
        print(f"{mark:8.1f} " + " ".join(f"{e:7.2f}" for e in errors) + "  " + " ".join(str(done[name]) for name in METHODS))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=10.0, help="training time of each method in the second table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    problem = concrete()
    step_times(problem, arguments.rounds)
    print()
    equal_time(problem, arguments.seconds)


if __name__ == "__main__":
    main()
