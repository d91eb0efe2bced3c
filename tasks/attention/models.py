"""Which model a stage of vAttention runs, and what its recorded layers look like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field

from tasks.attention.hash_attention import HashExamples
from tasks.attention.recording import Recorded
from tasks.common.node import Inputs, Params
from tasks.language_models.pretrained import load_model


class ModelParams(Params):
    """The model that a stage runs.

    Attributes:
        model: folder or model id, in place of the folder of the need `warmstart`.
        dtype: of weights and computation.
        device: torch device.
    """

    model: str = ""
    dtype: Literal["bfloat16", "float32", "float16"] = "bfloat16"
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?)$")


@dataclass(frozen=True)
class AttentionShape:
    """Layers, query heads, key/value heads and head width of a model."""

    layers: int
    heads: int
    groups: int
    width: int


def source_of(params: ModelParams, inputs: Inputs) -> str:
    """The folder or model id."""
    return params.model or str(inputs["warmstart"] / "model")


def open_model(params: ModelParams, inputs: Inputs) -> tuple[Any, Any]:
    """(model, tokenizer) of a stage."""
    return load_model(source_of(params, inputs), params.dtype, params.device)


def attention_shape(recorded: Sequence[Recorded]) -> AttentionShape:
    """From one prompt's recorded layers."""
    first = recorded[0]
    return AttentionShape(len(recorded), first.query.shape[1], first.key.shape[1], first.query.shape[-1])


def hash_examples(recorded: Sequence[Recorded]) -> HashExamples:
    """What HashAttention learns from: all layers of one prompt, float32."""
    query = torch.cat([r.query for r in recorded]).float()
    key = torch.cat([r.key for r in recorded]).float()
    return HashExamples(query, key, recorded[0].valid())


def end_tokens(model: Any) -> set[int]:
    """Token ids that end a text."""
    end = model.generation_config.eos_token_id
    return set(end) if isinstance(end, list | tuple) else set() if end is None else {int(end)}
