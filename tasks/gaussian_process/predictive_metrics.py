"""How good a predictive distribution is: errors, log-likelihoods and coverage of equal-weight mixtures over posterior draws.

All functions are vectorised over leading axes (`...`, for example seeds) and reduce over the last axis of rows, N. S counts the
components of the mixture, one per posterior draw.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def rmse(predictions: ArrayLike, y: ArrayLike, y_sd: float | ArrayLike = 1.0) -> Floats:
    """Root mean squared error in original units.

    Args:
        predictions: standardised predictions, (..., N).
        y: standardised targets, (..., N).
        y_sd: units of the target, (...).

    Raises:
        ValueError: for shapes that do not fit, no rows, values that are not finite, or units that are not positive.

    >>> rmse([0.0, 0.0], [3.0, 4.0], y_sd=2.0).item() == 2 * 12.5**0.5
    True
    """
    p, y = _finite("predictions", predictions), _finite("y", y)
    _same_rows(p, y)
    return np.asarray(np.sqrt(np.mean((p - y) ** 2, axis=-1)) * _units(y_sd))


def mixture_mean(means: ArrayLike) -> Floats:
    """Mean of the mixture: (..., S, N) -> (..., N)."""
    return np.asarray(_finite("means", means).mean(axis=-2))


def mixture_variance(means: ArrayLike, variances: ArrayLike) -> Floats:
    """Variance of the mixture, within plus between components: (..., S, N) -> (..., N).

    >>> mixture_variance([[-1.0], [1.0]], [[0.5], [0.5]]).tolist()
    [1.5]
    """
    m, v = _components(means, variances)
    return np.asarray(v.mean(axis=-2) + m.var(axis=-2))


def mixture_nll(means: ArrayLike, variances: ArrayLike, y: ArrayLike, y_sd: float | ArrayLike = 1.0) -> Floats:
    """Mean negative log density of the targets under the mixture, in nats and original units.

    Args:
        means: of the Gaussian components, (..., S, N).
        variances: of the components, noise included, (..., S, N), positive.
        y: standardised targets, (..., N).
        y_sd: units of the target, (...).

    Raises:
        ValueError: as `rmse`, and for variances that are not positive.

    >>> nll = mixture_nll([[0.0]], [[1.0]], [0.0], y_sd=np.e)
    >>> bool(np.isclose(nll, 0.5 * np.log(2 * np.pi) + 1.0))
    True
    """
    from scipy.special import logsumexp

    m, v = _components(means, variances)
    y = _finite("y", y)
    _same_rows(m[..., 0, :], y)
    log_density = -0.5 * (np.log(2 * np.pi * v) + (y[..., None, :] - m) ** 2 / v)
    nats = np.log(m.shape[-2]) - logsumexp(log_density, axis=-2)
    return np.asarray(nats.mean(axis=-1) + np.log(_units(y_sd)))


def mixture_levels(means: ArrayLike, variances: ArrayLike, y: ArrayLike) -> Floats:
    """Cumulative probability of each target under the mixture (its probability integral transform), (..., N)."""
    from scipy.special import ndtr

    m, v = _components(means, variances)
    y = _finite("y", y)
    _same_rows(m[..., 0, :], y)
    return np.asarray(ndtr((y[..., None, :] - m) / np.sqrt(v)).mean(axis=-2))


def mixture_coverage(means: ArrayLike, variances: ArrayLike, y: ArrayLike, level: float = 0.95) -> Floats:
    """Share of targets inside the central interval of the mixture, (...).

    A target lies between the quantiles of the mixture at (1 - level)/2 and (1 + level)/2 exactly if its cumulative probability
    does, so no quantile is computed and nothing is sampled.

    Raises:
        ValueError: as `mixture_nll`, and for a level outside (0, 1).

    >>> mixture_coverage([[0.0, 0.0]], [[1.0, 1.0]], [1.9, 2.0]).item()
    0.5
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie in (0, 1), got {level}")
    return np.asarray((np.abs(mixture_levels(means, variances, y) - 0.5) <= level / 2).mean(axis=-1))


def mixture_quantiles(means: ArrayLike, variances: ArrayLike, levels: ArrayLike) -> Floats:
    """Quantiles of the mixture by bisection, for bands in figures: (..., S, N) and (Q,) -> (Q, ..., N).

    >>> mixture_quantiles([[0.0]], [[4.0]], [0.025, 0.975]).round(3).tolist()
    [[-3.92], [3.92]]
    """
    m, v = _components(means, variances)
    wanted = _finite("levels", levels).reshape(-1)
    if not ((wanted > 0) & (wanted < 1)).all():
        raise ValueError(f"levels must lie in (0, 1), got {wanted.tolist()}")
    sd = np.sqrt(v)
    target = wanted.reshape(-1, *([1] * (m.ndim - 1)))
    low = np.broadcast_to((m - 40 * sd).min(axis=-2), (wanted.size, *m.shape[:-2], m.shape[-1])).copy()
    high = np.broadcast_to((m + 40 * sd).max(axis=-2), low.shape).copy()
    for _ in range(60):
        middle = (low + high) / 2
        below = mixture_levels(m, v, middle) < target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high) / 2)


def accuracy(probabilities: ArrayLike, labels: ArrayLike) -> Floats:
    """Share of rows whose most probable class is the label: (..., N, C) and (..., N) -> (...).

    >>> accuracy([[0.9, 0.1], [0.2, 0.8]], [0, 0]).item()
    0.5
    """
    p, y = _classes(probabilities, labels)
    return np.asarray((p.argmax(axis=-1) == y).mean(axis=-1))


def class_probabilities(logits: ArrayLike) -> Floats:
    """Softmax averaged over posterior draws: (..., S, N, C) -> (..., N, C)."""
    from scipy.special import softmax

    return np.asarray(softmax(_finite("logits", logits), axis=-1).mean(axis=-3))


def categorical_log_likelihood(logits: ArrayLike, labels: ArrayLike) -> Floats:
    """Mean log-probability of the labels in nats, probabilities averaged over posterior draws.

    Args:
        logits: (..., S, N, C).
        labels: class numbers, (..., N).

    Raises:
        ValueError: for shapes that do not fit, values that are not finite, or labels outside the classes.

    >>> bool(np.isclose(categorical_log_likelihood(np.zeros((3, 2, 4)), [0, 3]), -np.log(4)))
    True
    """
    from scipy.special import log_softmax, logsumexp

    f = _finite("logits", logits)
    _, y = _classes(f[..., 0, :, :], labels)
    taken = np.take_along_axis(log_softmax(f, axis=-1), y[..., None, :, None], axis=-1)[..., 0]
    return np.asarray((logsumexp(taken, axis=-2) - np.log(f.shape[-3])).mean(axis=-1))


def auc(scores: ArrayLike, labels: ArrayLike) -> Floats:
    """Area under the ROC curve, ties counted half: the Mann-Whitney statistic over all pairs of a positive and a negative row.

    Args:
        scores: larger means more probably of class 1, (..., N).
        labels: 0 or 1, (..., N), both present in every group.

    Raises:
        ValueError: for shapes that do not fit, other labels, or a group of one class.

    >>> auc([0.1, 0.4, 0.4, 0.8], [0, 0, 1, 1]).item()
    0.875
    """
    from scipy.stats import rankdata

    s, y = _finite("scores", scores), np.asarray(labels)
    _same_rows(s, y)
    if not np.isin(y, (0, 1)).all():
        raise ValueError(f"labels must be 0 or 1, got {np.unique(y)[:5].tolist()}")
    y = np.broadcast_to(y, s.shape)
    positive = y.sum(axis=-1)
    negative = y.shape[-1] - positive
    if (positive == 0).any() or (negative == 0).any():
        raise ValueError("labels: AUC needs rows of both classes, got one class only")
    ranks = np.where(y == 1, rankdata(s, axis=-1), 0.0).sum(axis=-1)
    return np.asarray((ranks - positive * (positive + 1) / 2) / (positive * negative))


def _finite(name: str, values: ArrayLike) -> Floats:
    x = np.asarray(values, dtype=float)
    if x.ndim == 0 or x.size == 0:
        raise ValueError(f"{name}: need an array with rows, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError(f"{name}: {int((~np.isfinite(x)).sum())} of {x.size} values are not finite")
    return x


def _units(y_sd: float | ArrayLike) -> Floats:
    sd = np.asarray(y_sd, dtype=float)
    if not (np.isfinite(sd) & (sd > 0)).all():
        raise ValueError(f"y_sd must be positive, got {sd.tolist()}")
    return sd


def _same_rows(a: NDArray[Any], y: NDArray[Any]) -> None:
    if y.ndim == 0 or a.shape[-1] != y.shape[-1]:
        raise ValueError(f"predictions {a.shape} and targets {y.shape} must have the same rows")


def _components(means: ArrayLike, variances: ArrayLike) -> tuple[Floats, Floats]:
    m, v = _finite("means", means), _finite("variances", variances)
    if m.ndim < 2 or m.shape != v.shape:
        raise ValueError(f"means and variances must both be (..., S, N), got {m.shape} and {v.shape}")
    if not (v > 0).all():
        raise ValueError(f"variances must be positive, the smallest is {v.min()}")
    return m, v


def _classes(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Floats, NDArray[np.int64]]:
    p, y = _finite("probabilities", probabilities), np.asarray(labels)
    if p.ndim < 2 or y.ndim == 0 or p.shape[-2] != y.shape[-1]:
        raise ValueError(f"probabilities must be (..., N, C) and labels (..., N), got {p.shape} and {y.shape}")
    if y.min() < 0 or y.max() >= p.shape[-1] or np.any(y != np.floor(y)):
        raise ValueError(f"labels must be whole numbers in 0..{p.shape[-1] - 1}, got {y.min()} to {y.max()}")
    return p, y.astype(np.int64)
