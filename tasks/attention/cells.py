"""Compare methods on recorded queries, keys and values: exact attention is computed once per layer, methods take turns.

A `Case` is one recorded layer of one prompt; `measure` runs a method on all cases of a prompt and returns its errors, pooled over
layers, heads and rows. What is averaged over prompts and seeds is up to the caller, since rows of a prompt are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tasks.attention.errors import Exact, row_errors
from tasks.attention.recording import Recorded
from tasks.attention.registration import generator_for
from tasks.attention.vattention import Selection, VAttentionConfig, select

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.attention.interface import Method, Predictor


@dataclass(frozen=True)
class Case:
    """One recorded layer, with what does not depend on the method.

    Attributes:
        recorded: query, key and value.
        logits: (1, H, R, n).
        valid: bool (R, n).
        values: (1, G, n, d).
        exact: exact attention.
    """

    recorded: Recorded
    logits: Tensor
    valid: Tensor
    values: Tensor
    exact: Exact

    @classmethod
    def of(cls, recorded: Recorded) -> Case:
        """From a recorded layer."""
        logits, valid, values = recorded.logits(), recorded.valid(), recorded.values()
        return cls(recorded, logits, valid, values, Exact.of(logits, valid, values))

    def scores(self, predictor: Predictor | None) -> Tensor:
        """A predictor's scores, the logits without one."""
        r = self.recorded
        return self.logits if predictor is None else predictor(r.layer, r.query, r.key, self.logits)


@dataclass(frozen=True)
class Errors:
    """A method's errors on one prompt; tensors (layers, H, R).

    Attributes:
        density: share of keys read.
        err: relative error of the output.
        derr: signed relative error of the denominator.
    """

    density: Tensor
    err: Tensor
    derr: Tensor

    def summary(self) -> dict[str, float]:
        """`density`, `err_mean`, `err_q95`, `derr_mean`, `dbias`."""
        return {
            "density": float(self.density.mean()),
            "err_mean": float(self.err.mean()),
            "err_q95": quantile(self.err, 0.95),
            "derr_mean": float(self.derr.abs().mean()),
            "dbias": float(self.derr.mean()),
        }

    def violations(self, epsilon: float) -> dict[str, float]:
        """`viol_d` and `viol_sdpa`: shares of rows whose denominator or output misses by more than epsilon."""
        return {
            "viol_d": float((self.derr.abs() > epsilon).float().mean()),
            "viol_sdpa": float((self.err > epsilon).float().mean()),
        }


def measure(
    cases: Sequence[Case],
    method: Method,
    seed: int,
    predictor: Predictor | None = None,
    step: int = 0,
    scores: Sequence[Tensor] | None = None,
) -> Errors:
    """Errors of a method on all layers of a prompt.

    Args:
        cases: the prompt's layers.
        method: which keys are read.
        seed: of the samples; layers draw from streams of their own.
        predictor: what ranks keys; the oracle without one.
        step: another number gives other samples.
        scores: the predictor's, case by case, where they are known already.
    """
    found = []
    for number, case in enumerate(cases):
        generator = generator_for(seed, case.recorded.layer, step, case.logits.device)
        ranked = case.scores(predictor) if scores is None else scores[number]
        weights = method(case.logits, case.valid, ranked, generator, values=case.values)
        found.append(row_errors(case.exact, weights, case.values))
    return Errors(*(torch.cat([getattr(e, name) for e in found]) for name in ("density", "err", "derr")))


def selections(
    cases: Sequence[Case], config: VAttentionConfig, seed: int, predictor: Predictor | None = None
) -> list[tuple[Case, Selection]]:
    """VAttention's selections on all layers, for a look at budgets."""
    return [
        (
            case,
            select(
                case.logits,
                case.valid,
                config,
                generator_for(seed, case.recorded.layer, 0, case.logits.device),
                case.scores(predictor),
                case.values,
            ),
        )
        for case in cases
    ]


def noisy_scores(level: float, seed: int) -> Predictor:
    """A predictor whose scores are the logits plus Gaussian noise of `level` times each row's standard deviation."""

    def predictor(layer: int, query: Tensor, key: Tensor, logits: Tensor) -> Tensor:
        generator = generator_for(seed, layer, 10**6, logits.device)
        noise = torch.randn(logits.shape, generator=generator, device=logits.device)
        return logits + level * logits.std(-1, keepdim=True) * noise

    return predictor


def quantile(values: Tensor, q: float) -> float:
    """Quantile of all entries by linear interpolation; `torch.quantile` refuses large tensors."""
    ordered = values.flatten().double().sort().values
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (at - low) * (ordered[high] - ordered[low]))
