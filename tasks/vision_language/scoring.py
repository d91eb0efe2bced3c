"""Answers of a vision-language model compared with the right ones, question by question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.vision_language.digit_grid import CELLS, Grids

if TYPE_CHECKING:
    import torch

IMAGE_TOKENS = 1 + CELLS


def answer_logits(model: Any, grids: Grids, batch: int = 64) -> torch.Tensor:
    """Logits of the answer to every question, (n, turns, V), float32.

    Questions about one image share a sequence, <bos> image what where what where ..., but see the image and themselves alone: a mask hides
    the others, and every question stands at the same positions. That is the same as asking one by one, and reads the image once.

    Args:
        model: a LLaVA model whose attention takes masks (`sdpa` or `eager`).
        grids: images with questions.
        batch: images per pass.
    """
    import torch

    device = next(model.parameters()).device
    mask, positions = (part.to(device) for part in _separate(grids.questions.shape[1]))
    found = []
    for start in range(0, len(grids.pixels), batch):
        rows = slice(start, start + batch)
        given = grids.batch(rows)
        questions = torch.from_numpy(grids.questions[rows].reshape(len(given["input_ids"]), -1))
        ids = torch.cat([given["input_ids"][:, :IMAGE_TOKENS], questions], dim=1).to(device)
        with torch.inference_mode():
            output = model(
                input_ids=ids,
                pixel_values=given["pixel_values"].to(device),
                attention_mask=mask.expand(len(ids), -1, -1, -1),
                position_ids=positions.expand(len(ids), -1),
                use_cache=False,
            )
        found.append(output.logits[:, IMAGE_TOKENS + 1 :: 2].float().cpu())
    return torch.cat(found)


def _separate(turns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Who sees whom, (1, 1, T, T), and positions (1, T), for an image and `turns` questions of two tokens each."""
    import torch

    block = torch.cat([torch.zeros(IMAGE_TOKENS, dtype=torch.long), 1 + torch.arange(turns).repeat_interleave(2)])
    before = torch.arange(len(block))[:, None] >= torch.arange(len(block))
    mask = before & ((block == 0) | (block[:, None] == block))
    positions = torch.cat([torch.arange(IMAGE_TOKENS), IMAGE_TOKENS + torch.arange(2).repeat(turns)])
    return mask[None, None], positions[None]


def hits_of(logits: torch.Tensor, grids: Grids) -> np.ndarray:
    """Whether the most likely token of the whole vocabulary is right, for logits (n, turns, V): (n * turns,) of 0 and 1."""
    hits: np.ndarray = logits.argmax(-1).numpy() == grids.answers
    return hits.astype(float).ravel()


def answer_hits(model: Any, grids: Grids, batch: int = 64) -> np.ndarray:
    """Right answers of a model to every question, (n * turns,) of 0 and 1."""
    return hits_of(answer_logits(model, grids, batch), grids)
