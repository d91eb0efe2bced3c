"""A tiny LLaVA trained from scratch: CLIP's vision tower, a projector and a Llama decoder, all transformers' own classes.

What a pretrained model would bring is bought with two devices that belong to models of this size alone. The projector is aligned with the
words from the start, as LLaVA's first training stage does: a visual token is classified through the decoder's own embeddings as the digit
and the cell that it shows. And queries start equal to keys (W_q = W_k in every layer), so that a word attends to what resembles it; from
independent random weights the look-up of a cell does not form within minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.training.loop import descend
from tasks.vision_language.digit_grid import CELL, CELLS, NUMBER, PIXELS, SIDE, TOKEN, VOCABULARY, Digits, Kind, draw_grids, split_digits
from tasks.vision_language.scoring import answer_hits

if TYPE_CHECKING:
    import torch

LINEAR_STD, EMBEDDING_STD, QUERY_STD = 0.02, 0.15, 0.06


class TinyLlavaParams(Params):
    """Size of the model and how it is trained.

    Attributes:
        kinds: of question.
        seeds: models that are trained, each with a split of the scans of its own.
        steps: of AdamW, cosine schedule.
        batch: images per step.
        turns: questions per image.
        rate: peak learning rate.
        alignment: weight of the alignment loss.
        hidden: width of the decoder.
        layers: of the decoder.
        heads: of the decoder.
        vision_hidden: width of the tower, two layers.
        test_images: images on which accuracy is measured, with eight questions each.
        workers: processes, by default as many as the stage may use; a process takes seconds to start.
    """

    kinds: tuple[Kind, ...] = ("read",)
    seeds: int = Field(3, ge=1)
    steps: int = Field(240, ge=1)
    batch: int = Field(32, ge=1)
    turns: int = Field(12, ge=1)
    rate: float = Field(2e-3, gt=0)
    alignment: float = Field(0.5, ge=0)
    hidden: int = Field(128, ge=8)
    layers: int = Field(4, ge=1)
    heads: int = Field(4, ge=1)
    vision_hidden: int = Field(96, ge=8)
    test_images: int = Field(250, ge=1)
    workers: int | None = Field(None, ge=1)


def make_tiny_llava(params: TinyLlavaParams, seed: int) -> Any:
    """A `LlavaForConditionalGeneration` with weights drawn from a generator of its own, in training mode."""
    import torch
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    vision = CLIPVisionConfig(
        image_size=SIDE * PIXELS,
        patch_size=PIXELS,
        hidden_size=params.vision_hidden,
        intermediate_size=2 * params.vision_hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        projection_dim=params.vision_hidden,
    )
    text = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=params.hidden,
        intermediate_size=2 * params.hidden,
        num_hidden_layers=params.layers,
        num_attention_heads=params.heads,
        num_key_value_heads=params.heads,
        head_dim=params.hidden // params.heads,
        max_position_embeddings=256,
        pad_token_id=TOKEN["<pad>"],
        bos_token_id=TOKEN["<bos>"],
        eos_token_id=TOKEN["<pad>"],
        tie_word_embeddings=False,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=TOKEN["<image>"],
        image_seq_length=CELLS,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are replaced at once
        model: Any = LlavaForConditionalGeneration(config)
    _draw_weights(model, torch.Generator().manual_seed(seed))
    return model.train()


def _draw_weights(model: Any, generator: torch.Generator) -> None:
    import torch

    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.ndim == 1 and "class_embedding" not in name:
                weight.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
                continue
            std = LINEAR_STD
            if "embed_tokens" in name:
                std = EMBEDDING_STD
            elif "vision_tower" in name and weight.ndim == 2 and "embedding" not in name:
                std = 0.7 / math.sqrt(weight.shape[1])
            weight.normal_(0.0, std, generator=generator)
        for layer in model.model.language_model.layers:
            attention = layer.self_attn
            attention.q_proj.weight.normal_(0.0, QUERY_STD, generator=generator)
            attention.k_proj.weight.copy_(attention.q_proj.weight)


def alignment_loss(model: Any, visual: torch.Tensor, digits: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of visual tokens (n, 16, hidden) read as digits (n, 16) and as cells through the decoder's embeddings."""
    import torch

    words = model.get_input_embeddings().weight
    flat = visual.flatten(0, 1)
    cells = torch.arange(CELLS, device=flat.device).repeat(len(visual))
    entropy = torch.nn.functional.cross_entropy
    as_digits = entropy(flat @ words[NUMBER : NUMBER + 10].T, digits.flatten())
    return as_digits + entropy(flat @ words[CELL : CELL + CELLS].T, cells)


def train_tiny_llava(
    params: TinyLlavaParams, scans: Digits, seed: int, after: Callable[[int, float], None] | None = None
) -> tuple[Any, np.ndarray]:
    """Train one model on grids of these scans.

    Returns:
        the model in evaluation mode, and the loss of every step, (steps,).

    >>> scans, _ = split_digits(0)
    >>> small = TinyLlavaParams(steps=2, batch=2, turns=1, hidden=16, heads=2, layers=1, vision_hidden=16)
    >>> model, losses = train_tiny_llava(small, scans, seed=0)
    >>> losses.shape, model.training
    ((2,), False)
    """
    import torch

    rng = np.random.default_rng([seed, 1])
    model = make_tiny_llava(params, seed)

    def loss(step: int) -> torch.Tensor:
        grids = draw_grids(scans, params.batch, params.turns, params.kinds, rng)
        given = grids.batch()
        labels = given.pop("labels")
        output = model(**given, use_cache=False)
        answers: torch.Tensor = torch.nn.functional.cross_entropy(
            output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100
        )
        if not params.alignment:
            return answers
        visual = torch.stack(list(output.image_outputs.pooler_output))
        return answers + params.alignment * alignment_loss(model, visual, torch.from_numpy(grids.digits))

    warm_up = max(1, params.steps // 10)
    groups = [{"params": list(model.parameters())}]
    losses = [descend(loss, groups, warm_up, rate=params.rate / 3, optimiser="adamw", weight_decay=0.01, clip=1.0, after=after)]
    if params.steps > warm_up:
        rest = params.steps - warm_up
        losses.append(
            descend(loss, groups, rest, rate=params.rate, optimiser="adamw", weight_decay=0.01, schedule="cosine", clip=1.0, after=after)
        )
    return model.eval(), np.concatenate(losses)


def accuracy_by_kind(model: Any, scans: Digits, images: int, kinds: Sequence[Kind], seed: int) -> dict[str, float]:
    """Share of right answers on grids of these scans, eight questions per image, by kind."""
    found: dict[str, float] = {}
    for kind in kinds:
        grids = draw_grids(scans, images, 8, [kind], np.random.default_rng([seed, 2]))
        found[kind] = float(answer_hits(model, grids).mean())
    return found


def load_tiny_llava(folder: Path) -> Any:
    """A model that `train` left, in evaluation mode."""
    from transformers import LlavaForConditionalGeneration

    model: Any = LlavaForConditionalGeneration.from_pretrained(folder, dtype="float32")
    return model.eval()


def train(params: TinyLlavaParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: train one model per seed; writes `seed<n>/`, reports `vlm.accuracy.<kind>` on test scans over the seeds."""
    work = [(params, seed, out / f"seed{seed}") for seed in range(params.seeds)]
    results = list(log.progress(map_parallel(_trained, work, workers=params.workers), total=len(work), desc="tiny vision-language models"))
    for step in range(params.steps):
        log.history(step, **{f"loss_seed{seed}": float(losses[step]) for seed, (_, losses) in enumerate(results)})
    metrics: Metrics = {}
    for kind in params.kinds:
        metrics |= summarise(f"vlm.accuracy.{kind}", [found[kind] for found, _ in results])
    return metrics


def _trained(item: tuple[TinyLlavaParams, int, Path]) -> tuple[dict[str, float], np.ndarray]:
    params, seed, folder = item
    train_scans, test_scans = split_digits(seed)
    model, losses = train_tiny_llava(params, train_scans, seed)
    model.save_pretrained(folder)
    return accuracy_by_kind(model, test_scans, params.test_images, params.kinds, seed), losses
