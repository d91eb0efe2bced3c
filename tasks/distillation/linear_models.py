"""The models that are trained on a distilled regression set: ordinary least squares and ridge, both without intercept."""

from __future__ import annotations

import numpy as np

PENALTIES = tuple(10.0**e for e in range(-4, 4))


def least_squares(rows: np.ndarray) -> np.ndarray:
    """Coefficients (d,) of y on x for rows (x, y) of shape (n, d + 1); the minimum-norm solution where it is not unique."""
    return np.asarray(np.linalg.lstsq(rows[:, :-1], rows[:, -1], rcond=None)[0])


def ridge(rows: np.ndarray, rng: np.random.Generator, penalties: tuple[float, ...] = PENALTIES, folds: int = 5) -> np.ndarray:
    """Coefficients (d,) of ridge regression, the penalty (relative to n) chosen by cross-validation inside the rows."""
    n = len(rows)
    count = min(folds, n)
    if count < 2:
        return _ridge(rows, penalties[0])
    fold = rng.permutation(n) % count
    errors = [np.mean([squared_error(_ridge(rows[fold != f], p), rows[fold == f]) for f in range(count)]) for p in penalties]
    return _ridge(rows, penalties[int(np.argmin(errors))])


def squared_error(coefficients: np.ndarray, rows: np.ndarray) -> float:
    """Mean squared error on rows (x, y)."""
    return float(np.mean((rows[:, :-1] @ coefficients - rows[:, -1]) ** 2))


def _ridge(rows: np.ndarray, penalty: float) -> np.ndarray:
    x, y = rows[:, :-1], rows[:, -1]
    return np.linalg.solve(x.T @ x + penalty * len(rows) * np.eye(x.shape[1]), x.T @ y)
