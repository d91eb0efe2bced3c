"""Decode token by token from a cache: greedily or by sampling, with whatever attention the model is set to."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from tasks.language_models.cache import KeyValueCache

if TYPE_CHECKING:
    import torch


def decode(
    cache: KeyValueCache,
    ids: torch.Tensor,
    new_tokens: int,
    *,
    end: Collection[int] = (),
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
    after: Callable[[int], None] | None = None,
) -> list[int]:
    """Tokens that follow what the cache holds and `ids`.

    Args:
        cache: of one context (batch 1); it grows.
        ids: (1, T), T >= 1, tokens that are read first.
        new_tokens: how many are decoded at most.
        end: tokens that end the text; the one that ends it is not returned.
        temperature: 0 for the most likely token, else of the softmax that is sampled from.
        generator: randomness, needed when the temperature is not 0.
        after: called with each new token.

    Returns:
        The new tokens.

    Raises:
        ValueError: for fewer than one new token, a negative temperature, or sampling without a generator.
    """
    import torch

    if new_tokens < 1:
        raise ValueError(f"new_tokens must be at least 1, got {new_tokens}")
    if temperature < 0 or (temperature > 0 and generator is None):
        raise ValueError(f"temperature must be at least 0, and needs a generator above it, got {temperature}")
    found: list[int] = []
    logits = cache.append(ids)
    while True:
        row = logits[0, -1].float()
        if temperature > 0:
            token = int(torch.multinomial(torch.softmax(row / temperature, -1), 1, generator=generator))
        else:
            token = int(row.argmax())
        if token in end:
            return found
        found.append(token)
        if after is not None:
            after(token)
        if len(found) == new_tokens:
            return found
        logits = cache.append(torch.tensor([[token]], device=ids.device))
