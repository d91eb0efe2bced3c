"""Whitening of activations: S with S S^T = E[x x^T], so that the error of x W is a plain norm of S^T W.

E|x (W - W')|^2 = |S^T (W - W')|^2 in the Frobenius norm; the best W' of a rank is therefore a truncated SVD of S^T W (Wang et al.,
"SVD-LLM", 2024).
"""

from __future__ import annotations

import torch

RIDGE = 1e-4
"""First ridge that is tried, as a share of the mean of the diagonal; it grows tenfold until the matrix is positive definite."""
LARGEST_RIDGE = 1.0


def whitening(second_moment: torch.Tensor, ridge: float = RIDGE) -> torch.Tensor:
    """Lower triangular S, (E, E), float64, with S S^T = second moment + a ridge where one is needed.

    Args:
        second_moment: E[x x^T], (E, E), symmetric.
        ridge: of the first retry, relative to the mean of the diagonal.

    Raises:
        ValueError: if the matrix is not square or not finite, or stays indefinite with the largest ridge; for a ridge outside (0, 1].

    >>> whitening(torch.diag(torch.tensor([4.0, 9.0]))).diagonal().tolist()
    [2.0, 3.0]
    """
    if not 0 < ridge <= LARGEST_RIDGE:
        raise ValueError(f"the first ridge must lie in (0, {LARGEST_RIDGE:g}], got {ridge}")
    if second_moment.ndim != 2 or second_moment.shape[0] != second_moment.shape[1]:
        raise ValueError(f"a second moment is a square matrix, got shape {tuple(second_moment.shape)}")
    if not torch.isfinite(second_moment).all():
        raise ValueError("the second moment of the activations is not finite; look for overflow in the calibration pass")
    moment = second_moment.double()
    moment = (moment + moment.T) / 2
    scale = moment.diagonal().mean().clamp_min(torch.finfo(torch.float64).tiny)
    identity = torch.eye(len(moment), dtype=moment.dtype, device=moment.device)
    share = 0.0
    while share <= LARGEST_RIDGE:
        # A pivot at rounding level passes for positive definite and makes S useless: such matrices get a ridge as well.
        factor, failed = torch.linalg.cholesky_ex(moment + share * scale * identity)
        if not int(failed) and float(factor.diagonal().min()) ** 2 > 1e-12 * float(scale):
            found: torch.Tensor = factor
            return found
        share = ridge if share == 0 else 10 * share
    raise ValueError(
        f"the second moment is indefinite even with a ridge of {LARGEST_RIDGE} times its mean diagonal; use more calibration tokens"
    )


def unwhiten(factor: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """S^-T times columns, (..., E, r): from whitened coordinates back to those of the weight."""
    found: torch.Tensor = torch.linalg.solve_triangular(factor.T, columns.to(factor.dtype), upper=True)
    return found
