"""Published masked-diffusion models by an own forward pass: LLaDA (Llama-like) and Dream (Qwen2-like), weights mapped by name.

Both are transformers without a causal mask. Their published code was written for older releases of `transformers`; only `config.json`, the
safetensors and the tokenizer are read here. Dream was initialised from a left-to-right model and predicts position i at output i - 1:
logits are shifted here, and `lookback` is 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tasks.masked_diffusion.cache import Shape, StateCache
from tasks.masked_diffusion.model import rotary_angles, rotate


@dataclass(frozen=True)
class DenoiserConfig:
    """Sizes of a Llama-like denoiser.

    Attributes:
        vocabulary: rows of the embedding.
        width: of the residual stream.
        layers: blocks.
        heads: of queries.
        key_heads: of keys and values; divides `heads`.
        head_width: of one head.
        hidden: of the gated feed-forward layer.
        rope_base: of rotary embeddings.
        norm_eps: of RMSNorm.
        bias: whether queries, keys and values have one.
        tied: whether the head is the embedding.
        shifted: whether output i predicts position i + 1.
        mask_id: the mask token.
        eos_id: the end token.

    Raises:
        ValueError: if heads do not fit.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    key_heads: int
    head_width: int
    hidden: int
    rope_base: float
    norm_eps: float
    bias: bool
    tied: bool
    shifted: bool
    mask_id: int
    eos_id: int | None

    def __post_init__(self) -> None:
        if self.heads % self.key_heads:
            raise ValueError(f"heads must be a multiple of key heads, got {self.heads} and {self.key_heads}")


def llada_config(given: dict[str, Any]) -> DenoiserConfig:
    """Sizes from LLaDA's `config.json`.

    Raises:
        ValueError: for a missing mask id, or an architecture that is not read here.
    """
    odd = {"block_type": "llama", "activation_type": "silu", "layer_norm_type": "rms", "rope": True, "alibi": False}
    odd |= {"include_bias": False, "include_qkv_bias": False, "attention_layer_norm": False}
    for name, value in odd.items():
        if given.get(name, value) not in (value, None):
            raise ValueError(f"config.json has {name} = {given[name]!r}; only {value!r} is read")
    heads = given["n_heads"]
    return DenoiserConfig(
        vocabulary=given.get("embedding_size") or given["vocab_size"],
        width=given["d_model"],
        layers=given["n_layers"],
        heads=heads,
        key_heads=given.get("n_kv_heads") or heads,
        head_width=given["d_model"] // heads,
        hidden=given["mlp_hidden_size"],
        rope_base=given.get("rope_theta", 10_000.0),
        norm_eps=given.get("rms_norm_eps", 1e-5),
        bias=False,
        tied=bool(given.get("weight_tying", False)),
        shifted=False,
        mask_id=_mask_of(given),
        eos_id=_end_of(given),
    )


def dream_config(given: dict[str, Any]) -> DenoiserConfig:
    """Sizes from Dream's `config.json`.

    Raises:
        ValueError: for a missing mask id, or an architecture that is not read here.
    """
    if given.get("hidden_act", "silu") != "silu" or given.get("rope_scaling"):
        raise ValueError("config.json asks for another activation than silu, or for scaled rotary embeddings; neither is read")
    heads = given["num_attention_heads"]
    return DenoiserConfig(
        vocabulary=given["vocab_size"],
        width=given["hidden_size"],
        layers=given["num_hidden_layers"],
        heads=heads,
        key_heads=given.get("num_key_value_heads") or heads,
        head_width=given["hidden_size"] // heads,
        hidden=given["intermediate_size"],
        rope_base=given.get("rope_theta", 1_000_000.0),
        norm_eps=given.get("rms_norm_eps", 1e-6),
        bias=True,
        tied=bool(given.get("tie_word_embeddings", False)),
        shifted=True,
        mask_id=_mask_of(given),
        eos_id=_end_of(given),
    )


def _mask_of(given: dict[str, Any]) -> int:
    if given.get("mask_token_id") is None:
        raise ValueError("config.json has no mask_token_id, so this is no masked-diffusion model; add the id if it is one")
    return int(given["mask_token_id"])


def _end_of(given: dict[str, Any]) -> int | None:
    found = given.get("eos_token_id")
    return int(found[0] if isinstance(found, list) else found) if found is not None else None


_LLADA_PARTS = {
    "attn_norm": "attention_norm",
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "attn_out": "out",
    "ff_norm": "mlp_norm",
    "ff_proj": "gate",
    "up_proj": "up",
    "ff_out": "down",
}
_DREAM_PARTS = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "query",
    "self_attn.k_proj": "key",
    "self_attn.v_proj": "value",
    "self_attn.o_proj": "out",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}


def llada_name(name: str) -> str | None:
    """Our name of a LLaDA weight, or None for one that is not needed.

    >>> llada_name("model.transformer.blocks.3.attn_out.weight")
    'blocks.3.out.weight'
    """
    name = name.removeprefix("model.").removeprefix("transformer.")
    whole = {"wte.weight": "embedding.weight", "ln_f.weight": "norm.weight", "ff_out.weight": "head.weight"}
    return whole.get(name) or _renamed(name, "blocks.", _LLADA_PARTS)


def dream_name(name: str) -> str | None:
    """Our name of a Dream weight, or None for one that is not needed.

    >>> dream_name("model.layers.3.self_attn.q_proj.bias")
    'blocks.3.query.bias'
    """
    name = name.removeprefix("model.")
    whole = {"embed_tokens.weight": "embedding.weight", "norm.weight": "norm.weight", "lm_head.weight": "head.weight"}
    return whole.get(name) or _renamed(name, "layers.", _DREAM_PARTS)


def _renamed(name: str, prefix: str, parts: dict[str, str]) -> str | None:
    if not name.startswith(prefix):
        return None
    number, _, rest = name.removeprefix(prefix).partition(".")
    part, _, kind = rest.rpartition(".")
    return f"blocks.{number}.{parts[part]}.{kind}" if part in parts else None


KINDS: dict[str, tuple[Callable[[dict[str, Any]], DenoiserConfig], Callable[[str], str | None]]] = {
    "llada": (llada_config, llada_name),
    "dream": (dream_config, dream_name),
}


class GatedBlock(nn.Module):
    """Grouped-query attention and a gated feed-forward layer, each behind a norm and beside a residual path."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.config = config
        width, inner, keys = config.width, config.heads * config.head_width, config.key_heads * config.head_width
        self.attention_norm = nn.RMSNorm(width, eps=config.norm_eps)
        self.query = nn.Linear(width, inner, bias=config.bias)
        self.key = nn.Linear(width, keys, bias=config.bias)
        self.value = nn.Linear(width, keys, bias=config.bias)
        self.out = nn.Linear(inner, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width, eps=config.norm_eps)
        self.gate = nn.Linear(width, config.hidden, bias=False)
        self.up = nn.Linear(width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, layer: int, cache: StateCache | None) -> torch.Tensor:
        """States x (B, L, d) after the block."""
        config = self.config
        batch, length, _ = x.shape
        normed = self.attention_norm(x)
        query = self.query(normed).view(batch, length, config.heads, config.head_width).transpose(1, 2)  # (B, H, L, D)
        key = self.key(normed).view(batch, length, config.key_heads, config.head_width).transpose(1, 2)
        value = self.value(normed).view(batch, length, config.key_heads, config.head_width).transpose(1, 2)
        query, key = rotate(query, cosines, sines), rotate(key, cosines, sines)
        if cache is not None:
            key, value = cache.extend(layer, key, value)
        seen = functional.scaled_dot_product_attention(query, key, value, enable_gqa=config.heads != config.key_heads)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, -1))
        normed = self.mlp_norm(x)
        after: torch.Tensor = x + self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return after


class PretrainedDenoiser(nn.Module):
    """A denoiser with the weights of LLaDA or Dream.

    Args:
        config: sizes.
    """

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.config = config
        self.lookback = int(config.shifted)
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(GatedBlock(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, cache: StateCache | None = None) -> torch.Tensor:
        """Logits (B, L, V) for positions (L,), shifted where the model's own are; then the first ones are anything."""
        x = self.embedding(tokens)
        cosines, sines = rotary_angles(positions, self.config.head_width, self.config.rope_base)
        for layer, block in enumerate(self.blocks):
            x = block(x, cosines, sines, layer, cache)
        logits: torch.Tensor = self.head(self.norm(x))
        return torch.cat([logits[:, :1], logits[:, :-1]], 1) if self.config.shifted else logits

    def new_cache(self, capacity: int) -> StateCache:
        """An empty cache for so many positions."""
        shape = Shape(self.config.layers, self.config.key_heads, self.config.head_width)
        return StateCache(shape, capacity, self.head.weight.dtype, self.head.weight.device)


def kind_of(folder: Path) -> str:
    """`model_type` of a model folder, in lower case.

    Raises:
        FileNotFoundError: if the folder has no `config.json`.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"there is no config.json in {folder}; name a model folder")
    return str(json.loads(path.read_text()).get("model_type", "")).lower()


def load_denoiser(folder: Path, dtype: str = "bfloat16", device: str = "cpu") -> PretrainedDenoiser:
    """Read a LLaDA or Dream folder (`config.json` and safetensors), file by file.

    Args:
        folder: the model.
        dtype: name of a torch dtype.
        device: where the weights go.

    Raises:
        FileNotFoundError: if the folder has no `config.json` or no safetensors.
        ValueError: for another kind of model, a missing mask id, or weights that are missing or of another shape.
    """
    from safetensors import safe_open

    kind = kind_of(folder)
    if kind not in KINDS:
        raise ValueError(f"{folder} holds a model of type {kind!r}; known: {', '.join(sorted(KINDS))}")
    read_config, rename = KINDS[kind]
    config = read_config(json.loads((folder / "config.json").read_text()))
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"there are no safetensors in {folder}")
    with torch.device("meta"):
        model = PretrainedDenoiser(config)
    wanted = {name: parameter.shape for name, parameter in model.named_parameters()}
    state: dict[str, torch.Tensor] = {}
    for file in files:
        with safe_open(file, "pt", device="cpu") as opened:
            for name, tensor in _read(opened, rename):
                if name in wanted and tensor.shape != wanted[name]:
                    raise ValueError(f"{file.name}: {name} has shape {tuple(tensor.shape)}, config.json wants {tuple(wanted[name])}")
                state[name] = tensor.to(device=device, dtype=getattr(torch, dtype))
    if config.tied:
        state["head.weight"] = state["embedding.weight"]
    if missing := sorted(set(wanted) - set(state)):
        raise ValueError(f"{folder} lacks {len(missing)} weights, the first is {missing[0]}")
    model.load_state_dict({name: state[name] for name in wanted}, assign=True)
    return model.eval().requires_grad_(False)


def _read(opened: Any, rename: Callable[[str], str | None]) -> Iterator[tuple[str, torch.Tensor]]:
    for given in opened.keys():  # noqa: SIM118
        if name := rename(given):
            yield name, opened.get_tensor(given)
