"""What the stages that train deep GPs have in common: sets and seeds, the architecture, the warm start, tables of results.

A result is one number of one arm on one data set and seed: `runs.parquet` (arm, data, seed, quantity, value); along the way,
`curves.parquet` (arm, data, seed, step, quantity, value).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import pandas as pd
from pydantic import Field
from torch import Tensor, nn

from tasks.common.formats import read_parquet, write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.gaussian_process.deep_gp import DeepGP, build_layers
from tasks.gaussian_process.likelihoods import make_likelihood
from tasks.gaussian_process.problem import InducingStart, Problem, inducing_inputs, stack_splits
from tasks.gaussian_process.splits import load_split
from tasks.gaussian_process.training import Fit, FitParams

W = TypeVar("W")

POSTERIORS = "posteriors."
REPORTED = ("elbo", "kl", "rmse", "nll", "coverage", "accuracy", "outlying")
"""Quantities that a training stage reports itself, where the task has them."""


class Architecture(Params):
    """The network of Gaussian processes.

    Attributes:
        depth: L, layers.
        inducing: M, inducing inputs of every layer.
        hidden: width of hidden layers; the number of features when None.
        start: of the inducing inputs.
        jitter: relative jitter of Gram matrices.
    """

    depth: int = Field(2, ge=1)
    inducing: int = Field(32, ge=1)
    hidden: int | None = Field(None, ge=1)
    start: InducingStart = "kmeans"
    jitter: float = Field(1e-4, ge=0.0, le=1e-2)


class SetParams(Params):
    """How much of a data set's work is done.

    Attributes:
        seeds: splits 0 to seeds - 1.
        steps: of training.
    """

    seeds: int = Field(5, ge=1)
    steps: int = Field(500, ge=1)


class TrainParams(Params):
    """Which sets, and what is trained on them.

    Attributes:
        data: per set its seeds and steps.
        architecture: of all models.
        fit: training and judging.
        device: where models are trained.
    """

    data: dict[str, SetParams] = Field({"concrete": SetParams(), "boston": SetParams(steps=300)}, min_length=1)
    architecture: Architecture = Architecture()
    fit: FitParams = FitParams()
    device: Literal["cpu", "cuda"] = "cpu"


@dataclass(frozen=True)
class Work:
    """One data set's share of a training stage; goes to a process of a pool.

    Attributes:
        prepared: folder with the splits.
        warm: folder with warm starts.
        name: of the data set.
        params: of the stage.
    """

    prepared: Path
    warm: Path
    name: str
    params: TrainParams

    @property
    def seeds(self) -> list[int]:
        """Seeds of the splits."""
        return list(range(self.params.data[self.name].seeds))

    @property
    def steps(self) -> int:
        """Steps of training."""
        return self.params.data[self.name].steps

    def problem(self) -> Problem:
        """The splits of all seeds."""
        return stack_splits([load_split(self.prepared, self.name, seed) for seed in self.seeds], self.params.device)


@dataclass(frozen=True)
class Outcome:
    """What came of it: both tables, and how long a step took."""

    runs: pd.DataFrame
    curves: pd.DataFrame
    seconds: dict[str, float]


def new_model(
    problem: Problem,
    architecture: Architecture,
    seeds: Sequence[int],
    posterior: Callable[[int, int, int, Callable[[], Tensor]], nn.Module],
) -> DeepGP:
    """An untrained model.

    Args:
        problem: for shapes, inducing inputs, and the likelihood.
        architecture: of the layers.
        seeds: one per replica.
        posterior: (M, D, d, function that gives the factor of K_ZZ) -> posterior of a layer.
    """
    z = inducing_inputs(problem.x, architecture.inducing, seeds, architecture.start)
    layers = build_layers(z, problem.x, architecture.depth, problem.outputs, architecture.hidden, jitter=architecture.jitter)
    posteriors = [posterior(layer.z.shape[1], layer.z.shape[2], layer.outputs, layer.factor) for layer in layers]
    model = DeepGP(layers, posteriors, make_likelihood(problem.likelihood, len(seeds)))
    return model.to(problem.x.device, problem.x.dtype)


def shared_state(model: DeepGP) -> dict[str, Tensor]:
    """Kernels, inducing inputs, mean functions and noise: everything but the posteriors."""
    return {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items() if not k.startswith(POSTERIORS)}


def load_shared(model: DeepGP, state: dict[str, Tensor]) -> None:
    """Start a model from `shared_state` of another, with whatever posterior.

    Raises:
        ValueError: if the state does not fit the model's layers, naming what differs.
    """
    own = {k: v.shape for k, v in model.state_dict().items() if not k.startswith(POSTERIORS)}
    given = {k: v.shape for k, v in state.items()}
    if own != given:
        names = sorted(k for k in own.keys() | given.keys() if own.get(k) != given.get(k))
        raise ValueError(f"the warm start does not fit the model: {', '.join(names)} differ; run `warmstart` with these parameters")
    model.load_state_dict(state, strict=False)


def warm_file(name: str) -> str:
    """Name of the file with a data set's warm start."""
    return f"{name}.safetensors"


def read_warm(folder: Path, name: str, seeds: int) -> dict[str, Tensor]:
    """The warm start of a data set for seeds 0 to `seeds` - 1.

    Raises:
        FileNotFoundError: if the warm-start stage did not have this set.
        ValueError: if it had fewer seeds.
    """
    from safetensors.torch import load_file

    path = folder / warm_file(name)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; name {name!r} in the parameters of `warmstart`")
    state = {key: value[:seeds] for key, value in load_file(path).items()}
    if (found := min(len(value) for value in state.values())) < seeds:
        raise ValueError(f"{path} holds {found} seeds, but {seeds} are asked for; give `warmstart` as many")
    return state


def tables(arm: str, name: str, seeds: Sequence[int], fit: Fit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of `runs.parquet` and `curves.parquet`; the curve of the bound is its mean between two marks."""
    runs = [(arm, name, seed, q, float(v)) for q, values in fit.final().items() for seed, v in zip(seeds, values, strict=True)]
    points = [(step, q, values) for step, q, values in fit.curve]
    marks = sorted({step for step, _, _ in points})
    for before, after in zip([0, *marks], marks, strict=False):
        points.append((after, "elbo", fit.elbo[before:after].mean(0)))
    curves = [(arm, name, seed, step, q, float(v)) for step, q, values in points for seed, v in zip(seeds, values, strict=True)]
    return (
        pd.DataFrame(runs, columns=["arm", "data", "seed", "quantity", "value"]),
        pd.DataFrame(curves, columns=["arm", "data", "seed", "step", "quantity", "value"]),
    )


def set_items(params: TrainParams, inputs: Inputs) -> list[Work]:
    """One piece of work per data set, the longest first, so that no process waits for it at the end."""
    names = sorted(params.data, key=lambda name: -params.data[name].seeds * params.data[name].steps)
    return [Work(inputs["prepare"], inputs["warmstart"], name, params) for name in names]


def run_stage(work: Callable[[W], Outcome], items: Sequence[W], device: str, out: Path, log: Log) -> Outcome:
    """Do all work, in a pool on a CPU, and write both tables.

    Args:
        work: module-level function of an item.
        items: what is to be done.
        device: with `cuda` one item after the other.
        out: where `runs.parquet` and `curves.parquet` go.
        log: progress, curves of means over seeds, and milliseconds per step as timings.
    """
    workers = 1 if device == "cuda" else None
    found = list(log.progress(map_parallel(work, items, workers=workers), total=len(items), desc="train"))
    order = ["arm", "data", "seed", "quantity"]
    runs = pd.concat([f.runs for f in found], ignore_index=True).sort_values(order, ignore_index=True)
    curves = pd.concat([f.curves for f in found], ignore_index=True).sort_values([*order, "step"], ignore_index=True)
    write_parquet(out / "runs.parquet", runs)
    write_parquet(out / "curves.parquet", curves)
    means = curves.groupby(["step", "arm", "quantity", "data"])["value"].mean().reset_index()
    for step, part in means.groupby("step"):
        names = part["arm"] + "." + part["quantity"] + "." + part["data"]
        log.history(int(str(step)), **dict(zip(names, part["value"].map(float), strict=True)))
    seconds = {key: value for f in found for key, value in f.seconds.items()}
    log.timing(**{f"train_ms_per_step_{key}": 1000 * value for key, value in seconds.items()})
    return Outcome(runs, curves, seconds)


def report(outcome: Outcome, arms: Iterable[str]) -> Metrics:
    """Metrics `fit_<arm>.<quantity>.<data>` of the quantities in `REPORTED`."""
    wanted = set(arms)
    metrics: Metrics = {}
    for arm, name, quantity, values in groups(outcome.runs):
        if arm in wanted and quantity in REPORTED:
            metrics |= summarise(f"fit_{arm}.{quantity}.{name}", values)
    return metrics


def groups(runs: pd.DataFrame) -> Iterator[tuple[str, str, str, np.ndarray]]:
    """(arm, data, quantity, values over seeds in order of seeds)."""
    for (arm, name, quantity), part in runs.groupby(["arm", "data", "quantity"]):
        yield str(arm), str(name), str(quantity), part.sort_values("seed")["value"].to_numpy()


def read_tables(folders: Iterable[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both tables of several training stages, one under the other."""
    several = list(folders)
    return tuple(pd.concat([read_parquet(f / name) for f in several], ignore_index=True) for name in ("runs.parquet", "curves.parquet"))  # type: ignore[return-value]
