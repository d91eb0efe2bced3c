"""Leaf stage that measures time per training step, methods side by side in one process, one seed, one thread.

Rounds take every method in turn, and a ratio is taken within a round, so that what else the machine does hits all alike. On a CPU the
clock is that of the process, which stands still while others run; on a GPU it is the wall's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from pydantic import Field

from tasks.common.node import Inputs, Log, Metrics
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.gaussian_process.deep_gp import DeepGP
from tasks.gaussian_process.diffusion_bridge import BridgeParams
from tasks.gaussian_process.experiment import SetParams, TrainParams, Work
from tasks.gaussian_process.problem import Problem
from tasks.gaussian_process.streams import SeedStreams
from tasks.gaussian_process.train_bridge import CENTERS, bridge_model
from tasks.gaussian_process.warmstart import gaussian_model

REFERENCE = "ddvi"
WARM_UP = 3


class SpeedParams(TrainParams):
    """As `TrainParams`; one seed is timed.

    Attributes:
        bridge: the diffusion.
        rounds: repetitions, each of which gives one ratio.
        timed_steps: training steps of each method in a round.
    """

    bridge: BridgeParams = BridgeParams()
    rounds: int = Field(10, ge=2)
    timed_steps: int = Field(10, ge=1)


def training_step(model: DeepGP, problem: Problem, batch: int, samples: int, rate: float = 1e-3) -> Callable[[], None]:
    """A function that takes one step of Adam on the bound of `batch` random rows."""
    streams = SeedStreams([0] * problem.x.shape[0], 0, str(problem.x.device), problem.x.dtype)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    every = torch.arange(problem.x.shape[0], device=problem.x.device)[:, None]

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        rows = streams.rows(problem.rows, batch)
        bound = model.bound(problem.x[every, rows], problem.y[every, rows], problem.rows, samples, streams)
        torch.autograd.backward(-bound.per_datum.sum())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimiser.step()
        if problem.x.is_cuda:
            torch.cuda.synchronize()

    return step


def timed_models(problem: Problem, params: SpeedParams) -> dict[str, DeepGP]:
    """The models that are compared; `dbvi_2k` takes twice as many diffusion steps."""
    arms = {method: params.bridge.model_copy(update={"center": CENTERS[method]}) for method in (REFERENCE, "dbvi", "mean_vector")}
    arms["dbvi_2k"] = arms["dbvi"].model_copy(update={"steps": 2 * params.bridge.steps})
    models = {arm: bridge_model(problem, params.architecture, [0], bridge) for arm, bridge in arms.items()}
    return models | {"dsvi": gaussian_model(problem, params.architecture, [0])}


def rounds_of(
    steps: dict[str, Callable[[], None]], rounds: int, timed_steps: int, clock: Callable[[], float] = time.process_time
) -> list[dict[str, float]]:
    """Milliseconds per step of every arm in every round (median of the steps); the order turns round by round."""
    for step in steps.values():
        for _ in range(WARM_UP):
            step()
    found, names = [], list(steps)
    for number in range(rounds):
        turn = number % len(names)
        row = {}
        for name in names[turn:] + names[:turn]:
            times = []
            for _ in range(timed_steps):
                before = clock()
                steps[name]()
                times.append(1000 * (clock() - before))
            row[name] = statistics.median(times)
        found.append(row)
    return found


def evaluate(params: SpeedParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `<arm>.step_ratio.<data>` to DDVI and `<arm>.step_ms.<data>`, repeated over rounds."""
    metrics: Metrics = {}
    one = params.model_copy(update={"data": {name: SetParams(seeds=1) for name in params.data}})
    for item in [Work(inputs["prepare"], out, name, one) for name in one.data]:  # from no warm start
        (rows,) = map_parallel(_measure, [item], workers=1)
        for arm in rows[0]:
            metrics |= summarise(f"{arm}.step_ms.{item.name}", [row[arm] for row in rows])
            if arm != REFERENCE:
                metrics |= summarise(f"{arm}.step_ratio.{item.name}", [row[arm] / row[REFERENCE] for row in rows])
    return metrics


def _measure(item: Work) -> list[dict[str, float]]:
    params = item.params
    assert isinstance(params, SpeedParams)
    problem = item.problem()
    models = timed_models(problem, params)
    steps = {arm: training_step(model, problem, params.fit.batch, params.fit.samples) for arm, model in models.items()}
    clock = time.perf_counter if params.device == "cuda" else time.process_time
    return rounds_of(steps, params.rounds, params.timed_steps, clock)
