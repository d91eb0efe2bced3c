"""What a factorisation does to a model: divergence from the dense model and perplexity on fixed sequences, and errors of its weights.

The dense model's log-probabilities are kept once; every method is then one pass. The divergence is the mean over tokens of
KL(dense || factorised) in nats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from tasks.low_rank.attention import AttentionBlock
from tasks.low_rank.collector import LayerStatistics
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
        logp: the dense model's log-probabilities per batch, each (b, T - 1, V) float32.
        nats: its own negative log-likelihood per token.
    """

    ids: torch.Tensor
    logp: tuple[torch.Tensor, ...]
    nats: float

    @classmethod
    def of(cls, model: nn.Module, ids: torch.Tensor) -> Reference:
        """Run the dense model over sequences (n, T).

        Raises:
            ValueError: if there are none, or they hold fewer than two tokens.
        """
        if ids.ndim != 2 or len(ids) == 0 or ids.shape[1] < 2:
            raise ValueError(f"sequences must have shape (n, T) with n >= 1 and T >= 2, got {tuple(ids.shape)}")
        logp = tuple(_log_probabilities(model, part) for part in ids.split(BATCH))
        total = sum(float(-_of_targets(found, part).double().sum()) for found, part in zip(logp, ids.split(BATCH), strict=True))
        return cls(ids, logp, total / (len(ids) * (ids.shape[1] - 1)))

    def quality(self, model: nn.Module) -> Quality:
        """Compare a model with the dense one."""
        divergence = nats = 0.0
        for kept, part in zip(self.logp, self.ids.split(BATCH), strict=True):
            found = _log_probabilities(model, part)
            nats -= float(_of_targets(found, part).double().sum())
            divergence += float((kept.exp() * (kept - found)).sum(-1).double().sum())
        tokens = len(self.ids) * (self.ids.shape[1] - 1)
        return Quality(max(divergence / tokens, 0.0), nats / tokens)

    def quality_with(self, model: nn.Module, factors: ModelFactors) -> Quality:
        """The same for a dense model with factors in place of its weights."""
        with merged(model, factors):
            return self.quality(model)


def _log_probabilities(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=ids, use_cache=False).logits[:, :-1].float().log_softmax(-1)
    return found


def _of_targets(logp: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return logp.gather(-1, ids[:, 1:, None])


def weight_errors(factors: ModelFactors, blocks: Sequence[AttentionBlock], statistics: Sequence[LayerStatistics]) -> Mapping[str, float]:
    """Relative squared errors, means over layers and projections.

    `weight_err` is plain, `act_err` weighted with the second moment of the activations, `fisher_err` with the Fisher information.
    """
    totals = dict.fromkeys(("weight_err", "act_err", "fisher_err"), 0.0)
    for (layer, p), found in factors.items():
        block, known = blocks[layer], statistics[layer]
        weight = block.projection(p).weight.detach().float()  # type: ignore[operator]
        error = found.weight() - weight  # (out, E)
        moment = known.second_moment
        fisher = known.fisher[p].transpose(1, 2).reshape(weight.shape)  # (out, E)
        totals["weight_err"] += float(error.square().sum() / weight.square().sum())
        totals["act_err"] += float(((error @ moment) * error).sum() / ((weight @ moment) * weight).sum())
        totals["fisher_err"] += float((fisher * error.square()).sum() / (fisher * weight.square()).sum())
    return {name: total / len(factors) for name, total in totals.items()}
