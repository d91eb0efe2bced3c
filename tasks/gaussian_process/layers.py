"""One sparse Gaussian-process layer: the whitened conditional of f given values at inducing inputs, by rows.

With K_ZZ = L L^T and U = L V, the conditional of f at h is Gaussian with mean A^T V + mean_fn(h) and variance
k(h, h) - sum A^2, A = L^-1 k(Z, h) (Salimbeni & Deisenroth, 2017, Sec. 3). Shapes: R replicas, S posterior samples, B rows,
D features, M inducing inputs, d outputs. The layer does not know where V comes from.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tasks.gaussian_process.kernels import JITTER, ArdRbf, cholesky

SMALLEST_VARIANCE = 1e-6


@dataclass(frozen=True)
class Inducing:
    """What a posterior says about one layer's whitened inducing variables.

    Attributes:
        values: samples of V, or means when `factor` is given, (R, S or 1, M, d).
        factor: lower factors of a Gaussian's covariance around `values`, integrated out by rows, (R, d, M, M).
        terms: parts of the divergence from the prior by name, each (R,), in nats; they sum to `kl`.
        diagnostics: further numbers by name, each (R,), without a gradient.
        matching: a score-matching loss (R,), of posteriors that offer one beside the bound.
    """

    values: Tensor
    factor: Tensor | None = None
    terms: dict[str, Tensor] = field(default_factory=dict)
    diagnostics: dict[str, Tensor] = field(default_factory=dict)
    matching: Tensor | None = None

    @property
    def kl(self) -> Tensor:
        """Divergence from the prior, (R,); zero where no terms are given."""
        parts = list(self.terms.values())
        return torch.stack(parts).sum(0) if parts else self.values.new_zeros(self.values.shape[0])


class SparseLayer(nn.Module):
    """A layer of d independent Gaussian processes with one ARD kernel.

    Args:
        z: initial inducing inputs, (R, M, D).
        outputs: d.
        mean: weights of a linear mean function (R, D, d), which stay fixed; None for zero mean.
        variance: initial kernel variance.
        lengthscale: initial lengthscale; sqrt(D) when None.
        jitter: relative jitter of K_ZZ.
        name: for messages.

    Raises:
        ValueError: for shapes that do not fit, or no outputs.

    >>> layer = SparseLayer(torch.zeros(1, 1, 2), outputs=3)
    >>> mean, var = layer.moments(torch.zeros(1, 1, 5, 2), Inducing(torch.zeros(1, 4, 1, 3)))
    >>> mean.shape, var.shape
    (torch.Size([1, 4, 5, 3]), torch.Size([1, 1, 5, 1]))
    """

    def __init__(
        self,
        z: Tensor,
        outputs: int,
        mean: Tensor | None = None,
        variance: float = 1.0,
        lengthscale: float | None = None,
        jitter: float = JITTER,
        name: str = "layer",
    ) -> None:
        super().__init__()
        if z.ndim != 3:
            raise ValueError(f"{name}: z must have shape (R, M, D), got {tuple(z.shape)}")
        if outputs < 1:
            raise ValueError(f"{name}: outputs must be at least 1, got {outputs}")
        replicas, _, features = z.shape
        if mean is not None and mean.shape != (replicas, features, outputs):
            raise ValueError(f"{name}: mean must have shape {(replicas, features, outputs)}, got {tuple(mean.shape)}")
        self.kernel = ArdRbf(replicas, features, features**0.5 if lengthscale is None else lengthscale, variance)
        self.z = nn.Parameter(z.detach().clone())
        self.mean: Tensor | None
        self.register_buffer("mean", None if mean is None else mean.detach().clone())
        self.outputs, self.name, self.jitter = outputs, name, jitter

    def factor(self) -> Tensor:
        """L with L L^T = K_ZZ + jitter, (R, M, M)."""
        return cholesky(self.kernel(self.z, self.z), self.kernel.diagonal(), self.jitter, self.name)

    def moments(self, h: Tensor, inducing: Inducing, factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance of f by rows, given V (or V's Gaussian integrated out).

        Args:
            h: inputs (R, S or 1, B, D).
            inducing: values (R, S or 1, M, d).
            factor: `factor()`, if the caller has it already.

        Returns:
            mean (R, S, B, d) and variance (R, S or 1, B, d or 1), broadcastable against each other.
        """
        replicas, samples, rows, features = h.shape
        lower = self.factor() if factor is None else factor
        cross = self.kernel(self.z, h.reshape(replicas, samples * rows, features))
        a = torch.linalg.solve_triangular(lower, cross, upper=False)  # (R, M, S*B)
        explained = a.square().sum(1).reshape(replicas, samples, rows, 1)
        variance = self.kernel.diagonal()[:, None, None, None] - explained
        if inducing.factor is not None:
            spread = (inducing.factor.mT @ a[:, None]).square().sum(2)  # (R, d, S*B)
            variance = variance + spread.reshape(replicas, self.outputs, samples, rows).permute(0, 2, 3, 1)
        by_sample = a.reshape(replicas, -1, samples, rows).permute(0, 2, 3, 1)  # (R, S, B, M)
        mean = by_sample @ inducing.values
        if self.mean is not None:
            mean = mean + h @ self.mean[:, None]
        return mean, variance.clamp_min(SMALLEST_VARIANCE)


def linear_mean(x: Tensor, outputs: int) -> Tensor:
    """Weights of a hidden layer's mean function: identity where widths agree, else the leading principal axes of x.

    Args:
        x: inputs of the layer, (R, N, D).
        outputs: d. Beyond D, further outputs have mean zero.

    Returns:
        (R, D, d).

    >>> linear_mean(torch.randn(1, 9, 3, generator=torch.Generator().manual_seed(0)), 3)[0].diagonal().tolist()
    [1.0, 1.0, 1.0]
    """
    replicas, _, features = x.shape
    if outputs >= features:
        return torch.eye(features, outputs, dtype=x.dtype, device=x.device).expand(replicas, -1, -1).clone()
    _, _, axes = torch.linalg.svd(x - x.mean(1, keepdim=True), full_matrices=False)  # (R, D, D), rows are axes
    axes = axes[:, :outputs]
    largest = axes.gather(2, axes.abs().argmax(2, keepdim=True))  # a sign of its own for each axis, else it is arbitrary
    oriented: Tensor = axes * largest.sign()
    return oriented.mT.contiguous()
