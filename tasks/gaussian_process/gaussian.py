"""Gaussian posterior over whitened inducing variables (DSVI): full covariance per output column, integrated out by rows.

Salimbeni & Deisenroth (2017), with q(V) = prod_j N(m_j, C_j C_j^T) and prior N(0, I).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tasks.gaussian_process.layers import Inducing
from tasks.gaussian_process.streams import SeedStreams


class GaussianPosterior(nn.Module):
    """N(m_j, C_j C_j^T) for each column j of V (M, d).

    Args:
        replicas: R.
        inducing: M.
        outputs: d.
        scale: initial standard deviation; 1 is the prior's.

    Raises:
        ValueError: for sizes below 1 or a scale that is not positive.

    >>> GaussianPosterior(1, 3, 2).draw(torch.zeros(1, 3, 1), 1, SeedStreams([0])).kl.item()
    0.0
    """

    def __init__(self, replicas: int, inducing: int, outputs: int, scale: float = 1.0) -> None:
        super().__init__()
        if min(replicas, inducing, outputs) < 1:
            raise ValueError(f"replicas, inducing and outputs must be at least 1, got {replicas}, {inducing} and {outputs}")
        if not scale > 0:
            raise ValueError(f"scale must be positive, got {scale}")
        self.mean = nn.Parameter(torch.zeros(replicas, inducing, outputs))
        self.root = nn.Parameter((scale * torch.eye(inducing)).repeat(replicas, outputs, 1, 1))

    def draw(self, z: Tensor, samples: int, streams: SeedStreams) -> Inducing:
        """The Gaussian itself, nothing is drawn; the divergence is exact."""
        factor = self.root.tril()
        kl = 0.5 * (factor.square().sum((1, 2, 3)) + self.mean.square().sum((1, 2)) - self.mean[0].numel())
        kl = kl - factor.diagonal(dim1=-2, dim2=-1).abs().log().sum((1, 2))
        return Inducing(self.mean[:, None], factor, {"kl": kl})
