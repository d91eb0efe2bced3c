"""Covariance functions with a leading axis of replicas, and their Cholesky factors.

Every parameter has shape (R, ...), one slice per seed, so that R small problems cost one batched call.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

JITTER = 1e-4
LARGEST_JITTER = 1e-2
LENGTHSCALES = (1e-2, 1e2)
"""Where lengthscales are kept: beyond, float32 Gram matrices of close points are singular."""


class ArdRbf(nn.Module):
    """k(a, b) = v exp(-1/2 sum_j ((a_j - b_j) / l_j)^2), with one lengthscale l_j per feature.

    Args:
        replicas: R.
        features: D.
        lengthscale: initial value of every l_j, > 0.
        variance: initial v, > 0.

    Raises:
        ValueError: for sizes below 1 or values that are not positive.

    >>> kernel = ArdRbf(replicas=2, features=3)
    >>> x = torch.zeros(2, 4, 3)
    >>> kernel(x, x).shape, kernel.diagonal().tolist()
    (torch.Size([2, 4, 4]), [1.0, 1.0])
    """

    def __init__(self, replicas: int, features: int, lengthscale: float = 1.0, variance: float = 1.0) -> None:
        super().__init__()
        if replicas < 1 or features < 1:
            raise ValueError(f"replicas and features must be at least 1, got {replicas} and {features}")
        if not (lengthscale > 0 and variance > 0):
            raise ValueError(f"lengthscale and variance must be positive, got {lengthscale} and {variance}")
        self.log_lengthscale = nn.Parameter(torch.full((replicas, features), math.log(lengthscale)))
        self.log_variance = nn.Parameter(torch.full((replicas,), math.log(variance)))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Covariances (R, n, m) of a (R, n, D) and b (R, m, D)."""
        scale = self.lengthscale()[:, None, :]
        a, b = a / scale, b / scale
        squared = a.square().sum(-1)[:, :, None] + b.square().sum(-1)[:, None, :] - 2 * (a @ b.mT)
        covariance: Tensor = torch.exp(self.log_variance[:, None, None] - 0.5 * squared.clamp_min(0.0))
        return covariance

    def lengthscale(self) -> Tensor:
        """Lengthscales (R, D), kept inside `LENGTHSCALES`."""
        lo, hi = (math.log(v) for v in LENGTHSCALES)
        return self.log_lengthscale.clamp(lo, hi).exp()

    def diagonal(self) -> Tensor:
        """k(a, a), the same for all a, (R,)."""
        return self.log_variance.exp()


def cholesky(gram: Tensor, variance: Tensor, jitter: float = JITTER, name: str = "gram matrix") -> Tensor:
    """Lower Cholesky factors of gram + jitter * variance * I.

    Where the factorisation fails, that replica's jitter grows tenfold, up to `LARGEST_JITTER`.

    Args:
        gram: (R, M, M), symmetric.
        variance: scale of each replica, (R,).
        jitter: relative to `variance`, >= 0.
        name: of the layer, for the message.

    Raises:
        RuntimeError: if a replica's matrix is not positive definite with the largest jitter either, naming layer and replica.

    >>> cholesky(torch.eye(2)[None], torch.ones(1), jitter=0.0)[0].diagonal().tolist()
    [1.0, 1.0]
    """
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    amount = torch.full_like(variance, jitter)
    while True:
        factor: Tensor
        factor, info = torch.linalg.cholesky_ex(gram + (amount * variance)[:, None, None] * eye)
        failed = info > 0
        if not bool(failed.any()):
            return factor
        if float(amount[failed].max()) >= LARGEST_JITTER * 0.999:
            replica = int(failed.nonzero()[0])
            raise RuntimeError(
                f"{name}: the Gram matrix of replica {replica} is not positive definite even with jitter {LARGEST_JITTER} x variance; "
                "inducing inputs coincide or are not finite; use fewer of them, a lower learning rate, or float64"
            )
        amount = torch.where(failed, (10 * amount).clamp(min=1e-6, max=LARGEST_JITTER), amount)
