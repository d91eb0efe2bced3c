"""Exact Gaussian-process regression with an ARD RBF kernel: the reference that approximate posteriors are checked against."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def rbf(a: ArrayLike, b: ArrayLike, lengthscales: ArrayLike, variance: float) -> Floats:
    """Kernel matrix k(a_i, b_j) = variance exp(-1/2 sum_d ((a_id - b_jd) / lengthscale_d)^2).

    Args:
        a: (n, d).
        b: (m, d).
        lengthscales: positive, one or (d,).
        variance: positive.

    >>> rbf([[0.0]], [[0.0], [1.0]], 1.0, 2.0).round(4).tolist()
    [[2.0, 1.2131]]
    """
    from scipy.spatial.distance import cdist

    scale = np.asarray(lengthscales, dtype=float)
    if not (scale > 0).all() or not variance > 0:
        raise ValueError(f"lengthscales and variance must be positive, got {scale.tolist()} and {variance}")
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"inputs must be (n, d) and (m, d), got {a.shape} and {b.shape}")
    return np.asarray(variance * np.exp(-0.5 * cdist(a / scale, b / scale, "sqeuclidean")))


@dataclass(frozen=True)
class ExactGP:
    """A Gaussian process with zero mean conditioned on noisy targets (Rasmussen & Williams, 2006, Algorithm 2.1).

    Attributes:
        x: training inputs, (n, d).
        y: targets, (n,).
        lengthscales: of the ARD RBF kernel, one or (d,).
        variance: of the kernel.
        noise: variance of the noise, positive.
    """

    x: Floats
    y: Floats
    lengthscales: Floats
    variance: float
    noise: float

    def __post_init__(self) -> None:
        x, y = np.asarray(self.x, dtype=float), np.asarray(self.y, dtype=float)
        if x.ndim != 2 or y.shape != x.shape[:1] or not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise ValueError(f"x must be finite (n, d) and y finite (n,), got {x.shape} and {y.shape}")
        if not self.noise > 0:
            raise ValueError(f"noise must be positive, got {self.noise}")

    @cached_property
    def _factor(self) -> Floats:
        noise = self.noise * np.eye(len(self.x))
        return np.asarray(np.linalg.cholesky(rbf(self.x, self.x, self.lengthscales, self.variance) + noise))

    @cached_property
    def _weights(self) -> Floats:
        return self._solve(self._solve(self.y), transposed=True)

    def _solve(self, right: Floats, transposed: bool = False) -> Floats:
        from scipy.linalg import solve_triangular

        return np.asarray(solve_triangular(self._factor, right, lower=True, trans=int(transposed)))

    def log_marginal_likelihood(self) -> float:
        """Log density log N(y; 0, K + noise I) in nats.

        >>> gp = ExactGP(np.zeros((1, 1)), np.zeros(1), np.ones(1), variance=0.5, noise=0.5)
        >>> round(gp.log_marginal_likelihood(), 6) == round(-0.5 * float(np.log(2 * np.pi)), 6)
        True
        """
        y = np.asarray(self.y, dtype=float)
        log_det = 2 * np.log(np.diag(self._factor)).sum()
        return float(-0.5 * (y @ self._weights + log_det + len(y) * np.log(2 * np.pi)))

    def posterior(self, x: ArrayLike) -> tuple[Floats, Floats]:
        """Mean (m,) and covariance (m, m) of the noise-free function at inputs x (m, d)."""
        cross = rbf(self.x, x, self.lengthscales, self.variance)
        half = self._solve(cross)
        return cross.T @ self._weights, rbf(x, x, self.lengthscales, self.variance) - half.T @ half
