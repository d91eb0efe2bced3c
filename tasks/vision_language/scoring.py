"""Answers of a vision-language model compared with the right ones, question by question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.vision_language.digit_grid import Grids

if TYPE_CHECKING:
    import torch


def answer_logits(model: Any, grids: Grids, batch: int = 200) -> torch.Tensor:
    """Logits of the answer to each image's LAST question, (n, V), float32."""
    import torch

    found = []
    for start in range(0, len(grids.pixels), batch):
        given = grids.batch(slice(start, start + batch))
        device = next(model.parameters()).device
        given = {name: value.to(device) for name, value in given.items() if name != "labels"}
        given["input_ids"] = given["input_ids"][:, :-1]  # the token before the answer predicts it
        with torch.inference_mode():
            found.append(model(**given, use_cache=False, logits_to_keep=1).logits[:, 0].float().cpu())
    return torch.cat(found)


def hits_of(logits: torch.Tensor, grids: Grids) -> np.ndarray:
    """Whether the most likely token of the whole vocabulary is right, for logits (n, V) of each last answer: (n,) of 0 and 1."""
    hits: np.ndarray = logits.argmax(-1).numpy() == grids.answers[:, -1]
    return hits.astype(float)


def answer_hits(model: Any, grids: Grids, batch: int = 200) -> np.ndarray:
    """Right answers of a model to each image's last question, (n,) of 0 and 1."""
    return hits_of(answer_logits(model, grids, batch), grids)
