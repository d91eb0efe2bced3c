"""A tabular policy over triples: p(v1) p(v2 | v1) p(v3 | v1, v2), warm-started from smoothed counts."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import torch
from torch import nn

from tasks.creativity.triangles import TriangleTask


class TabularPolicy(nn.Module):
    """Logits of every conditional distribution: (V), (V, V), (V, V, V).

    Example:
        >>> policy = TabularPolicy(4)
        >>> policy.log_probabilities(torch.tensor([[0, 1, 2]])).exp().sum(-1).detach().round(decimals=4).tolist()
        [[1.0, 1.0, 1.0]]
    """

    def __init__(self, vertices: int) -> None:
        super().__init__()
        self.vertices = vertices
        self.tables = nn.ParameterList(nn.Parameter(torch.zeros((vertices,) * order)) for order in (1, 2, 3))

    def log_probabilities(self, triples: torch.Tensor) -> torch.Tensor:
        """Log probability (B, 3, V) of every vertex at every place of triples (B, 3), given the vertices before it."""
        first, second, third = self.tables
        a, b, _ = triples.unbind(-1)
        logits = torch.stack([first.expand(len(a), -1), second[a], third[a, b]], 1)
        return logits.log_softmax(-1)

    @torch.no_grad()
    def sample(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Triples (count, 3)."""
        uniforms = torch.from_numpy(rng.random((count, 3)))
        triples = torch.zeros((count, 3), dtype=torch.int64)
        for place, table in enumerate(self.tables):
            given = tuple(triples[:, i] for i in range(place))
            chances = table[given].double().softmax(-1).expand(count, -1) if given else table.double().softmax(-1).expand(count, -1)
            edges = chances.cumsum(-1)[:, :-1].contiguous()
            triples[:, place] = torch.searchsorted(edges, uniforms[:, place : place + 1].contiguous(), right=True)[:, 0]
        return triples.numpy()


def from_counts(task: TriangleTask) -> TabularPolicy:
    """Log of smoothed counts: every ordered triangle of the pretraining set once, and a little for what the edges suggest.

    .05 on every v1; .02 on every v2 and .3 on those joined to v1; .01 on every v3 and .3 on those joined to v1 or v2.
    """
    v = task.vertices
    joined = task.adjacency.astype(float)
    counts = [np.full(v, 0.05), 0.02 + 0.3 * joined, 0.01 + 0.3 * np.maximum(joined[:, None], joined[None])]
    ordered = np.concatenate([task.shown[:, list(order)] for order in permutations(range(3))])
    for place, table in enumerate(counts):
        np.add.at(table, tuple(ordered[:, i] for i in range(place + 1)), 1.0)
    policy = TabularPolicy(v)
    with torch.no_grad():
        for table, values in zip(policy.tables, counts, strict=True):
            table.copy_(torch.from_numpy(np.log(values)))
    return policy
