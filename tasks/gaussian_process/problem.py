"""Several splits of one data set as tensors with a leading axis of seeds, and where their inducing inputs start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tasks.gaussian_process.splits import Split

InducingStart = Literal["kmeans", "random"]
KMEANS_ROWS = 2000


@dataclass(frozen=True)
class Problem:
    """R splits of equal shape.

    Attributes:
        x: training inputs (R, N, D).
        y: training targets (R, N): standardised numbers, or class numbers.
        x_test: (R, T, D).
        y_test: (R, T).
        y_sd: units of the target, (R,), NumPy.
        classes: number of classes, 0 for a regression.
    """

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    y_sd: np.ndarray
    classes: int

    @property
    def rows(self) -> int:
        """N."""
        return self.x.shape[1]

    @property
    def outputs(self) -> int:
        """Columns of the last layer: one, or one per class."""
        return self.classes or 1

    @property
    def likelihood(self) -> str:
        """The likelihood that fits the targets."""
        return "softmax" if self.classes else "gaussian"


def stack_splits(splits: Sequence[Split], device: str = "cpu", dtype: torch.dtype = torch.float32) -> Problem:
    """Splits as one problem; all must have equally many rows and features.

    Raises:
        ValueError: for no splits, splits of different shapes or tasks, or values that are not finite.
    """
    if not splits:
        raise ValueError("splits must hold at least one split, got none")
    shapes = {(s.x_train.shape, s.x_test.shape, s.task, s.classes) for s in splits}
    if len(shapes) > 1:
        raise ValueError(f"splits must agree in shape and task, got {sorted(map(str, shapes))}")
    for s in splits:
        if not all(np.isfinite(part).all() for part in (s.x_train, s.y_train, s.x_test, s.y_test)):
            raise ValueError("splits must hold finite numbers only; remove rows with NaN or infinity first")
    kind = torch.long if splits[0].classes else dtype

    def stacked(name: str, as_type: torch.dtype) -> Tensor:
        return torch.as_tensor(np.stack([getattr(s, name) for s in splits])).to(device, as_type)

    return Problem(
        stacked("x_train", dtype),
        stacked("y_train", kind),
        stacked("x_test", dtype),
        stacked("y_test", kind),
        np.array([s.y_sd for s in splits]),
        splits[0].classes,
    )


def inducing_inputs(x: Tensor, inducing: int, seeds: Sequence[int], start: InducingStart = "kmeans") -> Tensor:
    """First inducing inputs (R, M, D): centres of k-means over at most `KMEANS_ROWS` rows, or random rows.

    Args:
        x: training inputs (R, N, D).
        inducing: M.
        seeds: one per replica.
        start: how they are chosen.

    Raises:
        ValueError: for M < 1 or M > N, seeds that do not match, or an unknown start.

    >>> x = torch.arange(6.0).reshape(1, 6, 1)
    >>> inducing_inputs(x, 6, [0], "random").flatten().sort().values.tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    if not 1 <= inducing <= x.shape[1]:
        raise ValueError(f"inducing inputs must number 1 to {x.shape[1]}, the training rows, got {inducing}")
    if len(seeds) != x.shape[0]:
        raise ValueError(f"seeds must be one per replica, got {len(seeds)} for {x.shape[0]}")
    if start not in ("kmeans", "random"):
        raise ValueError(f"unknown start {start!r}; known: kmeans, random")
    return torch.stack([_chosen(rows, inducing, seed, start) for rows, seed in zip(x, seeds, strict=True)])


def _chosen(x: Tensor, inducing: int, seed: int, start: InducingStart) -> Tensor:
    rng = np.random.default_rng([seed, 2])
    order = rng.permutation(len(x))
    if start == "random":
        return x[torch.as_tensor(order[:inducing], device=x.device)]
    from sklearn.cluster import KMeans

    rows = x.detach().cpu().double().numpy()[order[: max(KMEANS_ROWS, inducing)]]
    centres = KMeans(inducing, n_init=1, random_state=seed).fit(rows).cluster_centers_
    return torch.as_tensor(centres).to(x)
