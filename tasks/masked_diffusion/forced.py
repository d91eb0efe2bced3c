"""A denoiser whose predictions are given: the true answer with chosen margins, for timing and for exact tests.

With a network inside, every call runs it, so that a call costs what it costs, but what is committed does not depend on it: two ways to
decode can be timed on exactly the same commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tasks.masked_diffusion.cache import Shape, StateCache


class ForcedDenoiser:
    """Predicts `answer[i]` at position `prompt + i` with margin `margins[i]`.

    Args:
        prompt: its length P.
        answer: tokens (N,).
        margins: top-1 minus top-2 logit at each of them, (N,), at least 0.
        vocabulary: tokens, at least 3, so that a second and a third one exist.
        network: a denoiser that is run in every call and whose logits are dropped, or None.

    Raises:
        ValueError: if lengths differ or a margin is negative.

    >>> denoiser = ForcedDenoiser(2, [1, 2], [5.0, 0.5], vocabulary=4)
    >>> logits = denoiser(torch.zeros(1, 4, dtype=torch.long), torch.arange(4), None)
    >>> logits[0, 2:].topk(2).values.diff().abs().flatten().tolist()
    [5.0, 0.5]
    """

    lookback = 0

    def __init__(self, prompt: int, answer: Sequence[int], margins: Sequence[float], vocabulary: int, network: Any = None) -> None:
        if len(answer) != len(margins):
            raise ValueError(f"answer and margins must be of one length, got {len(answer)} and {len(margins)}")
        if min(margins, default=0.0) < 0:
            raise ValueError(f"margins must be at least 0, got {min(margins)}")
        self._prompt, self._network = prompt, network
        self._logits = torch.full((prompt + len(answer), vocabulary), -50.0)
        for place, (token, margin) in enumerate(zip(answer, margins, strict=True)):
            self._logits[prompt + place, (token + 1) % vocabulary] = 0.0
            self._logits[prompt + place, token] = float(margin)

    def __call__(self, tokens: torch.Tensor, positions: torch.Tensor, cache: StateCache | None, /) -> torch.Tensor:
        """Logits (1, L, V)."""
        if self._network is not None:
            self._network(tokens, positions, cache)
        return self._logits.to(positions.device)[positions][None].clone()

    def new_cache(self, capacity: int) -> StateCache:
        """The network's cache, or one without layers."""
        return self._network.new_cache(capacity) if self._network is not None else StateCache(Shape(0, 1, 1), capacity)
