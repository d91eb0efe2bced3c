"""How far sparse attention is from exact attention on the same queries, keys and values, row by row.

All figures are local: of one layer, given what that layer was fed. `derr` is the signed relative error of the softmax denominator, `err`
the relative L2 error of the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tasks.attention.weighted import exponentials, mix_values

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Exact:
    """Exact attention of some rows, computed once and compared with many methods.

    Attributes:
        e: exp(s - m) of the valid keys, (..., R, n).
        denominator: their sum, (..., R).
        output: (..., R, d).
        counts: number of valid keys, (..., R).
    """

    e: Tensor
    denominator: Tensor
    output: Tensor
    counts: Tensor

    @classmethod
    def of(cls, logits: Tensor, valid: Tensor, values: Tensor) -> Exact:
        """From logits (..., R, n), valid keys and values (..., n, d), or with fewer heads."""
        e = exponentials(logits, valid)
        total = e.sum(-1)
        counts = valid.sum(-1).expand(total.shape)
        return cls(e, total, mix_values(e, values) / total[..., None].clamp(min=torch.finfo(torch.float32).tiny), counts)

    def entropy(self) -> Tensor:
        """Entropy of the softmax in nats, (..., R)."""
        p = self.e / self.denominator[..., None]
        return -torch.xlogy(p, p).sum(-1)


@dataclass(frozen=True)
class RowErrors:
    """Errors of a method, all (..., R).

    Attributes:
        density: share of the valid keys that was read.
        err: |output - exact| / |exact|, Euclidean.
        derr: (D_hat - D) / D, signed.
    """

    density: Tensor
    err: Tensor
    derr: Tensor


def row_errors(exact: Exact, weights: Tensor, values: Tensor, output: Tensor | None = None) -> RowErrors:
    """Errors of weights (..., R, n) against exact attention.

    Args:
        exact: exact attention of the same rows.
        weights: 0 where a key is not read.
        values: (..., n, d).
        output: the method's output, if it is known already.
    """
    weighted = weights * exact.e
    total = weighted.sum(-1)
    if output is None:
        output = mix_values(weighted, values) / total[..., None].clamp(min=torch.finfo(torch.float32).tiny)
    size = torch.linalg.vector_norm(exact.output, dim=-1).clamp(min=torch.finfo(torch.float32).tiny)
    return RowErrors(
        density=(weights > 0).sum(-1) / exact.counts.clamp(min=1),
        err=torch.linalg.vector_norm(output - exact.output, dim=-1) / size,
        derr=total / exact.denominator - 1,
    )
