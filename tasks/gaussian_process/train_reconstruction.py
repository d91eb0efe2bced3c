"""Training stage of image reconstruction: DSVI, DDVI and DBVI fill in hidden pixels, from a common warm start.

Arms share kernels, inducing inputs, latent coordinates and noise at the start (a few steps of DSVI), images, masks, minibatches and
steps. `frozen` is DBVI with its amortiser frozen at zero and noise of its own: the negative control. `mean_image` predicts every hidden
pixel from the images that show it. Metrics are called `<arm>.<quantity>.masked_<set>`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field
from torch import Tensor, nn

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import paired, summarise
from tasks.gaussian_process.datasets import masked_file
from tasks.gaussian_process.diffusion_bridge import BridgeParams, BridgePosterior
from tasks.gaussian_process.experiment import load_shared, shared_state
from tasks.gaussian_process.gaussian import GaussianPosterior
from tasks.gaussian_process.masked_images import MaskedImages, load_masked
from tasks.gaussian_process.reconstruction import LatentDeepGP, build_latent, image_numbers, judge_hidden, judge_mean_image
from tasks.gaussian_process.reconstruction_figures import examples
from tasks.gaussian_process.streams import SeedStreams
from tasks.gaussian_process.train_bridge import CENTERS, freeze_amortisers, layer_streams
from tasks.gaussian_process.training import TEST, FitParams
from tasks.gaussian_process.training import train as fit_model
from tasks.gaussian_process.warmstart import VARIANT

Arm = Literal["dsvi", "ddvi", "frozen", "dbvi"]
ARMS: tuple[Arm, ...] = ("dsvi", "ddvi", "frozen", "dbvi")
MEAN_IMAGE = "mean_image"
SHOWN = 8
"""Images in the figure."""


class ReconstructionParams(Params):
    """What is reconstructed, and how.

    Attributes:
        images: a set that the prepare stage masked.
        seeds: sets of images and masks 0 to seeds - 1.
        steps: of training.
        warm_steps: of DSVI before, for all arms.
        depth: L.
        inducing: M.
        fit: training; its curve and scores are not used.
        draws: posterior draws for the scores.
        bridge: the diffusion; its center follows from the arm.
        device: where models are trained.
    """

    images: Literal["digits", "frey"] = "digits"
    seeds: int = Field(5, ge=1)
    steps: int = Field(200, ge=1)
    warm_steps: int = Field(100, ge=1)
    depth: int = Field(2, ge=1)
    inducing: int = Field(32, ge=1)
    fit: FitParams = FitParams(batch=100)
    draws: int = Field(50, ge=1)
    bridge: BridgeParams = BridgeParams()
    device: Literal["cpu", "cuda"] = "cpu"


@dataclass(frozen=True)
class _Job:
    folder: Path
    params: ReconstructionParams
    arm: Arm = "dsvi"
    start: dict[str, Tensor] | None = None

    @property
    def seeds(self) -> list[int]:
        return list(range(self.params.seeds))

    def images(self) -> list[MaskedImages]:
        return [load_masked(self.folder / masked_file(self.params.images, seed)) for seed in self.seeds]


@dataclass(frozen=True)
class _Done:
    quantities: dict[str, np.ndarray]
    pictures: np.ndarray
    seconds: float


def train(params: ReconstructionParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `runs.parquet` (arm, data, seed, quantity, value) of all arms, and a figure of examples.

    Raises:
        FileNotFoundError: if the prepare stage did not mask these images for as many seeds.
    """
    first = _Job(inputs["prepare"], params)
    for seed in first.seeds:
        inputs.file("prepare", masked_file(params.images, seed))
    images, name = first.images(), f"masked_{params.images}"
    workers = 1 if params.device == "cuda" else None
    (start,) = map_parallel(_warm, [first], workers=workers)
    jobs = [_Job(first.folder, params, arm, start) for arm in reversed(ARMS)]  # the longest first
    done = list(log.progress(map_parallel(_one, jobs, workers=workers), total=len(jobs), desc="reconstruct"))
    found = {job.arm: result for job, result in zip(jobs, done, strict=True)}
    reference = [judge_mean_image(image) for image in images]
    values: dict[str, dict[str, np.ndarray]] = {arm: found[arm].quantities for arm in ARMS}
    values[MEAN_IMAGE] = {q: np.array([scores[q] for scores in reference]) for q in reference[0]}
    _write(out, name, values)
    metrics: Metrics = {}
    for arm, quantities in values.items():
        for quantity, by_seed in quantities.items():
            metrics |= summarise(f"{arm}.{quantity}.{name}", by_seed)
    for arm, other in product(("dbvi", "frozen"), ("ddvi", "dsvi")):
        for quantity in ("rmse", "nll", "elbo"):
            a, b = f"{arm}.{quantity}.{name}", f"{other}.{quantity}.{name}"
            metrics |= paired(f"{a}-{b}", values[arm][quantity], values[other][quantity])
    pictures = {arm.upper(): found[arm].pictures for arm in ("ddvi", "dbvi")}
    log.figure("reconstruction", examples(images[0], pictures, min(SHOWN, len(images[0].images))))
    log.timing(**{f"train_ms_per_step_{arm}_{name}": 1000 * found[arm].seconds for arm in ARMS})
    return metrics


def _write(out: Path, name: str, values: dict[str, dict[str, np.ndarray]]) -> None:
    rows = [
        (arm, name, seed, quantity, float(value))
        for arm, quantities in sorted(values.items())
        for quantity, by_seed in sorted(quantities.items())
        for seed, value in enumerate(by_seed)
    ]
    write_parquet(out / "runs.parquet", pd.DataFrame(rows, columns=["arm", "data", "seed", "quantity", "value"]))


def _model(job: _Job, images: list[MaskedImages]) -> LatentDeepGP:
    params, streams = job.params, layer_streams(job.seeds)
    bridge = params.bridge.model_copy(update={"center": CENTERS.get(job.arm, "zero")})

    def posterior(inducing: int, features: int, outputs: int) -> nn.Module:
        if job.arm == "dsvi":
            return GaussianPosterior(len(job.seeds), inducing, outputs)
        return BridgePosterior(inducing, features, outputs, bridge, next(streams))

    return build_latent(images, params.inducing, params.depth, job.seeds, posterior, device=params.device)


def _warm(job: _Job) -> dict[str, Tensor]:
    images = job.images()
    model = _model(job, images)
    fit_model(model, image_numbers(images, job.params.device), _unscored(job.params.fit), job.params.warm_steps, job.seeds, VARIANT)
    return shared_state(model)


def _one(job: _Job) -> _Done:
    images = job.images()
    model = _model(job, images)
    if job.start is not None:
        load_shared(model, job.start)
    if job.arm == "frozen":
        freeze_amortisers(model)
    before = time.perf_counter()
    variant = int(job.arm == "frozen")
    fit = fit_model(model, image_numbers(images, job.params.device), _unscored(job.params.fit), job.params.steps, job.seeds, variant)
    seconds = (time.perf_counter() - before) / job.params.steps
    scores = judge_hidden(model, images, job.params.draws, SeedStreams(job.seeds, TEST, job.params.device))
    found: dict[str, Any] = fit.final()
    mean, _ = model.reconstruct(job.params.draws, SeedStreams(job.seeds, TEST, job.params.device))
    pictures = mean[0, :, :SHOWN].mean(0).cpu().double().numpy()
    return _Done({"elbo": found["elbo"], "kl": found["kl"], **scores}, pictures, seconds)


def _unscored(fit: FitParams) -> FitParams:
    return fit.model_copy(update={"curve": 0, "draws": 0})
