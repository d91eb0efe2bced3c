"""HashAttention: learned bits of queries and keys whose agreement tells which keys a query attends to most.

Every query head and every key/value head has a small network (two hidden layers, SiLU) that maps a vector to real numbers, whose signs
are its bits. Trained by binary cross-entropy against membership in a row's true top keys, with tanh in place of the sign. All layers and
heads are trained at once. Source: Desai et al. 2024 (arXiv 2412.14468). Here keys have one network per key/value head, so that a cache
stores one word per key, whatever the number of query heads.

Letters as in `tasks.attention.interface`, L layers, C bits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor, nn

from tasks.attention.weighted import scaled_logits
from tasks.common.formats import write_atomically
from tasks.common.node import Params
from tasks.training.loop import descend


class HashParams(Params):
    """Shape and training.

    Attributes:
        bits: of a signature.
        hidden: width of the hidden layers.
        steps: of Adam; 0 leaves the random initial networks.
        rate: learning rate.
        positives: the keys of each row that count as its top.
        keys: keys that are looked at in a step, drawn from the prompt's.
        rows: queries that are looked at in a step, drawn from the prompt's.
        seed: of the initial weights and the draws.
    """

    bits: int = Field(32, ge=1, le=64)
    hidden: int = Field(64, ge=1)
    steps: int = Field(100, ge=0)
    rate: float = Field(1e-2, gt=0)
    positives: int = Field(64, ge=1)
    keys: int = Field(512, ge=2)
    rows: int = Field(32, ge=1)
    seed: int = Field(0, ge=0)


@dataclass(frozen=True)
class HashExamples:
    """What one prompt gives to learn from.

    Attributes:
        query: (L, H, R, d), after rotary embedding.
        key: (L, G, n, d), after rotary embedding.
        valid: bool (R, n), the keys that each row may read.
    """

    query: Tensor
    key: Tensor
    valid: Tensor


class HeadNetworks(nn.Module):
    """One network per layer and head, evaluated together: (L, heads, rows, d) -> (L, heads, rows, C).

    Inputs are standardised per head by `center` and `scale`, which training sets from its examples.
    """

    center: Tensor
    scale: Tensor

    def __init__(self, layers: int, heads: int, width: int, params: HashParams, generator: torch.Generator) -> None:
        super().__init__()
        sizes = (width, params.hidden, params.hidden, params.bits)
        self.weights = nn.ParameterList(torch.randn(layers, heads, a, b, generator=generator) / math.sqrt(a) for a, b in pairwise(sizes))
        self.biases = nn.ParameterList(torch.zeros(layers, heads, 1, b) for b in sizes[1:])
        self.register_buffer("center", torch.zeros(layers, heads, 1, width))
        self.register_buffer("scale", torch.ones(layers, heads, 1, width))

    def standardise(self, examples: Sequence[Tensor]) -> None:
        """Set mean and spread of the inputs from examples (L, heads, rows, d) each."""
        joined = torch.cat([e.float() for e in examples], dim=2)
        self.center.copy_(joined.mean(2, keepdim=True))
        self.scale.copy_(joined.std(2, keepdim=True, unbiased=False).clamp(min=1e-6))

    def forward(self, inputs: Tensor, layer: int | None = None) -> Tensor:
        """Real-valued bits; with `layer`, of that layer alone: (..., heads, rows, d) -> (..., heads, rows, C)."""
        at = slice(None) if layer is None else layer
        x = (inputs.float() - self.center[at]) / self.scale[at]
        last = len(self.weights) - 1
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = x @ weight[at] + bias[at]  # (L, heads, rows, a) @ (L, heads, a, b)
            if number < last:
                x = nn.functional.silu(x)
        return x


class HashAttention(nn.Module):
    """The networks of all layers; called as a predictor, the scores are agreeing minus disagreeing bits.

    Args:
        layers: L.
        heads: query heads H.
        groups: key/value heads G.
        width: head width d.
        params: shape and seed.

    Example:
        >>> net = HashAttention(layers=2, heads=6, groups=2, width=16, params=HashParams(bits=8, hidden=4))
        >>> scores = net(1, torch.randn(1, 6, 3, 16), torch.randn(1, 2, 20, 16), torch.zeros(1, 6, 3, 20))
        >>> tuple(scores.shape), scores.abs().max().item() <= 8
        ((1, 6, 3, 20), True)
    """

    def __init__(self, layers: int, heads: int, groups: int, width: int, params: HashParams) -> None:
        super().__init__()
        if heads % groups:
            raise ValueError(f"{heads} query heads cannot share {groups} key/value heads evenly; heads must be a multiple of {groups}")
        draw = torch.Generator().manual_seed(params.seed)
        self.params = params
        self.shape = (layers, heads, groups, width)
        self.query_networks = HeadNetworks(layers, heads, width, params, draw)
        self.key_networks = HeadNetworks(layers, groups, width, params, draw)
        self.slope = nn.Parameter(torch.full((layers, heads, 1, 1), 4.0))
        self.offset = nn.Parameter(torch.full((layers, heads, 1, 1), -2.0))

    @torch.no_grad()
    def query_bits(self, layer: int, query: Tensor) -> Tensor:
        """Signs of queries (B, H, R, d): (B, H, R, C) of +-1, float32."""
        return _signs(self.query_networks(query, layer))

    @torch.no_grad()
    def key_bits(self, layer: int, key: Tensor) -> Tensor:
        """Signs of keys (B, G, n, d): (B, G, n, C) of +-1, float32."""
        return _signs(self.key_networks(key, layer))

    def forward(self, layer: int, query: Tensor, key: Tensor, logits: Tensor) -> Tensor:
        """Scores (B, H, R, n): how many bits agree, minus how many do not."""
        return scaled_logits(self.query_bits(layer, query), self.key_bits(layer, key), 1.0)

    def agreement(self, query: Tensor, key: Tensor) -> Tensor:
        """Log-odds of being a top key, differentiable: query (L, H, R, d), key (L, G, k, d) -> (L, H, R, k)."""
        q = torch.tanh(self.query_networks(query))
        k = torch.tanh(self.key_networks(key))
        mean = scaled_logits(q, k, 1.0 / self.params.bits)  # layers stand where batches do
        return self.slope * mean + self.offset


def train_hash_attention(
    examples: Sequence[HashExamples], params: HashParams, after: Callable[[int, float], None] | None = None
) -> HashAttention:
    """Fit the networks of all layers and heads.

    Args:
        examples: prompts, all with the same L, H, G and d.
        params: shape and training.
        after: called with (step, loss).

    Returns:
        The trained predictor, in evaluation mode.

    Raises:
        ValueError: if there are no examples, or their shapes do not fit each other.
    """
    if not examples:
        raise ValueError("examples must hold at least one prompt, got none")
    layers, heads, _, width = examples[0].query.shape
    groups = examples[0].key.shape[1]
    for e in examples:
        if e.query.shape[:2] != (layers, heads) or e.key.shape[:2] != (layers, groups) or e.key.shape[-1] != width:
            raise ValueError(f"examples must agree in layers, heads and width, got {tuple(e.query.shape)} and {tuple(e.key.shape)}")
    net = HashAttention(layers, heads, groups, width, params)
    net.query_networks.standardise([e.query for e in examples])
    net.key_networks.standardise([e.key for e in examples])
    if params.steps:
        draw = torch.Generator().manual_seed(params.seed + 1)
        tops = [top_threshold(e, params.positives) for e in examples]

        def loss(step: int) -> Tensor:
            at = int(torch.randint(len(examples), (), generator=draw))
            return membership_loss(net, examples[at], tops[at], draw)

        descend(loss, net.parameters(), params.steps, rate=params.rate, after=after)
    return net.eval().requires_grad_(False)


def membership_loss(net: HashAttention, example: HashExamples, threshold: Tensor, generator: torch.Generator) -> Tensor:
    """Cross-entropy of predicted membership in each row's top keys, on drawn rows and keys, both classes weighing the same.

    Args:
        net: the networks.
        example: one prompt.
        threshold: (L, H, R), a row's least top logit.
        generator: draws rows and keys.
    """
    rows = torch.randperm(example.query.shape[2], generator=generator)[: net.params.rows]
    keys = torch.randperm(example.key.shape[2], generator=generator)[: net.params.keys]
    query, key = example.query[:, :, rows], example.key[:, :, keys]
    member = scaled_logits(query, key) >= threshold[:, :, rows, None]
    valid = example.valid[rows][:, keys].expand(member.shape)
    positive = (member & valid).float()
    negative = (~member & valid).float()
    odds = net.agreement(query, key)
    missed = -(positive * nn.functional.logsigmoid(odds)).sum() / positive.sum().clamp(min=1)
    false = -(negative * nn.functional.logsigmoid(-odds)).sum() / negative.sum().clamp(min=1)
    return missed + false


def top_threshold(example: HashExamples, positives: int) -> Tensor:
    """The `positives`-th largest logit of every row, (L, H, R); rows with fewer keys count them all."""
    logits = scaled_logits(example.query, example.key).masked_fill(~example.valid, -math.inf)
    return logits.topk(min(positives, logits.shape[-1]), dim=-1).values[..., -1]


def recall_at(scores: Tensor, logits: Tensor, valid: Tensor, count: int) -> Tensor:
    """Share of a row's `count` heaviest keys that are among its `count` best scored ones, (...,); rows need `count` valid keys.

    Example:
        >>> recall_at(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[3.0, 1.0, 2.0]]), torch.ones(1, 3, dtype=torch.bool), 2).tolist()
        [0.5]
    """
    found = scores.masked_fill(~valid, -math.inf).topk(count, -1).indices
    true = torch.zeros(logits.shape, dtype=torch.bool).scatter_(-1, logits.masked_fill(~valid, -math.inf).topk(count, -1).indices, True)
    return true.gather(-1, found).float().mean(-1)


def save_hash_attention(net: HashAttention, path: Path) -> None:
    """Write the networks as safetensors, with what is needed to build them again."""
    from safetensors.torch import save_file

    # One entry: safetensors writes several in an order of its own, and equal networks should have equal bytes.
    about = {"hash_attention": json.dumps({"params": net.params.model_dump(), "shape": net.shape}, sort_keys=True)}
    tensors = {name: tensor.contiguous() for name, tensor in net.state_dict().items()}
    write_atomically(path, lambda p: save_file(tensors, p, about))


def load_hash_attention(path: Path) -> HashAttention:
    """What `save_hash_attention` wrote.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    from safetensors import safe_open

    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; train the predictor and write it with save_hash_attention")
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["hash_attention"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    layers, heads, groups, width = about["shape"]
    net = HashAttention(layers, heads, groups, width, HashParams(**about["params"]))
    net.load_state_dict(tensors)
    return net.eval().requires_grad_(False)


def _signs(x: Tensor) -> Tensor:
    return torch.where(x >= 0, 1.0, -1.0)
