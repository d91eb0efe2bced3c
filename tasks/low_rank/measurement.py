"""What a factorisation does to a model: divergence from the dense model and perplexity on fixed sequences, and errors of its weights.

The dense model's probabilities are kept once; every method is then one pass. The divergence is the mean over tokens of
KL(dense || factorised) in nats. Words are scored a few positions at a time, so that an array of the vocabulary's width stays in the
processor's cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from tasks.low_rank.attention import AttentionBlock, Projection
from tasks.low_rank.collector import LayerStatistics
from tasks.low_rank.heads import join_heads
from tasks.low_rank.layers import merged
from tasks.low_rank.methods import ModelFactors

BATCH = 8
ROWS = 16
"""Positions whose words are scored at a time."""


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
        probabilities: the dense model's, a few positions at a time, each (n, V) float32.
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
        for rows, targets in _scored(model, ids):
            p = rows.softmax(-1)
            normaliser = rows.logsumexp(-1)
            probabilities.append(p)
            negentropy += _dot(p, rows) - float(normaliser.double().sum())
            total += _nats(rows, normaliser, targets)
        return cls(ids, tuple(probabilities), negentropy, total / (len(ids) * (ids.shape[1] - 1)))

    def quality(self, model: nn.Module) -> Quality:
        """Compare a model with the dense one."""
        divergence, nats = self.negentropy, 0.0
        for p, (rows, targets) in zip(self.probabilities, _scored(model, self.ids), strict=True):
            # sum p log q = sum p logit - normaliser: no second array of the vocabulary's size
            divergence -= _dot(p, rows)
            largest = rows.amax(-1, keepdim=True)
            right = rows.gather(-1, targets[:, None])
            normaliser = (rows.sub_(largest).exp_().sum(-1, keepdim=True).log() + largest).double()
            divergence += float(normaliser.sum())
            nats += float((normaliser - right).sum())
        tokens = len(self.ids) * (self.ids.shape[1] - 1)
        return Quality(max(divergence / tokens, 0.0), nats / tokens)

    def quality_with(self, model: nn.Module, factors: ModelFactors) -> Quality:
        """The same for a dense model with factors in place of its weights."""
        with merged(model, factors):
            return self.quality(model)


def _scored(model: nn.Module, ids: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Logits (n, V) float32 of a few positions at a time, theirs to overwrite, and the tokens that come next, (n,)."""
    with torch.inference_mode():
        for part in torch.split(ids, BATCH):
            hidden = model.base_model(input_ids=part, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1)  # type: ignore[operator]
            logits = model.get_output_embeddings()(hidden)  # type: ignore[operator]
            for rows, targets in zip(torch.split(logits, ROWS), torch.split(part[:, 1:].flatten(), ROWS), strict=True):
                yield rows.to(torch.float32, copy=True), targets


def _dot(p: torch.Tensor, rows: torch.Tensor) -> float:
    return float(torch.dot(p.flatten(), rows.flatten()))


def _nats(rows: torch.Tensor, normaliser: torch.Tensor, targets: torch.Tensor) -> float:
    return float((normaliser - rows.gather(-1, targets[:, None]).squeeze(-1)).double().sum())


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
