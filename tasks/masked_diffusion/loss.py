"""The loss of masked diffusion (LLaDA, Nie et al., 2025, eq. 3) and the law of the masks.

L = E_t [ 1 / (t N) sum over masked i of -log p(x_i | prompt, x with masks) ], t uniform. The published law masks every answer token
with probability t. Decoding from left to right meets other masks: everything behind a boundary. `suffix_share` is the
share of samples that are masked like that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LEAST = 0.02
"""t is uniform on (LEAST, 1), so that 1 / t stays bounded; of B levels one lies in every B-th of it, which lowers the variance."""


def draw_masks(count: int, length: int, suffix_share: float, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks of answers.

    Args:
        count: how many, B.
        length: answer tokens, N.
        suffix_share: share of samples whose last ceil(t N) tokens are masked; in the others each token is, with probability t.
        generator: randomness.

    Returns:
        masks (B, N) of booleans, and t (B,).

    Raises:
        ValueError: for a share outside [0, 1].

    >>> import torch
    >>> masks, t = draw_masks(3, 10, 1.0, torch.Generator().manual_seed(0))
    >>> bool((masks.sum(1) == torch.ceil(10 * t)).all()), bool(masks[:, -1].all())
    (True, True)
    """
    import torch

    if not 0 <= suffix_share <= 1:
        raise ValueError(f"suffix_share must lie in [0, 1], got {suffix_share}")
    t = LEAST + (1 - LEAST) * (torch.arange(count) + torch.rand(count, generator=generator)) / count
    uniform = torch.rand(count, length, generator=generator) < t[:, None]
    suffix = torch.arange(length) >= length - torch.ceil(t * length)[:, None]
    chosen = torch.rand(count, generator=generator) < suffix_share
    return torch.where(chosen[:, None], suffix, uniform), t


def frozen_prefix(masks: torch.Tensor, prompt: int, frozen: torch.Tensor) -> torch.Tensor:
    """Which positions may be attended to from which, when what stands before the first mask must not look ahead.

    With a cache, states of the prompt and of committed tokens stay as they were when nothing behind them was known. In samples that are
    `frozen` the model learns to do without looking back at them again: the prompt sees itself alone, and a known token before the first
    mask sees what stands before it. Positions from the first mask on see everything.

    Args:
        masks: (B, N) of answer tokens.
        prompt: tokens in front of the answer, P.
        frozen: (B,) of booleans; other samples see everything from everywhere.

    Returns:
        (B, P + N, P + N) of booleans, seen from the first index.

    >>> import torch
    >>> frozen_prefix(torch.tensor([[False, False, True]]), 1, torch.tensor([True])).int()[0].tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    """
    import torch

    length = masks.shape[1]
    first = prompt + torch.where(masks.any(1), masks.int().argmax(1), length)  # (B,)
    place = torch.arange(prompt + length, device=masks.device)
    edge = place.clamp(min=prompt - 1)  # the last position that a position of the prefix may see
    ahead = place[None, :] > edge[:, None]  # (L, L)
    prefix = place[None, :] < first[:, None]  # (B, L)
    return ~(frozen[:, None, None] & prefix[:, :, None] & ahead[None])


def masked_loss(logits: torch.Tensor, answers: torch.Tensor, masks: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Cross entropy of masked tokens, weighted by 1 / t, per answer token.

    Args:
        logits: of the answer's positions, (B, N, V).
        answers: true tokens (B, N).
        masks: which were hidden, (B, N).
        t: levels (B,).

    Returns:
        a scalar.
    """
    from torch.nn.functional import cross_entropy

    losses = cross_entropy(logits.flatten(0, 1).float(), answers.flatten(), reduction="none").view_as(answers)
    return (losses * masks / t[:, None]).sum() / answers.numel()
