"""A small bidirectional transformer that predicts masked tokens (after LLaDA, Nie et al., 2025, arXiv 2502.09992).

Pre-norm blocks with LayerNorm (without biases; LLaDA's RMSNorm has a dearer backward pass on a CPU), rotary and learned absolute positions,
full attention, an untied head. It is a `Denoiser` as `tasks.masked_diffusion.decoding` wants one, and knows nothing about masks, losses or
schedulers.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from tasks.masked_diffusion.cache import Shape, StateCache

KIND = "masked_diffusion"


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a model.

    Attributes:
        vocabulary: number of tokens V, the mask included.
        positions: longest sequence.
        width: d, a multiple of 2 * heads.
        layers: blocks.
        heads: of attention.
        hidden: width of the feed-forward layers.
        mask_id: the token that stands for "not known yet".
        eos_id: the token that ends an answer, or None.

    Raises:
        ValueError: for sizes below 1, a width that is no multiple of 2 * heads, or token ids outside the vocabulary.
    """

    vocabulary: int
    positions: int
    width: int = 128
    layers: int = 3
    heads: int = 4
    hidden: int = 512
    mask_id: int = 0
    eos_id: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocabulary", "positions", "width", "layers", "heads", "hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be a multiple of 2 * heads = {2 * self.heads}, got {self.width}")
        for name, value in (("mask_id", self.mask_id), ("eos_id", self.eos_id)):
            if value is not None and not 0 <= value < self.vocabulary:
                raise ValueError(f"{name} must lie in [0, {self.vocabulary}), got {value}")


def rotary_angles(positions: torch.Tensor, width: int, base: float = 10_000.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines (L, width / 2) of rotary embeddings (Su et al., 2021) at these positions (L,), in float32."""
    rates = base ** (-torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width)
    angles = positions.float()[:, None] * rates  # (L, width / 2)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (i, i + width / 2) of x (..., L, width) by the angles of their positions, in float32."""
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1).to(x.dtype)


def rotate_pairs(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Turn neighbours (2 i, 2 i + 1) of x (..., width), float32, by complex numbers of modulus 1 that broadcast to (..., width / 2).

    The same law as `rotate` with channels in another order, in a third of the passes over memory.
    """
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(-2)


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and beside a residual path."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(config.width, eps=1e-6, bias=False)
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.mlp_norm = nn.LayerNorm(config.width, eps=1e-6, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        turns: torch.Tensor,
        layer: int,
        cache: StateCache | None,
        first: int = 0,
        allowed: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """States (B, L - first, d) of the positions from `first` on, after the block, from x (B, L, d)."""
        batch, length, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        turned = rotate_pairs(qkv[:, :, :2], turns[:, None, None])  # (B, L, 2, H, D)
        query, key, value = (states.transpose(1, 2) for states in (turned[:, first:, 0], turned[:, :, 1], qkv[:, :, 2]))  # (B, H, L, D)
        if cache is not None:
            key, value = cache.extend(layer, key, value)  # (1, H, S, D)
        rows = None if allowed is None else allowed[:, None, first:]
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=rows)  # (B, H, L - first, D)
        x = x[:, first:] + self.out(seen.transpose(1, 2).reshape(batch, length - first, width))
        after: torch.Tensor = x + self.down(functional.gelu(self.up(self.mlp_norm(x))))
        return after


class MaskedDiffusionTransformer(nn.Module):
    """Logits of every position given the tokens of all positions.

    Args:
        config: sizes.
        generator: randomness of the initial weights; None leaves torch's own.

    >>> config = ModelConfig(vocabulary=5, positions=8, width=16, layers=1, heads=2, hidden=32)
    >>> model = MaskedDiffusionTransformer(config, torch.Generator().manual_seed(0))
    >>> model(torch.zeros(1, 8, dtype=torch.long), torch.arange(8)).shape
    torch.Size([1, 8, 5])
    """

    lookback = 0

    def __init__(self, config: ModelConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.places = nn.Embedding(config.positions, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=1e-6, bias=False)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        if generator is not None:
            self._initialise(generator)

    def _initialise(self, generator: torch.Generator) -> None:
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                continue
            scale = 1.0 if name.startswith(("embedding", "places")) else (3 * parameter.shape[1]) ** -0.5
            with torch.no_grad():
                parameter.normal_(0.0, scale, generator=generator)

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        cache: StateCache | None = None,
        first: int = 0,
        allowed: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Predict every token from all of them.

        Args:
            tokens: (B, L).
            positions: where they stand, (L,).
            cache: states of other positions, which are attended to as well; then B = 1.
            first: only inputs from this one on are predicted, which saves part of the last block.
            allowed: which input (second index) may be attended to from which (first), (B, L, L); None for all from all.

        Returns:
            logits (B, L - first, V).
        """
        x = self.embedding(tokens) + self.places(positions)
        turns = torch.complex(*rotary_angles(positions, self.config.width // self.config.heads))
        last = len(self.blocks) - 1
        for layer, block in enumerate(self.blocks):
            x = block(x, turns, layer, cache, first if layer == last else 0, allowed)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits

    def new_cache(self, capacity: int) -> StateCache:
        """An empty cache for so many positions."""
        weight = self.head.weight
        shape = Shape(self.config.layers, self.config.heads, self.config.width // self.config.heads)
        return StateCache(shape, capacity, weight.dtype, weight.device)


def save_model(folder: Path, model: MaskedDiffusionTransformer) -> None:
    """Write `config.json` and `model.safetensors` into a folder."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    about = {"model_type": KIND, **asdict(model.config)}
    (folder / "config.json").write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
    save_file({name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}, folder / "model.safetensors")


def load_model(folder: Path) -> MaskedDiffusionTransformer:
    """Read what `save_model` wrote.

    Raises:
        FileNotFoundError: if there is no model in the folder.
        ValueError: if it is one of another kind, or its file of weights does not fit.
    """
    from safetensors.torch import load_file

    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"there is no config.json in {folder}")
    about = json.loads((folder / "config.json").read_text())
    if about.pop("model_type", None) != KIND:
        raise ValueError(f"{folder} holds a model of another kind; wanted is model_type {KIND!r}")
    model = MaskedDiffusionTransformer(ModelConfig(**about))
    try:
        model.load_state_dict(load_file(folder / "model.safetensors"))
    except RuntimeError as error:
        raise ValueError(f"{folder / 'model.safetensors'} does not fit its config.json: {error}") from None
    return model.eval()
