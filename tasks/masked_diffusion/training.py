"""Train masked-diffusion models from scratch on register traces, one per repetition: the models that all schedulers then share."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field

from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.masked_diffusion.register_trace import EOS, MASK, TOKENS, TraceTask, draw_programs, read_programs, read_task


class PretrainParams(Params):
    """Parameters of `pretrain`.

    Attributes:
        seeds: models; the first so many repetitions of `prepare`.
        width: d.
        layers: blocks.
        heads: of attention.
        hidden: width of the feed-forward layers.
        steps: of AdamW.
        batch: programmes per step, always new ones.
        rate: learning rate at the start; falls along a cosine.
        weight_decay: of AdamW.
        clip: largest norm of the gradient.
        suffix_share: share of samples whose mask is a suffix of the answer; the others are masked as in LLaDA.
        frozen_share: share of samples in which the prompt and the known tokens before the first mask do not look ahead, like states in
            a cache. A model that never saw such samples may work answers out at the prompt's positions, where a cache freezes them.
        curriculum: share of the steps over which operands grow from 0..1 to all digits. Modular sums have no single input that tells
            anything about the result; without small operands first the model learns for long to read resets alone.
        check: masked answers on which the loss is measured in the end.
        device: torch device.
    """

    seeds: int = Field(3, ge=1)
    width: int = Field(128, ge=1)
    layers: int = Field(3, ge=1)
    heads: int = Field(4, ge=1)
    hidden: int = Field(256, ge=1)
    steps: int = Field(1000, ge=1)
    batch: int = Field(40, ge=1)
    rate: float = Field(3e-3, gt=0)
    weight_decay: float = Field(0.05, ge=0)
    clip: float = Field(1.0, gt=0)
    suffix_share: float = Field(0.5, ge=0, le=1)
    frozen_share: float = Field(0.5, ge=0, le=1)
    curriculum: float = Field(0.5, ge=0, le=1)
    check: int = Field(512, ge=1)
    device: str = "cpu"


@dataclass(frozen=True)
class Work:
    """One model to train."""

    seed: int
    task: TraceTask
    params: PretrainParams
    folder: Path


@dataclass(frozen=True)
class Trained:
    """What one training gave: losses (steps,), loss and accuracy of masked tokens on fresh programmes, CPU seconds."""

    losses: np.ndarray
    loss: float
    accuracy: float
    seconds: float


def pretrain(params: PretrainParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: folders `model-<seed>`; `model.{loss,masked_accuracy}.trace` over seeds."""
    task = read_task(inputs["prepare"])
    for seed in range(params.seeds):
        if not read_programs(inputs["prepare"], seed, "test", 1)[0]:
            raise ValueError(f"seeds is {params.seeds}, but `prepare` made programmes for fewer; raise its seeds")
    work = [Work(seed, task, params, out / f"model-{seed}") for seed in range(params.seeds)]
    found = list(log.progress(map_parallel(train_model, work), total=len(work), desc="models"))
    bins = np.array_split(np.arange(params.steps), min(params.steps, 50))
    for steps in bins:
        log.history(int(steps[-1]) + 1, **{f"loss_{w.seed}": float(f.losses[steps].mean()) for w, f in zip(work, found, strict=True)})
    log.timing(train_cpu_s_per_model=float(np.mean([f.seconds for f in found])))
    return {
        **summarise("model.loss.trace", [f.loss for f in found]),
        **summarise("model.masked_accuracy.trace", [f.accuracy for f in found]),
    }


def operand_at(progress: float, curriculum: float, modulus: int) -> int | None:
    """Operands are below this number, or free (None), after a share `progress` of the steps.

    >>> [operand_at(p, 0.5, 5) for p in (0.0, 0.2, 0.4, 0.6)]
    [2, 3, 4, None]
    """
    return None if progress >= curriculum else min(modulus, 2 + int((modulus - 2) * progress / curriculum))


def train_model(work: Work) -> Trained:
    """Train and save one model; programmes, masks and weights come from its seed."""
    import torch

    from tasks.masked_diffusion.loss import draw_masks, frozen_prefix, masked_loss
    from tasks.masked_diffusion.model import MaskedDiffusionTransformer, ModelConfig, save_model
    from tasks.masked_diffusion.pieces import Pieces
    from tasks.training.loop import descend

    started = time.process_time()
    params, task, device = work.params, work.task, work.params.device
    rng, generator = np.random.default_rng([work.seed, 2]), torch.Generator().manual_seed(work.seed)
    config = ModelConfig(
        vocabulary=len(TOKENS),
        positions=task.prompt_length + task.answer_length,
        width=params.width,
        layers=params.layers,
        heads=params.heads,
        hidden=params.hidden,
        mask_id=MASK,
        eos_id=EOS,
    )
    model = MaskedDiffusionTransformer(config, generator).to(device)
    positions = torch.arange(config.positions, device=device)

    def sample(count: int, operand: int | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        prompts, answers = (torch.from_numpy(x) for x in draw_programs(task, count, rng, operand))
        masks, t = draw_masks(count, task.answer_length, params.suffix_share, generator)
        frozen = torch.rand(count, generator=generator) < params.frozen_share
        allowed = frozen_prefix(masks, task.prompt_length, frozen).to(device) if params.frozen_share else None
        shown = torch.cat([prompts, answers.masked_fill(masks, MASK)], 1).to(device)
        logits = model(shown, positions, None, task.prompt_length, allowed)
        return logits, answers.to(device), masks.to(device), t.to(device)

    groups = [{"params": list(model.parameters()), "betas": (0.9, 0.98)}]
    losses = descend(
        lambda step: masked_loss(*sample(params.batch, operand_at(step / params.steps, params.curriculum, task.modulus))),
        groups,
        params.steps,
        rate=params.rate,
        optimiser="adamw",
        weight_decay=params.weight_decay,
        schedule="cosine",
        clip=params.clip,
    )
    model.eval()
    with torch.no_grad():
        logits, answers, masks, t = sample(params.check)
        loss = float(masked_loss(logits, answers, masks, t))
        accuracy = float((logits.argmax(-1) == answers)[masks].double().mean())
    save_model(work.folder, model)
    Pieces(TOKENS).save(work.folder)
    (work.folder / "task.json").write_text(task.model_dump_json() + "\n")
    return Trained(losses, loss, accuracy, time.process_time() - started)
