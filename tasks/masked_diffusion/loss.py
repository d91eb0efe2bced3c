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
"""t is uniform on (LEAST, 1), so that 1 / t stays bounded."""


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
    t = LEAST + (1 - LEAST) * torch.rand(count, generator=generator)
    uniform = torch.rand(count, length, generator=generator) < t[:, None]
    suffix = torch.arange(length) >= length - torch.ceil(t * length)[:, None]
    chosen = torch.rand(count, generator=generator) < suffix_share
    return torch.where(chosen[:, None], suffix, uniform), t


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
