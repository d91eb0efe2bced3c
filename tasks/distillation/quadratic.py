"""Loss matching for quadratic losses: a few synthetic rows whose loss equals the training set's on k random regressors.

Gupta, Saket and Raghuveer, "Algorithmic Guarantees for Distilling Supervised and Offline RL Datasets" (arXiv 2512.00536),
Algorithm 1. A row zeta in R^q is (x, y); a regressor r in R^q has the loss L(D, r) = mean_i (r . zeta_i)^2 = r^T A r with the
second moment A = Z^T Z / n, which is all of D that a quadratic loss can see. Hence, with s = vech:

- the losses on k generic regressors determine A if and only if k >= q (q + 1) / 2 (Theorems 4.1 and 4.2);
- sup over |v| <= 1 of |L(D, v) - L(D', v)| is the spectral norm of A - A', so the theorem's error can be computed exactly;
- q rows suffice, sqrt(m) times those of A^(1/2).

No model is trained anywhere. This module knows neither tables nor reinforcement learning; everything is float64.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

Optimiser = Literal["gauss_newton", "lbfgs", "adam"]


def second_moment(rows: np.ndarray) -> np.ndarray:
    """A = Z^T Z / n, shape (q, q), of rows Z (n, q).

    Raises:
        ValueError: if `rows` is no table of finite numbers.
    """
    z = _table(rows)
    return np.asarray(z.T @ z / len(z))


def gaussian_regressors(k: int, q: int, rng: np.random.Generator) -> np.ndarray:
    """K random regressors r ~ N(0, I / q), shape (k, q): Algorithm 1's law, q = d + 1.

    Raises:
        ValueError: for k < 1 or q < 1.
    """
    if k < 1 or q < 1:
        raise ValueError(f"needs at least one regressor and one coordinate, got k = {k} and q = {q}")
    return np.asarray(rng.standard_normal((k, q)) / np.sqrt(q))


def coordinate_regressors(k: int, q: int, rng: np.random.Generator) -> np.ndarray:
    """K random coordinate vectors +-e_i / sqrt(q), shape (k, q): the control that sees no product of two coordinates."""
    if k < 1 or q < 1:
        raise ValueError(f"needs at least one regressor and one coordinate, got k = {k} and q = {q}")
    regressors = np.zeros((k, q))
    regressors[np.arange(k), rng.integers(q, size=k)] = rng.choice([-1.0, 1.0], size=k) / np.sqrt(q)
    return regressors


def losses(rows: np.ndarray, regressors: np.ndarray) -> np.ndarray:
    """L(D, r_j) = mean_i (r_j . zeta_i)^2 for rows (n, q) and regressors (k, q), shape (k,).

    Example:
        >>> losses(np.array([[1.0, 2.0]]), np.array([[1.0, 1.0], [2.0, -1.0]])).tolist()
        [9.0, 0.0]
    """
    z, r = _same_columns(rows, regressors)
    return np.asarray(np.einsum("kp,pq,kq->k", r, second_moment(z), r))


def objective(rows: np.ndarray, regressors: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """J = sum_j (L(D_syn, r_j) - targets_j)^2 and its gradient with respect to the rows.

    Args:
        rows: synthetic rows W, (m, q).
        regressors: R, (k, q).
        targets: L(D_train, r_j), (k,).

    Returns:
        (J, dJ/dW) with dJ/dW = (4 / m) ((W R^T) * e) R, (m, q).

    Raises:
        ValueError: for other numbers of targets than of regressors, or other columns.
    """
    if np.shape(targets) != (len(regressors),):
        raise ValueError(f"needs a target loss per regressor, got {np.shape(targets)} for {len(regressors)}")
    projected = rows @ regressors.T  # (m, k)
    error = np.einsum("mk,mk->k", projected, projected) / len(rows) - targets
    return float(error @ error), (4.0 / len(rows)) * ((projected * error) @ regressors)


@dataclass(frozen=True)
class Distilled:
    """Outcome of a distillation.

    Attributes:
        rows: synthetic rows, (m, q).
        start: objective J at the start.
        end: objective J at the end.
        iterations: iterations taken.
    """

    rows: np.ndarray
    start: float
    end: float
    iterations: int


def distil(
    train: np.ndarray,
    start: np.ndarray,
    regressors: np.ndarray,
    optimiser: Optimiser = "gauss_newton",
    max_iterations: int = 2000,
    learning_rate: float = 1e-2,
) -> Distilled:
    """Move synthetic rows until their losses equal the training set's (Algorithm 1).

    The regressors are shared by both losses and stay fixed: drawing new ones at each step would be another method, with k
    infinite. J is convex in the second moment but not in the rows; with m >= q local descent reaches the minimum all the same.

    Args:
        train: training rows (n, q).
        start: first synthetic rows (m, q), usually a random subset of `train`.
        regressors: (k, q).
        optimiser: damped Gauss-Newton (tens of iterations), L-BFGS, or Adam for 2.5 times `max_iterations` steps.
        max_iterations: limit; near k = q (q + 1) / 2 L-BFGS needs over a thousand.
        learning_rate: of Adam.

    Raises:
        ValueError: for empty or non-finite tables, different numbers of columns, an unknown optimiser or max_iterations < 1.

    Warns:
        UserWarning: if m is below the rank of the second moment, so that equality is impossible.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> train = rng.standard_normal((200, 3))
        >>> found = distil(train, train[:5], gaussian_regressors(10, 3, rng))
        >>> spectral_error(found.rows, train) < 1e-5
        True
    """
    if optimiser not in get_args(Optimiser) or max_iterations < 1:
        raise ValueError(f"needs an optimiser of {get_args(Optimiser)} and iterations, got {optimiser!r} and {max_iterations}")
    z, r = _same_columns(train, regressors)
    first, _ = _same_columns(start, regressors)
    moment = second_moment(z)
    rank = int(np.linalg.matrix_rank(moment, hermitian=True))
    if rank < z.shape[1]:
        warnings.warn(f"the {z.shape[1]} columns have rank {rank}: some are constant or duplicate", stacklevel=2)
    if len(first) < rank:
        warnings.warn(f"{len(first)} rows cannot have a second moment of rank {rank}; the losses will not match exactly", stacklevel=2)
    targets = np.einsum("kp,pq,kq->k", r, moment, r)
    begin = objective(first, r, targets)[0]
    if optimiser == "adam":
        rows, iterations = _adam(first, r, targets, int(2.5 * max_iterations), learning_rate)
    elif optimiser == "lbfgs":
        rows, iterations = _lbfgs(first, r, targets, max_iterations)
    else:
        rows, iterations = _gauss_newton(first, r, targets, max_iterations)
    return Distilled(rows, begin, objective(rows, r, targets)[0], iterations)


def spectral_error(rows: np.ndarray, train: np.ndarray) -> float:
    """Largest difference of the two losses over all regressors of norm <= 1: the spectral norm of A_syn - A_train."""
    z, w = _same_columns(train, rows)
    return float(np.abs(np.linalg.eigvalsh(second_moment(w) - second_moment(z))).max())


def threshold(q: int) -> int:
    """Number q (q + 1) / 2 of generic regressors that determine a second moment in R^q."""
    return q * (q + 1) // 2


def regressor_products(regressors: np.ndarray) -> np.ndarray:
    """The vectors vech(r_j r_j^T), shape (k, q (q + 1) / 2), scaled so that dot products are traces."""
    upper = np.triu_indices(regressors.shape[1])
    weight = np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0))
    return np.asarray(regressors[:, upper[0]] * regressors[:, upper[1]] * weight)


def is_identifiable(regressors: np.ndarray) -> bool:
    """Whether equal losses on these regressors force equal second moments.

    Example:
        >>> r = gaussian_regressors(6, 3, np.random.default_rng(0))
        >>> is_identifiable(r), is_identifiable(r[:5])
        (True, False)
    """
    return int(np.linalg.matrix_rank(regressor_products(regressors))) == threshold(regressors.shape[1])


def null_direction(regressors: np.ndarray) -> np.ndarray:
    """A symmetric N != 0 with r_j^T N r_j = 0 for all j, (q, q), Frobenius norm 1: the lower bound's construction.

    A + t N has the losses of A on every regressor, so no method that sees these alone can tell the two apart.

    Raises:
        ValueError: if there is none, because the regressors determine the second moment.
    """
    if is_identifiable(regressors):
        raise ValueError(f"{len(regressors)} regressors in {regressors.shape[1]} dimensions leave no null direction")
    q = regressors.shape[1]
    vector = np.linalg.svd(regressor_products(regressors), full_matrices=True)[2][-1]
    upper = np.triu_indices(q)
    matrix = np.zeros((q, q))
    matrix[upper] = np.where(upper[0] == upper[1], vector, vector / np.sqrt(2.0))
    return matrix + np.triu(matrix, 1).T


def square_root_rows(train: np.ndarray, m: int) -> np.ndarray:
    """M rows with exactly the second moment of `train`, in closed form, (m, q): sqrt(m) A^(1/2), padded with zeros.

    With m < q, the m leading eigen-directions: the best spectral error, the (m + 1)-th eigenvalue.

    Raises:
        ValueError: for m < 1.
    """
    if m < 1:
        raise ValueError(f"needs at least one row, got m = {m}")
    values, vectors = np.linalg.eigh(second_moment(train))
    root = np.sqrt(np.clip(values, 0, None))[:, None] * vectors.T  # (q, q), ascending
    q = root.shape[1]
    if m < q:
        return np.asarray(np.sqrt(m) * root[-m:])
    return np.asarray(np.sqrt(m) * np.vstack([vectors @ root, np.zeros((m - q, q))]))


def jacobian_gram(rows: np.ndarray, regressors: np.ndarray) -> np.ndarray:
    """G = E E^T, (k, k), of the Jacobian E (k, m q) of the k losses with respect to the rows, without forming E.

    The j-th row of E is (2 / m) vec((W r_j) r_j^T), hence G = (4 / m^2) (R W^T W R^T) * (R R^T), entry by entry.
    """
    projected = rows @ regressors.T
    return np.asarray((4.0 / len(rows) ** 2) * (projected.T @ projected) * (regressors @ regressors.T))


def escape_saddle(rows: np.ndarray, regressors: np.ndarray, error: np.ndarray) -> np.ndarray | None:
    """Better rows than a stationary point that is no minimum, or None if it is one.

    In the second moment J is convex with slope S = sum_j e_j r_j r_j^T, so a stationary point is a global minimum if S has no
    negative eigenvalue. Otherwise A + t v v^T is better, v its eigenvector; the best t is known, and a direction of R^m in which
    the rows have nothing carries it.
    """
    values, vectors = np.linalg.eigh((regressors * error[:, None]).T @ regressors)
    v = vectors[:, 0]
    along = (regressors @ v) ** 2
    best = -float(error @ along) / max(float(along @ along), 1e-300)
    if values[0] >= 0 or best <= 0:
        return None
    empty = np.linalg.svd(rows, full_matrices=True)[0][:, -1]  # (m,)
    return np.asarray(rows + np.sqrt(len(rows) * best) * np.outer(empty, v))


def _gauss_newton(first: np.ndarray, r: np.ndarray, targets: np.ndarray, limit: int) -> tuple[np.ndarray, int]:
    """Levenberg (1944) and Marquardt (1963), solved in the k losses instead of the m q coordinates: the shortest step."""

    def residual(rows: np.ndarray) -> np.ndarray:
        projected = rows @ r.T
        return np.asarray(np.einsum("mk,mk->k", projected, projected) / len(rows) - targets)

    rows, damping = first.copy(), 1e-3
    error = residual(rows)
    goal = 1e-26 * max(float(targets @ targets), 1e-300)
    for iteration in range(limit):
        value = float(error @ error)
        if value <= goal:
            return rows, iteration
        step = _shorter_loss(rows, r, error, damping, residual)
        if step is None:
            escaped = escape_saddle(rows, r, error)
            if escaped is None or not float(residual(escaped) @ residual(escaped)) < value:
                return rows, iteration
            step = escaped, 1e-3
        rows, damping = step
        error = residual(rows)
    return rows, limit


def _shorter_loss(
    rows: np.ndarray, r: np.ndarray, error: np.ndarray, damping: float, residual: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, float] | None:
    """Rows with a smaller objective and the next damping, or None if no damping finds any."""
    from scipy.linalg import cho_factor, cho_solve

    gram = jacobian_gram(rows, r)
    shift = np.trace(gram) / len(gram) * np.eye(len(gram))
    while damping < 1e9:
        with contextlib.suppress(np.linalg.LinAlgError):
            solved = cho_solve(cho_factor(gram + damping * shift), error)
            trial = rows - (2.0 / len(rows)) * ((rows @ r.T) * solved) @ r
            new = residual(trial)
            if float(new @ new) < (1 - 1e-6) * float(error @ error):
                return trial, max(damping / 5, 1e-12)
        damping *= 4
    return None


def _lbfgs(first: np.ndarray, r: np.ndarray, targets: np.ndarray, limit: int) -> tuple[np.ndarray, int]:
    from scipy.optimize import minimize

    def value_and_slope(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = objective(flat.reshape(first.shape), r, targets)
        return value, slope.ravel()

    options = {"maxiter": limit, "maxfun": 2 * limit, "ftol": 1e-15, "gtol": 1e-10, "maxcor": 20}
    found = minimize(value_and_slope, first.ravel(), jac=True, method="L-BFGS-B", options=options)
    return found.x.reshape(first.shape), int(found.nit)


def _adam(first: np.ndarray, r: np.ndarray, targets: np.ndarray, steps: int, rate: float) -> tuple[np.ndarray, int]:
    rows, mean, square = first.copy(), np.zeros_like(first), np.zeros_like(first)
    for step in range(1, steps + 1):
        slope = objective(rows, r, targets)[1]
        mean = 0.9 * mean + 0.1 * slope
        square = 0.999 * square + 0.001 * slope**2
        decay = 0.5 * (1 + np.cos(np.pi * step / steps))
        rows -= rate * decay * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-12)
    return rows, steps


def _table(rows: np.ndarray) -> np.ndarray:
    z = np.asarray(rows, dtype=float)
    if z.ndim != 2 or z.shape[0] < 1 or z.shape[1] < 1:
        raise ValueError(f"rows must be a table (n, q) with n >= 1 and q >= 1, got shape {z.shape}")
    if not np.isfinite(z).all():
        raise ValueError(f"{int((~np.isfinite(z)).sum())} of {z.size} numbers are not finite; drop or impute those rows first")
    return z


def _same_columns(rows: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    z, w = _table(rows), _table(others)
    if z.shape[1] != w.shape[1]:
        raise ValueError(f"both tables must have the same columns, got {z.shape[1]} and {w.shape[1]}")
    return z, w
