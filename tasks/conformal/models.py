"""The models that conformal methods wrap: quantiles of Y given X, the mean of Y given (X, Z), the corruption given (X, Z).

Each function fits on clean training rows (the mask model on all of them) and returns a function from features to outputs.
Boosted trees are the default; linear models are for synthetic problems where they are right, or wrong by construction.
Trees set their own slice of the training rows aside for early stopping; they never see reference or calibration rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.conformal.quantiles import Floats

Predict = Callable[[Floats], Floats]
PredictPair = Callable[[Floats], tuple[Floats, Floats]]

TREES: dict[str, Any] = {"learning_rate": 0.08, "min_samples_leaf": 20, "max_leaf_nodes": 15, "early_stopping": True}


def tree_quantiles(x: Floats, y: Floats, alpha: float, seed: int, iterations: int = 120) -> PredictPair:
    """Boosted trees for the alpha/2 and 1 - alpha/2 quantiles of Y given X.

    Args:
        x: features (n, d).
        y: labels (n,).
        alpha: miscoverage level.
        seed: of the early-stopping slice.
        iterations: most trees of each model.

    Returns:
        function from features (m, d) to (lower, upper), each (m,).

    >>> rng = np.random.default_rng(0)
    >>> x = rng.random((400, 1))
    >>> lower, upper = tree_quantiles(x, x[:, 0] + rng.random(400), 0.2, seed=0, iterations=20)(x)
    >>> bool((lower < upper).mean() > 0.9)
    True
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    low, high = (
        HistGradientBoostingRegressor(loss="quantile", quantile=level, max_iter=iterations, random_state=seed, **TREES).fit(x, y)
        for level in (alpha / 2, 1 - alpha / 2)
    )
    return lambda rows: (low.predict(rows), high.predict(rows))


def linear_quantiles(x: Floats, y: Floats, alpha: float) -> PredictPair:
    """A linear mean plus the alpha/2 and 1 - alpha/2 quantiles of its training residuals; a band of constant width.

    >>> x = np.arange(10.0)[:, None]
    >>> lower, upper = linear_quantiles(x, 2 * x[:, 0], 0.1)(np.array([[3.0]]))
    >>> lower.round(6).tolist(), upper.round(6).tolist()
    ([6.0], [6.0])
    """
    mean = linear_mean(x, y)
    low, high = np.quantile(y - mean(x), [alpha / 2, 1 - alpha / 2])
    return lambda rows: (mean(rows) + low, mean(rows) + high)


def tree_mean(x: Floats, y: Floats, seed: int, iterations: int = 120) -> Predict:
    """Boosted trees for the mean, squared error; arguments as `tree_quantiles`.

    >>> x = np.linspace(0.0, 1.0, 400)[:, None]
    >>> low, high = tree_mean(x, 3 * x[:, 0], seed=0)(np.array([[0.1], [0.9]]))
    >>> bool(low < 1.0 < 2.0 < high)
    True
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(max_iter=iterations, random_state=seed, **TREES).fit(x, y).predict  # type: ignore[no-any-return]


def linear_mean(x: Floats, y: Floats) -> Predict:
    """Least squares with an intercept.

    >>> linear_mean(np.arange(4.0)[:, None], np.arange(4.0) + 1)(np.array([[9.0]])).round(6).tolist()
    [10.0]
    """
    coefficients, *_ = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y, rcond=None)
    return lambda rows: rows @ coefficients[:-1] + coefficients[-1]


def tree_mask(x: Floats, masked: NDArray[np.bool_], seed: int, iterations: int = 60) -> Predict:
    """Boosted trees for the probability that a label is corrupted, from (X, Z).

    Constant when fewer than two rows are corrupted, or clean: a slice for early stopping could not have both kinds.

    >>> x = np.linspace(0.0, 1.0, 400)[:, None]
    >>> low, high = tree_mask(x, x[:, 0] > 0.5, seed=0)(np.array([[0.1], [0.9]]))
    >>> bool(low < 0.2 < 0.8 < high)
    True
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    if min(masked.sum(), (~masked).sum()) < 2:
        return lambda rows: np.full(len(rows), masked.mean())
    model = HistGradientBoostingClassifier(max_iter=iterations, random_state=seed, **TREES).fit(x, masked)
    return lambda rows: np.asarray(model.predict_proba(rows)[:, 1])


def linear_mask(x: Floats, masked: NDArray[np.bool_]) -> Predict:
    """Logistic regression for the probability that a label is corrupted; constant when all rows are alike.

    >>> x = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    >>> p = linear_mask(x, x[:, 0] > 0)(np.array([[-3.0], [3.0]]))
    >>> bool(p[0] < 0.5 < p[1])
    True
    """
    from sklearn.linear_model import LogisticRegression

    if masked.all() or not masked.any():
        return lambda rows: np.full(len(rows), masked.mean())
    model = LogisticRegression(max_iter=1000).fit(x, masked)
    return lambda rows: np.asarray(model.predict_proba(rows)[:, 1])
