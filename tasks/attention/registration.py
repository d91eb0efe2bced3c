"""Sparse attention inside any transformers decoder: one registered attention function that asks the layer what it is to do.

    register()                                                   # once per process
    configure(model, VAttentionConfig(heavy=0.02, epsilon=0.1))
    model.set_attn_implementation("vattention")

or, restoring what was there before, ``with sparse_attention(model, config): model.generate(...)``. A call that starts an empty cache (the
dense prefill of the context) is exact attention; every later call, question and generated tokens alike, is sparse in all layers. Samples
come from a generator per (seed, layer, step), so that nothing depends on the order of calls. This module does not know methods: it
runs whatever fits `tasks.attention.interface`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tasks.attention.vattention import Vattention, VAttentionConfig, warn_about
from tasks.attention.weighted import causal_valid, repeat_heads, scaled_logits, weighted_attention

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tasks.attention.interface import Method, Predictor

NAME = "vattention"
STATE = "sparse_attention_state"
ELEMENTS = 2**25
"""Logits that are held at once; longer calls go row by row in blocks."""


@dataclass(frozen=True)
class Observed:
    """One sparse attention call (or block of rows) of one layer, for whoever watches.

    Attributes:
        layer: index of the layer.
        step: how many sparse calls the layer had before.
        logits: (B, H, R, n), float32.
        valid: bool, broadcastable to `logits`.
        weights: (B, H, R, n).
        values: (B, G, n, d), float32.
        output: (B, H, R, d), float32.
    """

    layer: int
    step: int
    logits: Tensor
    valid: Tensor
    weights: Tensor
    values: Tensor
    output: Tensor


@dataclass
class SparseAttention:
    """What a model's attention layers share: the method, its predictor, the seed and how many steps each layer has done.

    Attributes:
        method: which keys are read (`tasks.attention.interface.Method`).
        predictor: what ranks keys; `None` for the oracle.
        seed: of the samples.
        observer: called with every sparse call.
        steps: sparse calls so far, by layer.
    """

    method: Method
    predictor: Predictor | None = None
    seed: int = 0
    observer: Callable[[Observed], None] | None = None
    steps: dict[int, int] = field(default_factory=dict)

    def generator(self, layer: int, device: torch.device) -> torch.Generator:
        """The generator of the layer's current step."""
        return generator_for(self.seed, layer, self.steps.get(layer, 0), device)


def generator_for(seed: int, layer: int, step: int, device: str | torch.device = "cpu") -> torch.Generator:
    """A generator that belongs to (seed, layer, step) alone."""
    import numpy as np

    state = int(np.random.SeedSequence((seed, layer, step)).generate_state(1, np.uint64)[0] >> np.uint64(1))
    return torch.Generator(device=device).manual_seed(state)


def register(name: str = NAME) -> None:
    """Make `model.set_attn_implementation(name)` known to transformers; calling it again changes nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, sdpa_mask)


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """The modules that call the attention function: those with a layer index and a query projection or a scaling.

    Raises:
        ValueError: if there are none, as in models that do not use transformers' attention interface.
    """
    layers = [m for m in model.modules() if hasattr(m, "layer_idx") and (hasattr(m, "scaling") or hasattr(m, "q_proj"))]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no attention layers of transformers' attention interface (layer_idx, scaling)")
    return layers


def configure(
    model: nn.Module,
    config: VAttentionConfig | None = None,
    *,
    method: Method | None = None,
    predictor: Predictor | None = None,
    seed: int | None = None,
    observer: Callable[[Observed], None] | None = None,
) -> SparseAttention:
    """Say what the layers of a model do once its attention implementation is "vattention".

    Args:
        model: a transformers decoder.
        config: vAttention's configuration; the default one when neither it nor a method is given.
        method: another method instead.
        predictor: what ranks keys; needed when `config.predictor` is not the oracle.
        seed: of the samples; `config.seed` by default.
        observer: called with every sparse call.

    Returns:
        The state that the layers share; it lies on every attention layer as `sparse_attention_state`.

    Raises:
        ValueError: if both a config and a method are given, a predictor is missing, or the model has no such layers.
    """
    if config is not None and method is not None:
        raise ValueError("give either config= or method=, not both")
    if method is None:
        config = config or VAttentionConfig()
        if config.predictor != "oracle" and predictor is None:
            raise ValueError(f"predictor {config.predictor!r} must be given as predictor=, for example a trained HashAttention")
        method = Vattention(config)
    state = SparseAttention(method, predictor, (config.seed if config else 0) if seed is None else seed, observer)
    for layer in attention_layers(model):
        setattr(layer, STATE, state)
    return state


@contextlib.contextmanager
def attention_implementation(model: Any, name: str) -> Iterator[None]:
    """Run a model with another registered attention implementation, and put back the old one."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextlib.contextmanager
def sparse_attention(model: Any, config: VAttentionConfig | None = None, **options: Any) -> Iterator[SparseAttention]:
    """Within the context the model attends sparsely; afterwards it has its old implementation and no trace of this.

    Args:
        model: a transformers decoder.
        config: vAttention's configuration.
        **options: as `configure`.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
        >>> model = LlamaForCausalLM(LlamaConfig(**sizes, attn_implementation="sdpa"))
        >>> with sparse_attention(model, VAttentionConfig(heavy=4)):
        ...     tokens = model.generate(torch.ones(1, 8, dtype=torch.long), max_new_tokens=2, do_sample=False, pad_token_id=0)
        >>> tokens.shape, model.config._attn_implementation
        (torch.Size([1, 10]), 'sdpa')
    """
    register()
    layers = attention_layers(model)
    before = [getattr(layer, STATE, None) for layer in layers]
    state = configure(model, config, **options)
    try:
        with attention_implementation(model, NAME):
            yield state
    finally:
        for layer, old in zip(layers, before, strict=True):
            if old is None:
                delattr(layer, STATE)
            else:
                setattr(layer, STATE, old)


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls: (B, H, R, d), (B, G, n, d) twice -> (B, R, H, d), no attention weights.

    Raises:
        ValueError: for attention that this cannot compute: dropout, learned sinks or position biases, heads that do not divide.
    """
    for name in ("position_bias", "s_aux"):
        if kwargs.get(name) is not None:
            raise ValueError(f"sparse attention cannot compute {name}; use the model's own implementation")
    if dropout:
        raise ValueError(f"sparse attention is for decoding; dropout must be 0, got {dropout} (call model.eval())")
    layer = int(getattr(module, "layer_idx", 0))
    rows, n = query.shape[2], key.shape[2]
    valid = valid_keys(attention_mask, rows, n, query.device, kwargs.get("sliding_window"))
    if not _continues(valid):
        return _exact(query, key, value, attention_mask, valid, scaling, kwargs.get("softcap")).transpose(1, 2).contiguous(), None
    state = _state_of(module, n)
    step = state.steps.get(layer, 0)
    generator = state.generator(layer, query.device)
    values = value.float()
    block = max(1, ELEMENTS // (query.shape[0] * query.shape[1] * n))
    outputs = []
    for start in range(0, rows, block):
        part = slice(start, start + block)
        seen = valid if valid.shape[-2] == 1 else valid[..., part, :]
        logits = _capped(scaled_logits(query[:, :, part], key, scaling), kwargs.get("softcap"))
        scores = logits if state.predictor is None else state.predictor(layer, query[:, :, part], key, logits)
        weights = state.method(logits, seen, scores, generator, values=values)
        output = weighted_attention(logits, weights, values)
        if state.observer is not None:
            state.observer(Observed(layer, step, logits, seen, weights, values, output))
        outputs.append(output)
    state.steps[layer] = step + 1
    return torch.cat(outputs, dim=2).to(query.dtype).transpose(1, 2).contiguous(), None


def valid_keys(mask: Tensor | None, rows: int, n: int, device: torch.device | str, window: int | None = None) -> Tensor:
    """Which keys count: from the mask that transformers made (bool or additive), else from causality alone.

    Returns:
        bool, broadcastable to (B, H, rows, n).
    """
    if mask is None:
        return causal_valid(rows, n, device, window)
    mask = mask[..., :n]
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def _continues(valid: Tensor) -> bool:
    """Whether the first row sees more than one key, which happens only when a cache went before it."""
    return bool((valid[..., 0, :].sum(-1) > 1).any())


def _state_of(module: nn.Module, n: int) -> SparseAttention:
    state = getattr(module, STATE, None)
    if not isinstance(state, SparseAttention):  # set_attn_implementation without configure: the defaults
        config = VAttentionConfig()
        warn_about(config, n)
        state = SparseAttention(Vattention(config), seed=config.seed)
        setattr(module, STATE, state)
    return state


def _capped(logits: Tensor, softcap: float | None) -> Tensor:
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def _exact(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, valid: Tensor, scaling: float | None, softcap: float | None
) -> Tensor:
    """Dense attention of a prefill."""
    if softcap is not None:
        logits = _capped(scaled_logits(query, key, scaling), softcap)
        return weighted_attention(logits, valid.expand(logits.shape).float(), value).to(query.dtype)
    k, v = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    seen = None if mask is None else valid
    causal = mask is None and query.shape[2] > 1
    return torch.nn.functional.scaled_dot_product_attention(query, k, v, attn_mask=seen, is_causal=causal, scale=scaling)
