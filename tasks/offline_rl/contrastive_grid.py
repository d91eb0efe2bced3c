"""Stage that judges the grid of lambda and sigma: is the method as insensitive as the paper says?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.offline_rl import contrastive_figures as figures
from tasks.offline_rl.policy_selection import ArmJob, judge_arm
from tasks.offline_rl.preference_arms import grid_name


class GridParams(Params):
    """The grid that was trained.

    Attributes:
        dataset: name.
        seeds: data sets.
        base: the arm that the grid varies.
        biases: lambdas; sigmas: standard deviations.
        claimed_biases: the part of the grid that the claim speaks of; claimed_sigmas: likewise.
        unbiased: lambdas of the control, where the asymmetric weight is switched off at the far end.
        resamples: of the bootstrap over seeds.
        seed: of the bootstrap.
    """

    dataset: str = "medium"
    seeds: int = Field(6, ge=1)
    base: str = "preforl"
    biases: tuple[float, ...] = (0.2, 0.3, 0.5, 0.8, 1.0)
    sigmas: tuple[float, ...] = (0.1, 0.3, 1.0)
    claimed_biases: tuple[float, ...] = (0.3, 0.5, 0.8)
    claimed_sigmas: tuple[float, ...] = (0.1, 0.3)
    unbiased: tuple[float, ...] = (0.3, 0.5, 1.0)
    resamples: int = Field(2000, ge=1)
    seed: int = Field(0, ge=0)


def evaluate(params: GridParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: metrics `<base>_l<..>_s<..>.success.<data>`, and `{grid,grid_unbiased}.success_range.<data>` with bootstrap intervals."""
    file = inputs.file("train-robustness", f"{params.dataset}.safetensors")
    cells = [(b, s) for b in params.biases for s in params.sigmas]
    jobs = [ArmJob(params.dataset, grid_name(params.base, b, s), (file,), inputs["prepare"], params.seeds) for b, s in cells]
    found = log.progress(map_parallel(judge_arm, jobs), total=len(jobs), desc="roll out")
    success = {cell: selection.success for cell, selection in zip(cells, found, strict=True)}
    metrics: Metrics = {}
    for (b, s), values in success.items():
        metrics |= summarise(f"{grid_name(params.base, b, s)}.success.{params.dataset}", values)
    for arm, biases in (("grid", params.claimed_biases), ("grid_unbiased", params.unbiased)):
        chosen = np.stack([success[b, s] for b in biases for s in params.claimed_sigmas])
        metrics |= range_of_means(
            f"{arm}.success_range.{params.dataset}", chosen, np.random.default_rng([params.seed, 9]), params.resamples
        )
    log.figure("grid", figures.grid(_means(success, params.biases, params.sigmas), params.biases, params.sigmas))
    return metrics


def _means(success: dict[tuple[float, float], np.ndarray], biases: Sequence[float], sigmas: Sequence[float]) -> np.ndarray:
    return np.array([[success[b, s].mean() for s in sigmas] for b in biases])


def range_of_means(name: str, values: np.ndarray, rng: np.random.Generator, resamples: int = 2000) -> Metrics:
    """Largest minus smallest mean over settings, with a percentile interval from resampling seeds.

    Resampling adds noise to every mean, so the interval leans to large ranges: it errs against a claim that the range is small.

    Args:
        name: of the metric.
        values: (settings, seeds).
        rng: of the bootstrap.
        resamples: of the seeds.

    Raises:
        ValueError: unless there are settings and seeds.

    Example:
        >>> round(range_of_means("range", np.array([[0.5, 0.5], [0.7, 0.7]]), np.random.default_rng(0))["range.hi"], 6)
        0.2
    """
    if values.ndim != 2 or 0 in values.shape:
        raise ValueError(f"needs values (settings, seeds), got {values.shape}")
    means = values.mean(1)
    picks = rng.integers(values.shape[1], size=(resamples, values.shape[1]))
    drawn = values[:, picks].mean(-1)  # (settings, resamples)
    lo, hi = np.quantile(drawn.max(0) - drawn.min(0), [0.025, 0.975])
    point = float(means.max() - means.min())
    return {name: point, f"{name}.lo": min(float(lo), point), f"{name}.hi": max(float(hi), point), f"{name}.n": float(values.shape[1])}
