"""What a deep GP predicts for new rows: S posterior draws through the network, and how good they are on test rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tasks.gaussian_process import predictive_metrics as scores
from tasks.gaussian_process.deep_gp import DeepGP
from tasks.gaussian_process.layers import Inducing
from tasks.gaussian_process.problem import Problem
from tasks.gaussian_process.streams import SeedStreams

ROWS_AT_ONCE = 2000
OUTLYING = 10.0
"""A draw is outlying if a prediction leaves +-10 standard deviations of the training targets."""


@torch.no_grad()
def predict(
    model: DeepGP,
    x: Tensor,
    draws: int,
    streams: SeedStreams,
    inducing: Sequence[Inducing] | None = None,
    common_noise: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Components of the predictive mixture.

    Args:
        model: R replicas.
        x: (R, T, D).
        draws: S, at least 1.
        streams: of the draws.
        inducing: per layer samples to use in place of draws from the model's posteriors.
        common_noise: a row's result does not depend on which other rows x holds; see `DeepGP.propagate`.

    Returns:
        means and variances of f, (R, S, T, d), float64; for a Gaussian likelihood the variance holds the noise too.

    Raises:
        ValueError: for draws below 1 or x of another width than the model.
    """
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}")
    variables = model.draw(draws, streams) if inducing is None else inducing
    parts = [
        model.propagate(part, variables, draws, streams.copy() if common_noise else streams, common_noise)
        for part in torch.split(x, ROWS_AT_ONCE, dim=1)
    ]
    mean = torch.cat([m for m, _ in parts], 2)
    variance = torch.cat([v.expand_as(m) for m, v in parts], 2)
    if hasattr(model.likelihood, "noise"):
        variance = variance + model.likelihood.noise()[:, None, None, None]
    return mean.cpu().double().numpy(), variance.cpu().double().numpy()


def judge(
    model: DeepGP, problem: Problem, draws: int, streams: SeedStreams, inducing: Sequence[Inducing] | None = None
) -> dict[str, np.ndarray]:
    """Scores on the test rows, each (R,).

    Regressions: `rmse`, `nll` (original units), `rmse_sd` (in standard deviations of the target), `coverage` of central 95 %
    intervals. Classifications: `accuracy`, `nll` (nats per row), and `auc` for two classes. Both: `outlying`, the share of
    draws that leave the range of `OUTLYING`.
    """
    mean, variance = predict(model, problem.x_test, draws, streams, inducing)
    y = problem.y_test.cpu().numpy()
    outlying = (np.abs(mean).max(axis=(2, 3)) > OUTLYING).mean(axis=1)
    if problem.classes:
        noise = streams.normal(*mean.shape[1:]).cpu().double().numpy()
        logits = mean + np.sqrt(variance) * noise
        probabilities = scores.class_probabilities(logits)
        found = {"accuracy": scores.accuracy(probabilities, y), "nll": -scores.categorical_log_likelihood(logits, y)}
        if problem.classes == 2:
            found["auc"] = scores.auc(probabilities[..., 1], y)
        return found | {"outlying": np.zeros(len(y))}
    mean, variance, sd = mean[..., 0], variance[..., 0], problem.y_sd
    error = scores.rmse(scores.mixture_mean(mean), y)
    return {
        "rmse": error * sd,
        "rmse_sd": error,
        "nll": scores.mixture_nll(mean, variance, y, sd),
        "coverage": scores.mixture_coverage(mean, variance, y),
        "outlying": outlying,
    }
