"""A GPT-2 over strings of vertices, from random weights: pretrained on edges and triangles, asked for triangles."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from tasks.common.node import Params
from tasks.rl.networks import generator
from tasks.training.loop import descend


class TransformerParams(Params):
    """Size of a GPT-2 and how it is pretrained; the defaults are tiny, GPT-2 itself is 12 layers of width 768 with 12 heads.

    Attributes:
        layers: blocks.
        width: of the embeddings.
        heads: of the attention.
        steps: of pretraining.
        batch: strings per step.
        rate: of AdamW, falling to 0 along a cosine.
    """

    layers: int = 2
    width: int = 64
    heads: int = 4
    steps: int = 400
    batch: int = 256
    rate: float = 3e-3


class TransformerPolicy(nn.Module):
    """Reads a task token and the vertices so far; its output is restricted to vertices.

    Tokens 0..V-1 are vertices, V asks for an edge, V + 1 for a triangle, V + 2 ends a string and fills it up.
    """

    def __init__(self, vertices: int, params: TransformerParams, seed: int) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        super().__init__()
        self.vertices = vertices
        config = GPT2Config(
            vocab_size=vertices + 3,
            n_positions=5,
            n_embd=params.width,
            n_layer=params.layers,
            n_head=params.heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=vertices + 1,
            eos_token_id=vertices + 2,
            use_cache=False,
        )
        self.model: Any = GPT2LMHeadModel(config)
        initialise(self.model, generator(seed), params.layers)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def log_probabilities(self, triples: torch.Tensor) -> torch.Tensor:
        """Log probability (B, 3, V) of every vertex at every place of triples (B, 3), given the vertices before it."""
        ask = torch.full_like(triples[:, :1], self.vertices + 1)
        logits = self.model(input_ids=torch.cat([ask, triples[:, :2]], 1)).logits[..., : self.vertices]
        found: torch.Tensor = logits.float().log_softmax(-1)
        return found

    @torch.no_grad()
    def sample(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Triples (count, 3)."""
        uniforms = torch.from_numpy(rng.random((count, 3))).to(self.device)
        triples = torch.zeros((count, 3), dtype=torch.int64, device=self.device)
        for place in range(3):
            chances = self.log_probabilities(triples)[:, place].double().exp()
            edges = chances.cumsum(-1)[:, :-1].contiguous()
            triples[:, place] = torch.searchsorted(edges, uniforms[:, place : place + 1].contiguous(), right=True)[:, 0]
        return triples.cpu().numpy()

    def pretrain(self, edges: np.ndarray, triangles: np.ndarray, params: TransformerParams, rng: np.random.Generator) -> np.ndarray:
        """Next-token training on strings of edges (m, 2) and triangles (n, 3); returns the losses (steps,)."""
        ask_edge, ask_triangle, end = self.vertices, self.vertices + 1, self.vertices + 2
        tokens = np.full((len(edges) + len(triangles), 5), end)
        tokens[: len(edges), 0], tokens[len(edges) :, 0] = ask_edge, ask_triangle
        tokens[: len(edges), 1:3], tokens[len(edges) :, 1:4] = edges, triangles
        labels = tokens.copy()
        labels[: len(edges), 4] = -100  # after its end a string says nothing
        strings, wanted = (torch.from_numpy(a).to(self.device) for a in (tokens, labels))

        def loss(step: int) -> torch.Tensor:
            rows = torch.from_numpy(rng.integers(len(tokens), size=params.batch)).to(self.device)
            logits = self.model(input_ids=strings[rows, :-1]).logits
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), wanted[rows, 1:].flatten(), ignore_index=-100)

        every = list(self.parameters())
        return descend(loss, every, params.steps, rate=params.rate, optimiser="adamw", weight_decay=0.01, schedule="cosine", clip=1.0)


def initialise(model: nn.Module, rng: torch.Generator, layers: int) -> None:
    """GPT-2's initial weights from a generator of their own: N(0, .02), less where blocks add up, biases 0, layer norms 1."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.fill_(1.0 if name.endswith("weight") else 0.0)
            else:
                spread = 0.02 / (2 * layers) ** 0.5 if name.endswith("c_proj.weight") else 0.02
                weight.copy_(torch.empty(weight.shape).normal_(0.0, spread, generator=rng))
