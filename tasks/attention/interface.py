"""What methods and predictors of sparse attention agree on: plain functions on tensors, one layer at a time.

Letters: B batch, H query heads, G key/value heads (H is a multiple of G, query head h reads key/value head h // (H / G)), R rows
(queries of one call), n keys, d head width. A **method** returns weights (B, H, R, n): 0 where a key is not read, 1 where it counts
once, 1 / (probability of being drawn) where it was sampled. The attention output is the softmax-weighted mean with these weights
(`tasks.attention.weighted`). A **predictor** returns scores whose order says which keys are probably heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Method(Protocol):
    """Which keys each row reads, and with what weight."""

    def __call__(
        self, logits: Tensor, valid: Tensor, scores: Tensor, generator: torch.Generator, *, values: Tensor | None = None
    ) -> Tensor:
        """Weights of the keys.

        Args:
            logits: scaled products of queries and keys in float32, (..., R, n); entries that are not valid are ignored.
            valid: bool, broadcastable to `logits`: the keys that causality and padding allow; at least one per row.
            scores: a predictor's scores, (..., R, n), used only to rank keys; the logits themselves are the oracle.
            generator: randomness of this call.
            values: (B, G, n, d), for methods that look at them.

        Returns:
            Weights, float32, (..., R, n).
        """
        ...


class Predictor(Protocol):
    """Scores that rank the keys of one layer."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, logits: Tensor) -> Tensor:
        """Scores (B, H, R, n), larger for keys that are probably heavier.

        Args:
            layer: index of the layer.
            query: (B, H, R, d), after rotary embedding.
            key: (B, G, n, d), after rotary embedding.
            logits: scaled products in float32, (B, H, R, n), for the oracle alone.
        """
        ...
