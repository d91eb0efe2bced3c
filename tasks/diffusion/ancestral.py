"""Ancestral reverse chains on few levels, started at any noise level: draws from p(u) N(z; u, rho^2 I), given a noise predictor.

The predictor is any callable `eps(u_t, abar)`. The usual reverse variances are wrong on few levels: the posterior one takes the clean
vector as known, the forward one ignores what the predictor knows. The analytic variance (Bao et al., 2022) adds the variance that the
clean vector still has given u_t, from Gamma(abar) = E eps(u_t, abar)^2, one number for all columns or, for the diagonal one, a number
for each. It is exact for an isotropic Gaussian (for one with uncorrelated columns when diagonal) on any number of levels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from tasks.diffusion.schedules import Floats, signal_share

if TYPE_CHECKING:
    import torch

    Eps = Callable[[torch.Tensor, float], torch.Tensor]

Variance = Literal["diagonal", "analytic", "forward", "posterior"]
Gamma = Callable[[float], Floats]
"""abar -> E eps^2, shape () or (k,)."""


def sub_grid(rho: float, n_sub: int, least: float = 0.0) -> Floats:
    """Levels of a reverse chain, `abar` (n_sub,) increasing: log-spaced in signal-to-noise ratio from 1/(1+rho^2) on.

    The last has a noise-to-signal variance of min(1e-2, rho^2/100), but not below the ratio `least`^2 (the first trained level); after
    it the chain steps to the clean vector.

    Raises:
        ValueError: if rho is not above `least`, or n_sub < 1.

    >>> sub_grid(1.0, 3).round(4).tolist()
    [0.5, 0.9091, 0.9901]
    """
    if n_sub < 1:
        raise ValueError(f"n_sub must be at least 1, got {n_sub}")
    if not rho > max(least, 0.0):
        raise ValueError(f"rho must be above {max(least, 0.0):.4g}, the first noise level, got {rho:.4g}")
    end = max(min(0.1, rho / 10), least)
    return signal_share(np.geomspace(rho, end, n_sub))


@dataclass(frozen=True)
class ReverseStep:
    """u_s = keep u_t - remove eps(u_t, abar_t) + spread xi, one step t -> s; `spread` is a number or one per column (k,)."""

    abar: float
    keep: float
    remove: float
    spread: Floats


def reverse_step(abar_t: float, abar_s: float, variance: Variance, gamma: Floats | float = 1.0) -> ReverseStep:
    """Coefficients of the ancestral step from abar_t to abar_s > abar_t (1 is the clean vector).

    With alpha = abar_t / abar_s the mean is (u - (1-alpha)/sqrt(1-abar_t) eps) / sqrt(alpha). The variance is 1 - alpha (`forward`, 0 in
    the last step), (1-abar_s)(1-alpha)/(1-abar_t) (`posterior`), or that plus c^2 (1-abar_t)/abar_t max(0, 1-gamma), with
    c = sqrt(abar_s)(1-alpha)/(1-abar_t) (`analytic`, `diagonal`).

    Raises:
        ValueError: unless 0 < abar_t < abar_s <= 1.
    """
    if not 0 < abar_t < abar_s <= 1:
        raise ValueError(f"a reverse step needs 0 < abar_t < abar_s <= 1, got {abar_t} -> {abar_s}")
    alpha = abar_t / abar_s
    known = (1 - abar_s) * (1 - alpha) / (1 - abar_t)
    if variance == "forward":
        total = np.asarray(1 - alpha if abar_s < 1 else 0.0)
    elif variance == "posterior":
        total = np.asarray(known)
    else:
        c = np.sqrt(abar_s) * (1 - alpha) / (1 - abar_t)
        total = known + c**2 * (1 - abar_t) / abar_t * np.maximum(0.0, 1 - np.asarray(gamma, dtype=float))
    return ReverseStep(abar_t, 1 / np.sqrt(alpha), (1 - alpha) / np.sqrt((1 - abar_t) * alpha), np.sqrt(total))


@dataclass(frozen=True)
class GammaTable:
    """Gamma tabulated over log(1/abar - 1) and interpolated linearly: `values` (levels,) or (levels, k) at `log_noise` (levels,)."""

    log_noise: Floats
    values: Floats

    def __call__(self, abar: float) -> Floats:
        """Gamma at one level, () or (k,)."""
        at = np.clip(np.log(1 / abar - 1), self.log_noise[0], self.log_noise[-1])
        right = int(np.clip(np.searchsorted(self.log_noise, at), 1, len(self.log_noise) - 1))
        share = (at - self.log_noise[right - 1]) / (self.log_noise[right] - self.log_noise[right - 1])
        return np.asarray((1 - share) * self.values[right - 1] + share * self.values[right])

    def scalar(self) -> GammaTable:
        """The table with one number for all columns."""
        return self if self.values.ndim == 1 else GammaTable(self.log_noise, self.values.mean(axis=1))


def tabulate_gamma(eps: Eps, rows: torch.Tensor, least: float, largest: float, generator: torch.Generator, levels: int = 48) -> GammaTable:
    """E eps^2 per column over noised rows (n, k), at levels with noise-to-signal ratios from `least` to `largest`.

    Each row gets a noise vector and its mirror image at each level, which takes most of the chance out of the mean.
    """
    import torch

    noise = torch.randn(rows.shape, generator=generator, dtype=rows.dtype).to(rows.device)
    ratios = np.geomspace(least, largest, levels)
    values = np.empty((levels, rows.shape[1]))
    with torch.inference_mode():
        for i, abar in enumerate(signal_share(ratios).tolist()):
            signal, scale = abar**0.5, (1 - abar) ** 0.5
            squares = [eps(signal * rows + sign * scale * noise, abar).double().square().mean(0) for sign in (1, -1)]
            values[i] = torch.stack(squares).mean(0).cpu().numpy()
    return GammaTable(2 * np.log(ratios), values)


@dataclass
class ReverseChain:
    """Sampler of p(u) N(z; u, rho^2 I), in the units in which the predictor was trained.

    Attributes:
        eps: predicts the noise in u_t (n, k) at level abar.
        gamma: E eps^2 at a level; used by `analytic` (mean over columns) and `diagonal`.
        n_sub: levels of the chain.
        variance: of the reverse steps.
        least: noise-to-signal ratio of the first level that eps knows.
        largest: that of the last one.

    Raises:
        ValueError: for n_sub < 1 or a rho out of range, when a chain is asked for.

    >>> import torch
    >>> standard = lambda u, abar: (1 - abar) ** 0.5 * u  # exact for p = N(0, I)
    >>> chain = ReverseChain(standard, gamma=lambda abar: np.asarray(1 - abar))
    >>> u = chain.sample(torch.full((20000, 1), 2.0), rho=1.0, generator=torch.Generator().manual_seed(0))
    >>> round(u.mean().item(), 1), round(u.var().item(), 1)
    (1.0, 0.5)
    """

    eps: Eps
    gamma: Gamma
    n_sub: int = 16
    variance: Variance = "diagonal"
    least: float = 0.0
    largest: float = np.inf
    _steps: dict[float, list[ReverseStep]] = field(default_factory=dict, init=False, repr=False)

    def steps(self, rho: float) -> list[ReverseStep]:
        """Coefficients from level rho down to the clean vector; kept, as a Gibbs chain asks for the same rho again and again."""
        if rho > self.largest:
            raise ValueError(f"rho must be at most {self.largest:.4g}, the last trained noise level, got {rho:.4g}")
        if rho not in self._steps:
            grid = [*sub_grid(rho, self.n_sub, self.least).tolist(), 1.0]
            self._steps[rho] = [reverse_step(t, s, self.variance, self._gamma_at(t)) for t, s in pairwise(grid)]
        return self._steps[rho]

    def sample(self, z: torch.Tensor, rho: float, generator: torch.Generator) -> torch.Tensor:
        """One draw of u (n, k) for each row of z (n, k)."""
        import torch

        steps = self.steps(rho)
        with torch.inference_mode():
            u: torch.Tensor = steps[0].abar ** 0.5 * z
            for step in steps:
                u = step.keep * u - step.remove * self.eps(u, step.abar)
                if np.any(step.spread > 0):
                    noise = torch.randn(u.shape, generator=generator, dtype=u.dtype, device=generator.device).to(u.device)
                    u += torch.as_tensor(step.spread, dtype=u.dtype, device=u.device) * noise
        return u

    def _gamma_at(self, abar: float) -> Floats:
        gamma = np.asarray(self.gamma(abar), dtype=float)
        return gamma if self.variance == "diagonal" else gamma.mean()
