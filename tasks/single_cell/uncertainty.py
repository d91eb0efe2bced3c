"""What repeated draws of a cell's latents say about its label and its place: soft labels, confidence sets, spread, intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def class_centroids(latents: ArrayLike, labels: Sequence[str] | NDArray[Any]) -> tuple[list[str], Floats]:
    """Names of the classes, sorted, and the mean of their latents (C, k).

    >>> class_centroids([[0.0], [2.0], [5.0]], ["a", "a", "b"])
    (['a', 'b'], array([[1.],
           [5.]]))
    """
    u, marks = np.asarray(latents, dtype=float), np.asarray(labels).astype(str)
    if marks.shape != (len(u),):
        raise ValueError(f"need a label for each of {len(u)} cells, got {marks.shape}")
    names = sorted(set(marks.tolist()))
    return names, np.stack([u[marks == name].mean(axis=0) for name in names])


def soft_labels(draws: ArrayLike, centroids: ArrayLike) -> Floats:
    """Share of a cell's draws (m, n, k) whose nearest centroid (C, k) is each class, (n, C).

    >>> soft_labels([[[0.1]], [[0.2]], [[0.9]], [[0.3]]], [[0.0], [1.0]]).tolist()
    [[0.75, 0.25]]
    """
    u, centres = np.asarray(draws, dtype=float), np.asarray(centroids, dtype=float)
    distance = np.square(centres).sum(axis=1) - 2 * u @ centres.T  # squared, without |u|^2, (m, n, C)
    nearest = distance.argmin(axis=2)
    return np.asarray(np.stack([(nearest == c).mean(axis=0) for c in range(len(centres))], axis=1))


def confidence_sets(probabilities: ArrayLike, alpha: float) -> NDArray[np.bool_]:
    """The smallest set of labels with mass at least 1 - alpha for each cell, mask (n, C); ties go to the earlier label.

    Raises:
        ValueError: for alpha outside [0, 1) or rows that are no probabilities.

    >>> confidence_sets([[0.6, 0.3, 0.1]], alpha=0.1).tolist()
    [[True, True, False]]
    """
    p = np.asarray(probabilities, dtype=float)
    if not 0 <= alpha < 1:
        raise ValueError(f"alpha must lie in [0, 1), got {alpha}")
    if p.ndim != 2 or (p < 0).any() or not np.allclose(p.sum(axis=1), 1):
        raise ValueError("probabilities must be rows of non-negative numbers that sum to 1; got others")
    order = np.argsort(-p, axis=1, kind="stable")
    ranked = np.take_along_axis(p, order, axis=1)
    before = np.cumsum(ranked, axis=1) - ranked  # mass of the labels ranked higher
    needed = before < 1 - alpha - 1e-9
    out = np.zeros(p.shape, dtype=bool)
    np.put_along_axis(out, order, needed, axis=1)
    return out


def label_entropy(probabilities: ArrayLike) -> Floats:
    """Entropy of each row (n, C) in nats, (n,)."""
    from scipy.special import entr

    return np.asarray(entr(np.asarray(probabilities, dtype=float)).sum(axis=1))


def spread(draws: ArrayLike) -> Floats:
    """Trace of the covariance of each cell's draws (m, n, k), (n,); 0 for a single draw."""
    u = np.asarray(draws, dtype=float)
    return np.asarray(u.var(axis=0, ddof=1).sum(axis=1)) if len(u) > 1 else np.zeros(u.shape[1])


def credible_intervals(draws: ArrayLike, level: float = 0.9) -> tuple[Floats, Floats]:
    """Equal-tailed interval of every latent of every cell (n, k), from draws (m, n, k).

    Quantiles are at ranks p (m + 1), so that an interval of few independent draws holds another draw with probability `level`.

    Raises:
        ValueError: for a level outside (0, 1), or too few draws: with m draws the widest holds (m - 1)/(m + 1).
    """
    u = np.asarray(draws, dtype=float)
    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1), got {level}")
    if (len(u) + 1) * (1 - level) / 2 < 1 - 1e-9:
        raise ValueError(f"{len(u)} draws are too few for a {100 * level:g} % interval; need {int(np.ceil(2 / (1 - level) - 1e-6)) - 1}")
    tail = (1 - level) / 2
    lo, hi = np.quantile(u, [tail, 1 - tail], axis=0, method="weibull")
    return np.asarray(lo), np.asarray(hi)
