"""Warm-start stage: kernels, inducing inputs and noise after a few steps of DSVI, from which every method starts.

So methods differ in how they infer the inducing variables, and in nothing else. `<set>.safetensors` holds all seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import Field
from torch import Tensor

from tasks.common.node import Inputs, Log, Metrics
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.gaussian_process.deep_gp import DeepGP
from tasks.gaussian_process.experiment import Architecture, TrainParams, Work, new_model, shared_state, warm_file
from tasks.gaussian_process.gaussian import GaussianPosterior
from tasks.gaussian_process.problem import Problem
from tasks.gaussian_process.training import Fit, FitParams, train

VARIANT = 9
"""Noise and minibatches of the warm start are not those of what follows."""


class WarmstartParams(TrainParams):
    """As the training stages.

    Attributes:
        warm_steps: of DSVI; the steps of `data` are those of the training stages, and play no part here.
    """

    warm_steps: int = Field(100, ge=1)


def gaussian_model(problem: Problem, architecture: Architecture, seeds: list[int]) -> DeepGP:
    """An untrained deep GP with Gaussian posteriors."""

    def posterior(inducing: int, features: int, outputs: int, factor: Callable[[], Tensor]) -> GaussianPosterior:
        return GaussianPosterior(len(seeds), inducing, outputs)

    return new_model(problem, architecture, seeds, posterior)


def warm_state(problem: Problem, architecture: Architecture, fit: FitParams, seeds: list[int], steps: int) -> tuple[dict[str, Tensor], Fit]:
    """Kernels, inducing inputs and noise after `steps` steps of DSVI, and how that went."""
    model = gaussian_model(problem, architecture, seeds)
    done = train(model, problem, fit.model_copy(update={"curve": 0, "draws": 0}), steps, seeds, VARIANT)
    return shared_state(model), done


def warmstart(params: WarmstartParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Write the warm start of every set; reports the bound that it reached, in nats per datum."""
    from safetensors.torch import save_file

    items = [Work(inputs["prepare"], out, name, params) for name in params.data]
    workers = 1 if params.device == "cuda" else None
    found = log.progress(map_parallel(_one, items, workers=workers), total=len(items), desc="warm start")
    metrics: Metrics = {}
    for item, (state, fit) in zip(items, found, strict=True):
        save_file(state, out / warm_file(item.name))
        metrics |= summarise(f"warm.elbo.{item.name}", fit.final()["elbo"])
    return metrics


def _one(item: Work) -> tuple[dict[str, Tensor], Fit]:
    params = item.params
    assert isinstance(params, WarmstartParams)
    return warm_state(item.problem(), params.architecture, params.fit, item.seeds, params.warm_steps)
