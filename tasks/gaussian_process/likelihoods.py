"""Likelihoods p(y | f): expected log-densities under Gaussian f, and predictive moments. Shapes as in `layers`."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn

LOG_2PI = math.log(2 * math.pi)


class Likelihood(Protocol):
    """What the bound and the predictions need of a likelihood."""

    def expected(self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor) -> Tensor:
        """E log p(y | f) for f ~ N(mean, variance), exact or by one draw mean + sqrt(variance) * noise; (R, S, B)."""
        ...

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """Log p(y | f), (R, S, B), for f (R, S, B, d) and y (R, B)."""
        ...


class Gaussian(nn.Module):
    """y = f + noise, with one learnable noise variance per replica.

    Args:
        replicas: R.
        variance: initial noise variance, > 0.

    Raises:
        ValueError: for a variance that is not positive.

    >>> likelihood = Gaussian(1, variance=1.0)
    >>> f = torch.zeros(1, 1, 1, 1)
    >>> round(likelihood.log_density(f, torch.zeros(1, 1)).item(), 4)
    -0.9189
    """

    def __init__(self, replicas: int, variance: float = 0.1) -> None:
        super().__init__()
        if not variance > 0:
            raise ValueError(f"noise variance must be positive, got {variance}")
        self.log_variance = nn.Parameter(torch.full((replicas,), math.log(variance)))

    def expected(self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor) -> Tensor:
        """Closed form: log N(y; mean, s) - variance / (2 s)."""
        f_variance = variance.expand_as(mean)[..., 0]
        return self.log_density(mean, y) - 0.5 * f_variance / self.noise()[:, None, None]

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """Log N(y; f, s), (R, S, B)."""
        squared = (y[:, None] - f[..., 0]).square() / self.noise()[:, None, None]
        return -0.5 * (LOG_2PI + self.log_variance[:, None, None] + squared)

    def noise(self) -> Tensor:
        """Noise variance s, (R,)."""
        return self.log_variance.exp()


class Softmax(nn.Module):
    """y is one of d classes, p(y = c | f) = softmax(f)_c; expectations by one draw of f.

    >>> f = torch.zeros(1, 1, 1, 4)
    >>> round(Softmax().log_density(f, torch.zeros(1, 1, dtype=torch.long)).exp().item(), 2)
    0.25
    """

    def expected(self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor) -> Tensor:
        """Unbiased, from one draw per sample."""
        return self.log_density(mean + variance.sqrt() * noise, y)

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """Log softmax(f)_y, (R, S, B).

        Raises:
            ValueError: for labels outside the classes.
        """
        if bool((y < 0).any()) or bool((y >= f.shape[-1]).any()):
            raise ValueError(f"labels must lie in 0..{f.shape[-1] - 1}, got {int(y.min())}..{int(y.max())}")
        chosen = y.long()[:, None, :, None].expand(*f.shape[:-1], 1)
        return torch.log_softmax(f, -1).gather(-1, chosen)[..., 0]


class Bernoulli(nn.Module):
    """y in {0, 1}, p(y = 1 | f) = logistic(f); expectations by one draw of f.

    >>> round(Bernoulli().log_density(torch.zeros(1, 1, 1, 1), torch.ones(1, 1)).exp().item(), 2)
    0.5
    """

    def expected(self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor) -> Tensor:
        """Unbiased, from one draw per sample."""
        return self.log_density(mean + variance.sqrt() * noise, y)

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """Log p(y | f), (R, S, B).

        Raises:
            ValueError: for labels other than 0 and 1.
        """
        if bool(((y != 0) & (y != 1)).any()):
            raise ValueError(f"labels must be 0 or 1, got values from {float(y.min())} to {float(y.max())}")
        return -nn.functional.softplus(-(2.0 * y.to(f.dtype) - 1.0)[:, None] * f[..., 0])


def make_likelihood(name: str, replicas: int, noise_variance: float = 0.1) -> Gaussian | Softmax | Bernoulli:
    """A likelihood by name: gaussian, softmax, bernoulli.

    Raises:
        ValueError: for an unknown name.
    """
    if name == "gaussian":
        return Gaussian(replicas, noise_variance)
    if name in ("softmax", "bernoulli"):
        return Softmax() if name == "softmax" else Bernoulli()
    raise ValueError(f"unknown likelihood {name!r}; known: gaussian, softmax, bernoulli")
