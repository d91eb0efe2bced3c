"""What a factorisation does to a model: divergence from the dense model and perplexity on fixed sequences, and errors of its weights.

The dense model's log-probabilities are kept once; every method is then one pass. The divergence is the mean over tokens of
KL(dense || factorised) in nats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from tasks.low_rank.attention import AttentionBlock, Projection
from tasks.low_rank.collector import LayerStatistics
from tasks.low_rank.heads import join_heads
from tasks.low_rank.layers import merged
from tasks.low_rank.methods import ModelFactors

BATCH = 4


@dataclass(frozen=True)
class Quality:
    """Mean over sequences.

    Attributes:
        kl_nats: KL(dense || this) per token.
        nats: negative log-likelihood per token.
    """

    kl_nats: float
    nats: float

    @property
    def perplexity(self) -> float:
        """Exponential of the negative log-likelihood; at most e^50, so that broken models stay finite."""
        return math.exp(min(self.nats, 50.0))


@dataclass(frozen=True)
class Reference:
    """Sequences and what the dense model says of them.

    Attributes:
        ids: (n, T) token ids.
        probabilities: the dense model's, per batch, each (b, T - 1, V) float32.
        negentropy: sum over tokens of sum p log p, nats.
        nats: its own negative log-likelihood per token.
    """

    ids: torch.Tensor
    probabilities: tuple[torch.Tensor, ...]
    negentropy: float
    nats: float

    @classmethod
    def of(cls, model: nn.Module, ids: torch.Tensor) -> Reference:
        """Run the dense model over sequences (n, T).

        Raises:
            ValueError: if there are none, or they hold fewer than two tokens.
        """
        if ids.ndim != 2 or len(ids) == 0 or ids.shape[1] < 2:
            raise ValueError(f"sequences must have shape (n, T) with n >= 1 and T >= 2, got {tuple(ids.shape)}")
        probabilities, negentropy, total = [], 0.0, 0.0
        for part in torch.split(ids, BATCH):
            logits = _logits(model, part)
            probabilities.append(logits.softmax(-1))
            negentropy += float((probabilities[-1] * logits.log_softmax(-1)).sum(-1).double().sum())
            total += float(_nats(logits, logits.logsumexp(-1), part))
        return cls(ids, tuple(probabilities), negentropy, total / (len(ids) * (ids.shape[1] - 1)))

    def quality(self, model: nn.Module) -> Quality:
        """Compare a model with the dense one."""
        divergence, nats = self.negentropy, 0.0
        for p, part in zip(self.probabilities, torch.split(self.ids, BATCH), strict=True):
            logits = _logits(model, part)
            normaliser = logits.logsumexp(-1)
            nats += float(_nats(logits, normaliser, part))
            # sum p log q = sum p logit - normaliser: no second array of the vocabulary's size
            divergence += float((normaliser - torch.linalg.vecdot(p, logits)).double().sum())
        tokens = len(self.ids) * (self.ids.shape[1] - 1)
        return Quality(max(divergence / tokens, 0.0), nats / tokens)

    def quality_with(self, model: nn.Module, factors: ModelFactors) -> Quality:
        """The same for a dense model with factors in place of its weights."""
        with merged(model, factors):
            return self.quality(model)


def _logits(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    return found


def _nats(logits: torch.Tensor, normaliser: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return (normaliser - logits.gather(-1, ids[:, 1:, None]).squeeze(-1)).double().sum()


class WeightErrors:
    """Relative squared errors of factors, means over layers and projections.

    `weight_err` is plain, `act_err` weighted with the second moment of the activations, `fisher_err` with the Fisher information.
    """

    def __init__(self, blocks: Sequence[AttentionBlock], statistics: Sequence[LayerStatistics]) -> None:
        self.blocks, self.statistics = blocks, statistics
        self._dense: dict[tuple[int, Projection], dict[str, float]] = {}

    def of(self, factors: ModelFactors) -> dict[str, float]:
        """The three errors of a model's factors."""
        totals = dict.fromkeys(("weight_err", "act_err", "fisher_err"), 0.0)
        for (layer, p), found in factors.items():
            weight = self.blocks[layer].projection(p).weight.detach().float()  # type: ignore[operator]
            if (layer, p) not in self._dense:
                self._dense[layer, p] = self._squares(layer, p, weight)
            for name, value in self._squares(layer, p, found.weight() - weight).items():
                totals[name] += value / self._dense[layer, p][name]
        return {name: total / len(factors) for name, total in totals.items()}

    def _squares(self, layer: int, p: Projection, matrix: torch.Tensor) -> dict[str, float]:
        known = self.statistics[layer]  # matrix (out, E)
        return {
            "weight_err": float(matrix.square().sum()),
            "act_err": float(((matrix @ known.second_moment) * matrix).sum()),
            "fisher_err": float((join_heads(known.fisher[p]) * matrix.square()).sum()),
        }
