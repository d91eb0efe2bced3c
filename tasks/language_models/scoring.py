"""Teacher-forced scores of a language model: perplexity, negative log-likelihood, exact match, and divergence from a reference.

Everything is computed in float32, whatever the logits' dtype. Shapes: T positions, V tokens in the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ForcedScore:
    """How a model fared on tokens that were given to it.

    Attributes:
        nats: mean negative log-likelihood of the right tokens.
        matches: share of positions whose most likely token is the right one.
        exact: whether that holds for all of them, so that greedy decoding gives exactly this text.
        tokens: number of positions.
    """

    nats: float
    matches: float
    exact: bool
    tokens: int


def token_nats(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Negative log-likelihood of each target.

    Args:
        logits: (..., T, V), row t being the prediction of `targets[..., t]`.
        targets: (..., T) token ids.

    Returns:
        (..., T) nats, float32.

    Raises:
        ValueError: if the shapes do not belong together.
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(f"logits (..., T, V) and targets (..., T) must agree, got {tuple(logits.shape)} and {tuple(targets.shape)}")
    logp = logits.float().log_softmax(-1)
    return -logp.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)


def forced_score(logits: torch.Tensor, targets: torch.Tensor) -> ForcedScore:
    """Score of one answer whose tokens were all given.

    Args:
        logits: (T, V); row t predicts `targets[t]`. The first row is that of the last prompt token.
        targets: (T,) the answer, T >= 1.

    Example:
        >>> import torch
        >>> forced_score(torch.tensor([[0.0, 5.0], [5.0, 0.0]]), torch.tensor([1, 0])).exact
        True
    """
    if targets.numel() == 0:
        raise ValueError("targets must hold at least one token, got none")
    nats = token_nats(logits, targets)
    hits = logits.float().argmax(-1) == targets
    return ForcedScore(float(nats.mean()), float(hits.float().mean()), bool(hits.all()), targets.numel())


def kl_to_reference(reference: torch.Tensor, other: torch.Tensor, positions: torch.Tensor | None = None) -> float:
    """Mean over positions of KL(reference || other), in nats.

    Args:
        reference: logits (T, V) of the model that counts as the truth, for example with dense attention.
        other: logits (T, V) of the approximation.
        positions: indices or a mask of the positions that count; None for all.

    Raises:
        ValueError: if shapes differ or no position is left.

    Example:
        >>> import torch
        >>> same = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
        >>> kl_to_reference(same, same + 2.0) < 1e-6
        True
    """
    if reference.shape != other.shape:
        raise ValueError(f"reference and other must have one shape, got {tuple(reference.shape)} and {tuple(other.shape)}")
    if positions is not None:
        reference, other = reference[positions], other[positions]
    if reference.shape[0] == 0:
        raise ValueError("no position is left to compare; give positions that select at least one")
    p, q = reference.float().log_softmax(-1), other.float().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean().clamp_min(0.0))


def perplexity(model: Any, sequences: Iterable[torch.Tensor], *, batch: int = 4) -> float:
    """Exponential of the mean negative log-likelihood per token over sequences, each read from its own start.

    Args:
        model: a transformers causal language model.
        sequences: (T,) token ids each, T >= 2; those of one length are batched.
        batch: sequences per forward pass.

    Raises:
        ValueError: if there are none, or one is shorter than two tokens.
    """
    return math.exp(mean_nats(model, sequences, batch=batch))


def mean_nats(model: Any, sequences: Iterable[torch.Tensor], *, batch: int = 4) -> float:
    """Mean negative log-likelihood per predicted token, in nats; arguments as in `perplexity`."""
    per_sequence = sequence_nats(model, sequences, batch=batch)
    return sum(total for total, _ in per_sequence) / sum(count for _, count in per_sequence)


def sequence_nats(model: Any, sequences: Iterable[torch.Tensor], *, batch: int = 4) -> list[tuple[float, int]]:
    """(summed nats, predicted tokens) of each sequence, in order; arguments as in `perplexity`."""
    import torch

    todo = list(sequences)
    if not todo or min(s.numel() for s in todo) < 2:
        raise ValueError(f"sequences must each hold at least 2 tokens, got lengths {[s.numel() for s in todo]}")
    found: list[tuple[float, int]] = [(0.0, 0)] * len(todo)
    lengths = sorted({s.numel() for s in todo})
    device = next(model.parameters()).device
    for length in lengths:
        members = [i for i, s in enumerate(todo) if s.numel() == length]
        for start in range(0, len(members), batch):
            chosen = members[start : start + batch]
            ids = torch.stack([todo[i] for i in chosen]).to(device)
            with torch.inference_mode():
                logits = model(ids, use_cache=False).logits[:, :-1]
            for i, row, target in zip(chosen, logits, ids[:, 1:], strict=True):
                found[i] = float(token_nats(row, target).double().sum()), length - 1
    return found
