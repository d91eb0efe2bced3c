"""Attention model for constructive routing (Kool, van Hoof & Welling, 2019), with the refinement embedding of LMask.

The encoder runs once per instance; the decoder scores next nodes from (current node, clock, refinement state). There is no graph context
and node keys are static, so the decisions of whole tours are scored in one pass, teacher forced: `tour_log_probs` replays what
`lazy_decode` recorded. Popped choices are not in the record and contribute nothing (LMask, section 4).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tasks.routing.instances import Instances, Problem
from tasks.routing.lazymask import Decoded, Scorer, Step

REFINEMENT_CLASSES = 5
CLIP = 10.0


class Encoded(NamedTuple):
    """What the decoder reads of B instances.

    Attributes:
        context: each node's part of the query, (B, N, d).
        keys, values: of the glimpse, (B, H, N, d / H).
        pointer: what a glimpse is compared with, (B, N, d).
        scale: unit of the clock, (B,).
    """

    context: Tensor
    keys: Tensor
    values: Tensor
    pointer: Tensor
    scale: Tensor

    def detach(self) -> Encoded:
        """The same without a graph."""
        return Encoded(*(part.detach() for part in self))


class AttentionModel(nn.Module):
    """Encoder and decoder.

    Args:
        problem: `tsptw` or `tspdl`; both give a node four features.
        width: d.
        heads: H, divides d.
        layers: of the encoder.
        hidden: width of the feed-forward blocks.
        refinement: whether the decoder sees the refinement state (RIE): how often the level was pruned (0 to 4 or more), whether the
            budget is used up, whether the set was relaxed. Without it these inputs are held at "never, no, no", a constant, so that
            models with and without have the same parameters and can start from the same weights.
        generator: draws the initial weights, uniform in +-1/sqrt(fan-in).

    Raises:
        ValueError: if the width is no multiple of the heads, or a size is below 1.

    >>> from tasks.routing.generators import random_tsptw
    >>> batch = random_tsptw(2, 6, "hard", torch.Generator().manual_seed(0))
    >>> model = AttentionModel("tsptw", 16, 2, 1, 32, generator=torch.Generator().manual_seed(0))
    >>> model.encode(batch).pointer.shape
    torch.Size([2, 6, 16])
    """

    def __init__(
        self,
        problem: Problem,
        width: int = 128,
        heads: int = 8,
        layers: int = 6,
        hidden: int = 512,
        *,
        refinement: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if min(width, heads, layers, hidden) < 1:
            raise ValueError(f"width, heads, layers and hidden must be at least 1, got {(width, heads, layers, hidden)}")
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, got {width} and {heads}")
        self.problem, self.width, self.heads, self.refinement = problem, width, heads, refinement
        self.shape = {"width": width, "heads": heads, "layers": layers, "hidden": hidden, "refinement": refinement}
        self.depot, self.customer = nn.Linear(2, width), nn.Linear(4, width)
        self.layers = nn.ModuleList(_EncoderLayer(width, heads, hidden) for _ in range(layers))
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.combine = nn.Linear(width, width, bias=False)
        self.query_node = nn.Linear(width, width, bias=False)
        self.query_state = nn.Linear(1 + REFINEMENT_CLASSES + 4, width, bias=False)
        if generator is not None:
            with torch.no_grad():
                for parameter in self.parameters():
                    if parameter.ndim > 1:
                        parameter.uniform_(-1, 1, generator=generator).mul_(1 / math.sqrt(parameter.shape[1]))
                    elif not any(parameter is norm.weight for norm in self.modules() if isinstance(norm, nn.InstanceNorm1d)):
                        parameter.zero_()

    def encode(self, instances: Instances) -> Encoded:
        """Node embeddings and everything static that the decoder needs.

        Raises:
            ValueError: if the model was made for another problem.
        """
        if instances.problem != self.problem:
            raise ValueError(f"the model was trained for {self.problem}, got instances of {instances.problem}")
        seen = instances.features().to(self.depot.weight)
        h = torch.cat([self.depot(seen[:, :1, :2]), self.customer(seen[:, 1:])], 1)
        for layer in self.layers:
            h = layer(h)
        keys, values, pointer = self.project(h).chunk(3, -1)
        # (W_o g) . k = g . (W_o^T k): the glimpse's output projection is done once per node instead of once per decision.
        return Encoded(
            self.query_node(h),
            _split(keys, self.heads),
            _split(values, self.heads),
            pointer @ self.combine.weight,
            instances.scale,
        )

    def scores(self, encoded: Encoded, step: Step) -> Tensor:
        """Logits 10 tanh(.) of next nodes, (b, S, N), before masking; no row of `step.allowed` may be empty."""
        b, samples = step.current.shape
        rows, n = step.rows, step.allowed.shape[-1]
        everything = len(rows) == encoded.context.shape[0]
        context, keys, values, pointer = (part if everything else part[rows] for part in encoded[:4])
        query = context.gather(1, step.current[..., None].expand(-1, -1, self.width)) + self.query_state(self._state(encoded, step))
        heads = _split(query, self.heads)  # (b, H, S, d/H)
        fit = heads @ keys.transpose(-1, -2) / math.sqrt(self.width // self.heads)  # (b, H, S, N)
        weights = fit.masked_fill(~step.allowed[:, None], -torch.inf).softmax(-1)
        glimpse = (weights @ values).transpose(1, 2).reshape(b, samples, self.width)
        logits: Tensor = CLIP * torch.tanh(glimpse @ pointer.transpose(-1, -2) / math.sqrt(self.width))
        return logits.view(b, samples, n)

    def scorer(self, instances: Instances, encoded: Encoded | None = None) -> Scorer:
        """The model as a policy for these instances, without gradients."""
        with torch.no_grad():
            known = self.encode(instances) if encoded is None else encoded.detach()

        def score(step: Step) -> Tensor:
            with torch.no_grad():
                return self.scores(known, step)

        return score

    def tour_log_probs(self, encoded: Encoded, decoded: Decoded) -> tuple[Tensor, Tensor]:
        """Log-probabilities of whole tours and mean entropy of their decisions, each (B, S), with a graph.

        Every tour must be complete. A decision's candidates are those from which it was last made.
        """
        b, samples, levels = decoded.current.shape
        current, clock = (part.reshape(b, samples * levels) for part in (decoded.current, decoded.clock))
        flags = (decoded.refined, decoded.exhausted, decoded.relaxed)
        refined, exhausted, relaxed = (part.reshape(b, samples * levels) for part in flags)
        allowed = decoded.allowed.reshape(b, samples * levels, -1)
        step = Step(torch.arange(b, device=allowed.device), current, clock, allowed, refined, exhausted, relaxed)
        log_p = self.scores(encoded, step).masked_fill(~allowed, -torch.inf).log_softmax(-1)
        chosen = log_p.gather(-1, decoded.tours[..., 1:].reshape(b, -1, 1))[..., 0]
        safe = log_p.masked_fill(~allowed, 0.0)
        entropy = -(safe.exp() * safe).masked_fill(~allowed, 0.0).sum(-1)
        return chosen.view(b, samples, levels).sum(-1), entropy.view(b, samples, levels).mean(-1)

    def _state(self, encoded: Encoded, step: Step) -> Tensor:
        clock = (step.clock / encoded.scale[step.rows][:, None]).to(encoded.context.dtype)[..., None]
        seen = [step.refined.clamp(max=REFINEMENT_CLASSES - 1), step.exhausted.long(), step.relaxed.long()]
        if not self.refinement:
            seen = [torch.zeros_like(part) for part in seen]
        one_hot = [nn.functional.one_hot(part, size).to(clock.dtype) for part, size in zip(seen, (REFINEMENT_CLASSES, 2, 2), strict=True)]
        return torch.cat([clock, *one_hot], -1)


class _EncoderLayer(nn.Module):
    """Self-attention and feed-forward block, instance norm after each residual."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.first, self.second = nn.InstanceNorm1d(width, affine=True), nn.InstanceNorm1d(width, affine=True)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, h: Tensor) -> Tensor:
        """One layer, (B, N, d) -> (B, N, d)."""
        q, k, v = (_split(part, self.heads) for part in self.qkv(h).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        h = self.first((h + self.out(mixed)).transpose(1, 2)).transpose(1, 2)
        normed: Tensor = self.second((h + self.down(nn.functional.relu(self.up(h)))).transpose(1, 2)).transpose(1, 2)
        return normed


def _split(x: Tensor, heads: int) -> Tensor:
    """(B, L, d) -> (B, H, L, d / H)."""
    return x.view(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)
