"""Split Gibbs sampling of latents u given cells x: a likelihood step in gene space, then a prior step, again and again.

The target is P(x, u, z) ~ f(x - V z) exp(-|u - z|^2 / (2 rho^2)) p(u) (Meier et al., 2026). For a fixed rho its u-marginal is
p(u) N(x; V u, Sigma + rho^2 V V^T): rho adds to the noise, so that a larger one leans more on the prior, and rho -> 0 is the posterior.
With orthonormal V and Sigma = sigma^2 I the likelihood step sees x through V^T x alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from tasks.common.node import Params
from tasks.single_cell.priors import Prior

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float64]
DECAY = 0.9
"""Factor per iteration of the exponential schedule."""


class GibbsParams(Params):
    """Settings of a chain.

    Attributes:
        rho_start: coupling of the first iteration, in data units.
        rho_end: of the last one; `constant` ignores it.
        schedule: between them: straight line, max(rho_start 0.9^s, rho_end), or rho_start throughout.
        iterations: sweeps of each chain.
        burn_in: sweeps whose draws are dropped.
        repeats: independent chains per cell.
        init: where a chain starts: V^T x, a standard normal vector times the scale of V^T x, or 0.
    """

    rho_start: float = Field(5.0, gt=0)
    rho_end: float = Field(5.0, gt=0)
    schedule: Literal["linear", "exponential", "constant"] = "constant"
    iterations: int = Field(46, ge=1)
    burn_in: int = Field(6, ge=0)
    repeats: int = Field(1, ge=1)
    init: Literal["measurement", "random", "zero"] = "measurement"

    @model_validator(mode="after")
    def _something_is_kept(self) -> GibbsParams:
        if self.burn_in >= self.iterations:
            raise ValueError(f"burn_in must be less than iterations = {self.iterations}, got {self.burn_in}")
        return self

    @property
    def draws(self) -> int:
        """Draws that are kept for each cell."""
        return self.repeats * (self.iterations - self.burn_in)

    def at(self, rho: float) -> GibbsParams:
        """The same chain with a constant rho."""
        return GibbsParams(**(self.model_dump() | {"rho_start": rho, "rho_end": rho, "schedule": "constant"}))


def rho_schedule(params: GibbsParams) -> Floats:
    """Coupling rho of every iteration (iterations,).

    >>> rho_schedule(GibbsParams(rho_start=5, rho_end=1, schedule="linear", iterations=3, burn_in=0)).tolist()
    [5.0, 3.0, 1.0]
    """
    if params.schedule == "linear":
        return np.linspace(params.rho_start, params.rho_end, params.iterations)
    if params.schedule == "exponential":
        return np.asarray(np.maximum(params.rho_start * DECAY ** np.arange(params.iterations), params.rho_end))
    return np.full(params.iterations, params.rho_start)


class Likelihood(Protocol):
    """What the sampler asks of a likelihood."""

    measurement: torch.Tensor
    """A first guess of the latents from the data alone (n, k), float64."""

    def draw(self, u: torch.Tensor, rho: float, generator: torch.Generator) -> torch.Tensor:
        """One draw of z (R, n, k), or a move that leaves its law unchanged, from f(x - V z) exp(-|u - z|^2 / (2 rho^2))."""
        ...


class GaussianLikelihood:
    """x ~ N(V z, diag(noise)): the conditional of z is Gaussian with precision V^T Sigma^-1 V + I / rho^2 (Proposition 3.1).

    Args:
        x: standardised cells (n, d).
        loadings: V (d, k) of full column rank, not necessarily orthonormal.
        noise: variance per gene (d,), or one number.
        device: where chains run.

    Raises:
        ValueError: for shapes that do not fit, values that are not finite, or variances that are not positive.

    >>> import torch
    >>> likelihood = GaussianLikelihood([[2.0, 0.0]], [[1.0], [0.0]], 1.0)
    >>> mean, covariance = likelihood.conditional(torch.zeros(1, 1, dtype=torch.float64), rho=1.0)
    >>> mean.item(), covariance.item()
    (1.0, 0.5)
    """

    def __init__(self, x: ArrayLike, loadings: ArrayLike, noise: ArrayLike = 1.0, *, device: str = "cpu") -> None:
        import torch

        data, v, variance = _checked(x, loadings, noise)
        weighted = v / variance[:, None]  # Sigma^-1 V
        precision = v.T @ weighted
        self._values, self._vectors = (torch.as_tensor(a, device=device) for a in np.linalg.eigh((precision + precision.T) / 2))
        self._pull = torch.as_tensor(data @ weighted, device=device)  # (n, k)
        self.measurement = torch.as_tensor(data @ v, device=device)

    def conditional(self, u: torch.Tensor, rho: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean (..., n, k) and covariance (k, k) of z given u (..., n, k); rho may be infinite."""
        pull, shared = self._filters(rho)
        return self._pull @ pull + u @ shared, pull

    def draw(self, u: torch.Tensor, rho: float, generator: torch.Generator) -> torch.Tensor:
        """One draw of z (..., n, k). The symmetric root makes it the same whichever eigenvectors a multiple root has."""
        mean, _ = self.conditional(u, rho)
        return mean + _normal(u, generator) @ self._rotated(self._variances(rho).sqrt())

    def _filters(self, rho: float) -> tuple[torch.Tensor, torch.Tensor]:
        variances = self._variances(rho)
        share = 0.0 * variances if np.isinf(rho) else 1 / (1 + self._values * rho**2)
        return self._rotated(variances), self._rotated(share)

    def _variances(self, rho: float) -> torch.Tensor:
        if not rho > 0:
            raise ValueError(f"rho must be positive, got {rho}")
        return 1 / self._values if np.isinf(rho) else rho**2 / (1 + self._values * rho**2)

    def _rotated(self, diagonal: torch.Tensor) -> torch.Tensor:
        return (self._vectors * diagonal) @ self._vectors.T


class StudentTLikelihood:
    """Independent Student-t residuals per gene, x_g ~ (V z)_g + scale_g t(freedom); z moves by unadjusted Langevin steps.

    Args:
        x: standardised cells (n, d).
        loadings: V (d, k).
        scale: of the residuals, per gene (d,) or one number.
        freedom: degrees of freedom.
        steps: Langevin steps per iteration, of size 0.1 rho^2 / (1 + rho^2).
        device: where chains run.

    Raises:
        ValueError: as `GaussianLikelihood`, or for freedom or steps that are not positive.
    """

    def __init__(
        self, x: ArrayLike, loadings: ArrayLike, scale: ArrayLike = 1.0, freedom: float = 3.0, steps: int = 20, *, device: str = "cpu"
    ) -> None:
        import torch

        if not freedom > 0 or steps < 1:
            raise ValueError(f"freedom must be positive and steps at least 1, got {freedom} and {steps}")
        data, v, variance = _checked(x, loadings, np.square(np.asarray(scale, dtype=float)))
        self._x, self._v, self._variance = (torch.tensor(a, dtype=torch.float32, device=device) for a in (data, v, variance))
        self._freedom, self._steps = float(freedom), steps
        self.measurement = torch.as_tensor(data @ v, device=device)

    def slope(self, z: torch.Tensor) -> torch.Tensor:
        """Gradient of the log likelihood in z (..., n, k)."""
        residual = self._x - z.float() @ self._v.T  # (..., n, d)
        pull: torch.Tensor = (self._freedom + 1) * residual / (self._freedom * self._variance + residual.square()) @ self._v
        return pull.to(z.dtype)

    def draw(self, u: torch.Tensor, rho: float, generator: torch.Generator) -> torch.Tensor:
        """Langevin moves from u (..., n, k)."""
        step = 0.1 * rho**2 / (1 + rho**2)
        z = u
        for _ in range(self._steps):
            z = z + step * (self.slope(z) + (u - z) / rho**2) + (2 * step) ** 0.5 * _normal(u, generator)
        return z


@dataclass(frozen=True)
class Draws:
    """What a run of chains keeps.

    Attributes:
        kept: draws after burn-in of all chains (m, n, k), m = repeats (iterations - burn_in), iterations outermost.
        last: the final draw of each chain (repeats, n, k).
    """

    kept: NDArray[np.float32]
    last: NDArray[np.float32]

    @property
    def mean(self) -> Floats:
        """The embedding (n, k): the average of all kept draws."""
        return np.asarray(self.kept.mean(axis=0, dtype=np.float64))


def run_chains(
    likelihood: Likelihood,
    prior: Prior,
    params: GibbsParams,
    generator: torch.Generator,
    after: Callable[[int], None] | None = None,
) -> Draws:
    """Run `params.repeats` chains for each of the likelihood's n cells, all as one batch.

    Args:
        likelihood: of the cells.
        prior: of the latents.
        params: settings.
        generator: all of the randomness; with the same one, results are the same.
        after: called with each iteration's number.

    >>> import torch
    >>> from tasks.single_cell.priors import MixturePrior
    >>> standard = MixturePrior(np.ones(1), np.zeros((1, 1)), np.ones((1, 1, 1)))
    >>> cells = GaussianLikelihood(np.full((2000, 1), 3.0), np.ones((1, 1)), 1.0)
    >>> draws = run_chains(cells, standard, GibbsParams(rho_start=1, iterations=20, burn_in=10), torch.Generator().manual_seed(0))
    >>> draws.kept.shape, round(float(draws.mean.mean()), 1)  # noise 1 + rho^2 = 2: a third of 3
    ((10, 2000, 1), 1.0)
    """
    import torch

    start = likelihood.measurement
    cells, k = start.shape
    u = start.expand(params.repeats, cells, k).clone()
    if params.init == "zero":
        u = torch.zeros_like(u)
    elif params.init == "random":
        u = _normal(u, generator) * start.std()
    kept = []
    with torch.inference_mode():
        for step, rho in enumerate(rho_schedule(params).tolist()):
            z = likelihood.draw(u, rho, generator)
            u = prior.sample(z.reshape(-1, k), rho, generator).reshape(params.repeats, cells, k)
            if step >= params.burn_in:
                kept.append(u.float().cpu().numpy())
            if after is not None:
                after(step)
    return Draws(np.concatenate(kept), kept[-1])


def _checked(x: ArrayLike, loadings: ArrayLike, noise: ArrayLike) -> tuple[Floats, Floats, Floats]:
    data, v = np.asarray(x, dtype=float), np.asarray(loadings, dtype=float)
    if data.ndim != 2 or v.ndim != 2 or data.shape[1] != v.shape[0]:
        raise ValueError(f"cells (n, d) and loadings (d, k) must share d, got {data.shape} and {v.shape}")
    variance = np.broadcast_to(np.asarray(noise, dtype=float), (v.shape[0],))
    if not (variance > 0).all() or not np.isfinite(variance).all():
        raise ValueError(f"noise variances must be positive and finite, got a smallest of {variance.min()}")
    if not np.isfinite(data).all() or not np.isfinite(v).all():
        raise ValueError(f"cells and loadings must be finite, got {int((~np.isfinite(data)).sum())} bad entries in the cells")
    return data, v, variance


def _normal(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    import torch

    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=generator.device).to(like.device)
