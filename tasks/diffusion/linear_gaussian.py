"""Linear-Gaussian diffusions in closed form: Ornstein-Uhlenbeck marginals, Doob bridges to a Gaussian, discrete reverse chains.

Forward time t in [0, 1]: dU = -lam U dt + g dW with U_0 ~ N(mu, sigma^2 I). Pinning the path to its own U_0 by Doob's
h-transform adds a drift g^2 h(U_t, t, U_0); with a Gaussian U_0 everything stays Gaussian, per coordinate. A sampler runs
backwards from t = 1 to t = 0 in K steps. Everything is NumPy in float64 and broadcasts over an array of sigmas.
Formulas: Xu et al. (2026), Props. 1 and 2; the closed forms are derived in the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
FINE_STEPS = 2000


@dataclass(frozen=True)
class OrnsteinUhlenbeck:
    """dU = -lam U dt + g dW.

    Raises:
        ValueError: for a rate or a noise scale that is not positive.

    >>> process = OrnsteinUhlenbeck()
    >>> float(process.decay(0.0)), float(process.noise_variance(0.0))
    (1.0, 0.0)
    """

    lam: float = 1.0
    g: float = 1.0

    def __post_init__(self) -> None:
        if not (self.lam > 0 and self.g > 0):
            raise ValueError(f"lam and g must be positive, got {self.lam} and {self.g}")

    def decay(self, t: ArrayLike) -> Floats:
        """a(t) = exp(-lam t): what is left of U_0 at time t."""
        return np.exp(-self.lam * np.asarray(t, dtype=float))

    def noise_variance(self, t: ArrayLike) -> Floats:
        """q(t) = g^2 (1 - exp(-2 lam t)) / (2 lam): variance of U_t given U_0."""
        return -(self.g**2) * np.expm1(-2 * self.lam * np.asarray(t, dtype=float)) / (2 * self.lam)


def doob_coefficient(process: OrnsteinUhlenbeck, sigma: ArrayLike, t: ArrayLike) -> Floats:
    """c(t) = g^2 sigma^2 a^2 / ((a^2 sigma^2 + q) q), by which the bridge forgets faster; about 1/t near 0.

    Raises:
        ValueError: for sigma that is not positive or a time outside (0, 1].
    """
    s2, times = _variance(sigma), np.asarray(t, dtype=float)
    if not ((times > 0) & (times <= 1)).all():
        raise ValueError(f"times must lie in (0, 1], got {times.min()} to {times.max()}")
    a2, q = process.decay(times) ** 2, process.noise_variance(times)
    return np.asarray(process.g**2 * s2 * a2 / ((a2 * s2 + q) * q))


def doob_drift(process: OrnsteinUhlenbeck, sigma: float, u: ArrayLike, t: float, start: ArrayLike, mu: ArrayLike) -> Floats:
    """Doob's h, the gradient over U_t of log p(U_0 | U_t), at U_t = u and U_0 = start, for U_0 ~ N(mu, sigma^2 I).

    Raises:
        ValueError: for sigma that is not positive or a time outside (0, 1].
    """
    doob_coefficient(process, sigma, t)  # checks
    a, q = process.decay(t), process.noise_variance(t)
    gain = a * sigma**2 / (a**2 * sigma**2 + q)
    u_, mu_ = np.asarray(u, dtype=float), np.asarray(mu, dtype=float)
    return np.asarray((a / q) * (np.asarray(start, dtype=float) - mu_ - gain * (u_ - a * mu_)))


def marginal_mean(process: OrnsteinUhlenbeck, mu: ArrayLike, t: ArrayLike) -> Floats:
    """m_t = exp(-lam t) mu, with or without the bridge: it solves m' = -(lam + c) m + c a mu for every c."""
    return np.asarray(process.decay(t) * np.asarray(mu, dtype=float))


def marginal_variance(process: OrnsteinUhlenbeck, sigma: ArrayLike, steps: int = FINE_STEPS, doob: bool = True) -> Floats:
    """kappa_t on the grid t_i = i / steps, i = 0..steps; shape (..., steps + 1) with the shape of sigma in front.

    Without the bridge the closed form a^2 sigma^2 + q. With it, kappa' = -2 (lam + c) kappa + g^2 + 2 c a sigma^2 by implicit
    Euler steps, which are stable though c grows like 1/t at 0.

    Raises:
        ValueError: for sigma that is not positive, or steps below 1.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    s2, times = _variance(sigma)[..., None], np.arange(steps + 1) / steps
    if not doob:
        return process.decay(times) ** 2 * s2 + process.noise_variance(times)
    c, dt = doob_coefficient(process, np.sqrt(s2), times[1:]), 1.0 / steps
    push = dt * (process.g**2 + 2 * c * process.decay(times[1:]) * s2)
    pull = 1 / (1 + 2 * dt * (process.lam + c))
    kappa = np.empty((*s2.shape[:-1], steps + 1))
    kappa[..., 0] = s2[..., 0]
    for i in range(steps):
        kappa[..., i + 1] = (kappa[..., i] + push[..., i]) * pull[..., i]
    return kappa


@dataclass(frozen=True)
class Marginals:
    """kappa_t at the sampler's times t_0 = 1 > ... > t_K = 0, and what lies between them.

    Attributes:
        times: (K + 1,).
        decay: a(t_k), (K + 1,).
        kappa: (..., K + 1).
        information: I_k, the integral of g^2 / kappa from t_{k+1} to t_k, (..., K).
    """

    times: Floats
    decay: Floats
    kappa: Floats
    information: Floats


def sampler_marginals(process: OrnsteinUhlenbeck, sigma: ArrayLike, steps: int, doob: bool = True) -> Marginals:
    """Marginals at the K + 1 times of a sampler with K equal steps.

    Raises:
        ValueError: for K < 1 or sigma that is not positive.

    >>> sampler_marginals(OrnsteinUhlenbeck(), 0.3, steps=4).times.tolist()
    [1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if steps < 1:
        raise ValueError(f"K must be at least 1, got {steps}")
    between = -(-FINE_STEPS // steps)
    kappa = marginal_variance(process, sigma, steps * between, doob)
    rate = process.g**2 / kappa
    area = np.concatenate([np.zeros((*kappa.shape[:-1], 1)), np.cumsum((rate[..., 1:] + rate[..., :-1]) / 2, axis=-1)], axis=-1)
    area = area[..., ::between] / (steps * between)
    times = np.arange(steps, -1, -1) / steps
    return Marginals(times, process.decay(times), kappa[..., ::between][..., ::-1], np.diff(area, axis=-1)[..., ::-1])


@dataclass(frozen=True)
class ReverseChain:
    """A discrete reverse process: U' = gain U + pull mu + shift r + spread eps, for K steps from t = 1 to t = 0.

    r is a correction that a sampler may add; `weight` = (shift / spread)^2 is what half its square costs in nats.
    With r = 0 and U_0 ~ N(start_mean mu, start_variance) the end is N(end_mean mu, end_variance) exactly.

    Attributes:
        gain: (..., K), as are pull, shift, spread and weight.
    """

    gain: Floats
    pull: Floats
    shift: Floats
    spread: Floats
    start_mean: float
    start_variance: Floats
    end_mean: Floats
    end_variance: Floats

    @property
    def weight(self) -> Floats:
        """Nats per half squared unit of r, (..., K)."""
        return (self.shift / self.spread) ** 2


def reverse_chain(
    process: OrnsteinUhlenbeck, sigma: float, steps: int, doob: bool = True, integrator: Literal["exact", "euler"] = "exact"
) -> ReverseChain:
    """The reference process in reverse, from N(m_1, kappa_1).

    `exact` has the marginals N(m_t, kappa_t) at every step, for any K: I_k = int g^2 / kappa, gain psi_k =
    sqrt(kappa_{k+1} / kappa_k) exp(-I_k / 2), variance nu_k = kappa_{k+1} (1 - exp(-I_k)). `euler` is Euler-Maruyama with the
    score -(U - m_t) / kappa_t and the drift that goes with these marginals; its end moments are those of the recursion
    itself, not of the process that it approximates.

    Raises:
        ValueError: for K < 1, sigma that is not positive, or an unknown integrator.

    >>> chain = reverse_chain(OrnsteinUhlenbeck(), sigma=0.3, steps=10)
    >>> round(float(chain.end_variance), 12), float(chain.end_mean)
    (0.09, 1.0)
    """
    at = sampler_marginals(process, sigma, steps, doob)
    if integrator == "exact":
        return exact_chain(at)
    if integrator != "euler":
        raise ValueError(f"unknown integrator {integrator!r}; known: exact, euler")
    dt = 1.0 / steps
    kappa, decay, rate = at.kappa[..., :-1], at.decay[:-1], np.asarray(process.lam)
    if doob:  # the linear drift with which a diffusion has the variances of the bridge
        c = doob_coefficient(process, sigma, at.times[:-1])
        rate = process.lam + c * (1 - decay * sigma**2 / kappa)
    gain = 1 + dt * rate - dt * process.g**2 / kappa
    pull = (1 + dt * process.lam - gain) * decay
    spread = np.full(steps, process.g * dt**0.5)
    mean, variance = np.asarray(at.decay[0]), at.kappa[..., 0]
    for k in range(steps):
        mean, variance = gain[..., k] * mean + pull[..., k], gain[..., k] ** 2 * variance + spread[k] ** 2
    return ReverseChain(gain, pull, np.full(steps, dt * process.g**2), spread, float(at.decay[0]), at.kappa[..., 0], mean, variance)


def exact_chain(at: Marginals) -> ReverseChain:
    """The chain whose marginals are exactly those given; see `reverse_chain`."""
    before, after = at.kappa[..., :-1], at.kappa[..., 1:]
    gain = np.sqrt(after / before) * np.exp(-at.information / 2)
    nu = -after * np.expm1(-at.information)
    pull = at.decay[1:] - gain * at.decay[:-1]
    return ReverseChain(gain, pull, nu, np.sqrt(nu), float(at.decay[0]), before[..., 0], np.asarray(at.decay[-1]), after[..., -1])


def gaussian_kl(squared_distance: ArrayLike, dimensions: int, variance_q: ArrayLike, variance_p: ArrayLike) -> Floats:
    """KL( N(m_q, variance_q I) || N(m_p, variance_p I) ) in nats, from ||m_q - m_p||^2.

    >>> float(gaussian_kl(0.0, 3, 1.0, 1.0))
    0.0
    """
    vq, vp = np.asarray(variance_q, dtype=float), np.asarray(variance_p, dtype=float)
    if not ((vq > 0).all() and (vp > 0).all()):
        raise ValueError(f"variances must be positive, got {vq.min()} and {vp.min()}")
    return np.asarray(0.5 * (dimensions * (vq / vp - 1 - np.log(vq / vp)) + np.asarray(squared_distance, dtype=float) / vp))


def _variance(sigma: ArrayLike) -> Floats:
    s = np.asarray(sigma, dtype=float)
    if not (s > 0).all():
        raise ValueError(f"sigma must be positive, got {s.min()}")
    return s**2
