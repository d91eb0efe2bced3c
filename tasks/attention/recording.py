"""Queries, keys and values of chosen layers, recorded while a model reads a context densely and a question and answer after it.

Selection, budgets and predictors can then be compared on one stored set of tensors, without running the model again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.attention.registration import attention_implementation, attention_layers
from tasks.attention.weighted import causal_valid, scaled_logits
from tasks.language_models.cache import prefill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

RECORDER = "recorded_attention"


@dataclass(frozen=True)
class Recorded:
    """One layer's tensors of one prompt, after rotary embedding.

    Attributes:
        layer: index of the layer.
        query: (1, H, R, d), of the question and answer.
        key: (1, G, n, d), of everything.
        value: (1, G, n, d).
        scaling: factor of the logits.
    """

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    scaling: float | None = None

    def rows(self, count: int) -> Recorded:
        """Only the last `count` rows, with the keys before them."""
        return self if count >= self.query.shape[2] else Recorded(self.layer, self.query[:, :, -count:], self.key, self.value, self.scaling)

    def logits(self) -> Tensor:
        """(1, H, R, n), float32."""
        return scaled_logits(self.query, self.key, self.scaling)

    def valid(self) -> Tensor:
        """Bool (R, n)."""
        return causal_valid(self.query.shape[2], self.key.shape[2], self.query.device)

    def values(self) -> Tensor:
        """Float32 (1, G, n, d)."""
        return self.value.float()


def record(model: Any, context: Tensor, following: Tensor, layers: Sequence[int] | None = None) -> list[Recorded]:
    """Run a context densely and the tokens after it, and keep what attention saw of the latter.

    Args:
        model: a transformers decoder.
        context: token ids, (1, n_context).
        following: token ids of question and answer, (1, R).
        layers: which layers; all by default.

    Returns:
        One entry per layer, in order, in the model's dtype.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    every: list[Any] = attention_layers(model)
    wanted = {int(module.layer_idx) for module in every} if layers is None else set(layers)
    kept: dict[int, Recorded] = {}

    def recording(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any) -> tuple[Tensor, None]:
        if module.layer_idx in wanted:
            kept[module.layer_idx] = Recorded(module.layer_idx, query, key, value, kwargs.get("scaling"))
        return dense_forward(module, query, key, value, mask, **kwargs)

    AttentionInterface.register(RECORDER, recording)
    AttentionMaskInterface.register(RECORDER, sdpa_mask)
    with attention_implementation(model, "sdpa"):
        cache, _ = prefill(model, context)
    with attention_implementation(model, RECORDER):
        cache.append(following)
    return [kept[layer] for layer in sorted(kept)]


def dense_forward(*args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """Transformers' own dense attention."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    output: tuple[Tensor, None] = sdpa_attention_forward(*args, **kwargs)
    return output
