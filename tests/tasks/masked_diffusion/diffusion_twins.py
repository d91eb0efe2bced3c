"""Slow, obvious twins of the schedulers, and small denoisers for tests."""

from __future__ import annotations

import numpy as np
import torch

from tasks.masked_diffusion.model import MaskedDiffusionTransformer, ModelConfig

MASK, EOS, STOP = 0, 1, 2


def small_model(positions: int = 30, seed: int = 0, vocabulary: int = 9, layers: int = 2) -> MaskedDiffusionTransformer:
    config = ModelConfig(vocabulary, positions, width=16, layers=layers, heads=2, hidden=32, mask_id=MASK)
    return MaskedDiffusionTransformer(config, torch.Generator().manual_seed(seed)).eval()


def full_logits(model, tokens: list[int]) -> np.ndarray:
    """Logits of a whole sequence, the mask excluded."""
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), torch.arange(len(tokens)), None)[0].double().numpy().copy()
    logits[:, MASK] = -np.inf
    return logits


def left_to_right(model, prompt: list[int], length: int) -> list[int]:
    """One token per full forward pass, greedily."""
    tokens = [*prompt, *[MASK] * length]
    for place in range(len(prompt), len(tokens)):
        tokens[place] = int(full_logits(model, tokens)[place].argmax())
    return tokens[len(prompt) :]


@torch.inference_mode()
def attention_written_out(model, tokens, positions, frozen):
    """Logits (L, V) of inputs that attend to frozen states and to each other, and the inputs' own (key, value) per layer and place.

    Args:
        frozen: (key, value) of every frozen position, each (heads, width), by layer.
    """
    heads, width = model.config.heads, model.config.width // model.config.heads
    angles = (positions[:, None].double() * 10_000.0 ** (-torch.arange(0, width, 2).double() / width))[:, None]  # (L, 1, width / 2)

    def turned(x):
        even, odd = x[..., ::2].double(), x[..., 1::2].double()
        pairs = torch.stack([even * angles.cos() - odd * angles.sin(), odd * angles.cos() + even * angles.sin()], -1)
        return pairs.flatten(-2).float()

    x, states = model.embedding(tokens) + model.places(positions), []
    for block, kept in zip(model.blocks, frozen, strict=True):
        query, key, value = (part.view(-1, heads, width) for part in block.qkv(block.attention_norm(x)).chunk(3, -1))
        new = list(zip(turned(key), value, strict=True))
        keys, values = (torch.stack(part) for part in zip(*kept, *new, strict=True))
        weights = (torch.einsum("qhd,khd->hqk", turned(query), keys) / width**0.5).softmax(-1)
        x = x + block.out(torch.einsum("hqk,khd->qhd", weights, values).flatten(1))
        x = x + block.down(torch.nn.functional.gelu(block.up(block.mlp_norm(x))))
        states.append(new)
    return model.head(model.norm(x)), states


def slow_threshold(model, prompt: list[int], length: int, threshold: float, block: int) -> tuple[list[int], int]:
    """Threshold decoding in blocks, straight from its definition."""
    tokens, calls = [*prompt, *[MASK] * length], 0
    for start in range(len(prompt), len(tokens), block):
        places = list(range(start, start + block))
        while any(tokens[p] == MASK for p in places):
            logits = full_logits(model, tokens)
            calls += 1
            chances = np.exp(logits - logits.max(1, keepdims=True))
            chances /= chances.sum(1, keepdims=True)
            masked = [p for p in places if tokens[p] == MASK]
            sure = [p for p in masked if chances[p].max() >= threshold] or [max(masked, key=lambda p: chances[p].max())]
            for p in sure:
                tokens[p] = int(chances[p].argmax())
    return tokens[len(prompt) :], calls


def slow_length(margins, alpha: float, beta: float, tau_min: float | None) -> int:
    """L' by trying every threshold: the largest that lets the lower bound through, raised to the floor, capped."""
    n = len(margins)
    low = max(1, int(np.ceil(np.round(alpha * n, 9))))
    high = max(low, int(np.floor(np.round(beta * n, 9))))

    def reach(tau: float) -> int:
        j = 0
        while j < n and margins[j] >= tau and margins[j] > -np.inf:
            j += 1
        return j

    good = [tau for tau in margins if reach(tau) >= low]
    tau = max(good) if good else -np.inf
    if tau_min is not None:
        tau = max(tau, tau_min)
    return min(reach(tau), high)


class Chain:
    """Sure of every token but one, which it knows only when its left neighbour is committed."""

    def __init__(self, prompt: int, answer: list[int], uncertain: int, vocabulary: int = 9) -> None:
        self._prompt, self._answer, self._uncertain, self._vocabulary = prompt, answer, uncertain, vocabulary

    def __call__(self, tokens, positions, cache):
        logits = torch.zeros(1, tokens.shape[1], self._vocabulary)
        known = {int(p): int(t) for p, t in zip(positions, tokens[0], strict=True)}
        for row, position in enumerate(positions.tolist()):
            place = position - self._prompt
            if place < 0:
                continue
            left = known.get(position - 1, MASK) != MASK or place == 0
            margin = 0.0 if place == self._uncertain and not left else 10.0
            logits[0, row, self._answer[place]] = margin
        return logits
