"""Quantile regression by networks, many at once: the networks of all splits are one batch of matrix products.

The seed axis comes first in every tensor, (S, B, D), and parameters are (S, D_in, D_out), so that thirty small networks cost
one `bmm` per layer. Networks never mix: the loss sums over the seed axis, each has its own rows, draws and early stopping.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from tasks.common.node import Params
from tasks.conformal.quantiles import Floats, check_lengths, check_level

if TYPE_CHECKING:
    import torch


class MlpParams(Params):
    """Networks as in the experiments of Feldman & Romano (2024).

    Attributes:
        hidden: widths of the hidden layers.
        dropout: share of units dropped in training.
        learning_rate: of Adam.
        batch: rows per step of each network.
        epochs: most passes over the rows.
        patience: epochs without a better validation loss after which a network stops.
        validation: share of the training rows set aside for that.
    """

    hidden: tuple[Annotated[int, Field(ge=1)], ...] = (32, 64, 64, 32)
    dropout: float = Field(0.1, ge=0.0, lt=1.0)
    learning_rate: float = Field(1e-4, gt=0.0)
    batch: int = Field(128, ge=1)
    epochs: int = Field(1000, ge=1)
    patience: int = Field(200, ge=1)
    validation: float = Field(0.1, gt=0.0, lt=1.0)


def fit_mlp_quantiles(
    train: Sequence[tuple[Floats, Floats]],
    rows: Sequence[Floats],
    alpha: float,
    params: MlpParams,
    seeds: Sequence[int],
    device: str = "cpu",
) -> list[tuple[Floats, Floats]]:
    """Fit one network per training set, all at once, and predict the alpha/2 and 1 - alpha/2 quantiles.

    Args:
        train: per network its clean training rows, features (n_s, d) and labels (n_s,); the n_s may differ.
        rows: per network the features to predict for, (m_s, d).
        alpha: miscoverage level in (0, 1).
        params: the networks and their training.
        seeds: one per network. A network depends on its own seed and rows, and on the longest training set of the batch,
            which sets the steps of an epoch.
        device: torch device.

    Returns:
        per network (lower, upper), each (m_s,).

    Raises:
        ValueError: for alpha outside (0, 1), no networks, lists of different lengths, or training rows that are fewer than 2 or
            not finite.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.random((300, 2))
    >>> small = MlpParams(hidden=(8,), epochs=3, learning_rate=0.01)
    >>> [(lower, upper)] = fit_mlp_quantiles([(x, rng.random(300))], [x[:5]], 0.2, small, seeds=[0])
    >>> lower.shape, upper.shape
    ((5,), (5,))
    """
    import torch

    check_level(alpha)
    if not len(train) == len(rows) == len(seeds) or not train:
        raise ValueError(f"train, rows and seeds need one entry per network, got {len(train)}, {len(rows)} and {len(seeds)}")
    for which, (x, y) in enumerate(train):
        check_lengths(**{f"x of network {which}": x, f"y of network {which}": y})
        if len(y) < 2 or not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise ValueError(f"train: network {which} needs at least 2 rows of finite numbers, got {len(y)}")
    fitted = [_Scaled(x, y, np.random.default_rng([seed, 4]), params.validation) for (x, y), seed in zip(train, seeds, strict=True)]
    network = _Batch(fitted[0].x.shape[1], params, [torch.Generator().manual_seed(seed) for seed in seeds], device)
    s = torch.arange(len(train), device=device)[:, None]
    levels = torch.tensor([alpha / 2, 1 - alpha / 2], device=device)
    x_val, y_val, w_val = _stack([(f.x[f.held_out], f.y[f.held_out]) for f in fitted], device)
    x_fit, y_fit, _ = _stack([(f.x[~f.held_out], f.y[~f.held_out]) for f in fitted], device)
    sizes = [int((~f.held_out).sum()) for f in fitted]
    orders = [np.random.default_rng([seed, 5]) for seed in seeds]
    optimiser = torch.optim.Adam(network.parameters, lr=params.learning_rate)
    best = torch.full((len(train),), float("inf"), device=device)
    kept = [p.detach().clone() for p in network.parameters]
    since = torch.zeros(len(train), device=device)
    for _ in range(params.epochs):
        for index in _batches(sizes, orders, params.batch, device):
            loss = _pinball(network.forward(x_fit[s, index], dropout=True), y_fit[s, index], torch.ones_like(y_fit[s, index]), levels).sum()
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
        with torch.no_grad():
            now = _pinball(network.forward(x_val), y_val, w_val, levels)
        better = (now < best) & (since < params.patience)
        best = torch.where(better, now, best)
        since = torch.where(better, torch.zeros_like(since), since + 1)
        for keep, parameter in zip(kept, network.parameters, strict=True):
            keep[better] = parameter.detach()[better]
        if bool((since >= params.patience).all()):
            break
    network.parameters = kept
    return _predict(network, fitted, rows, device)


class _Scaled:
    """Standardised rows of one network, and which of them are held out."""

    def __init__(self, x: Floats, y: Floats, rng: np.random.Generator, validation: float) -> None:
        spread = x.std(axis=0)
        self.shift, self.scale = x.mean(axis=0), np.where(spread > 0, spread, 1.0)
        self.x, self.y = (x - self.shift) / self.scale, y
        self.held_out = np.zeros(len(y), dtype=bool)
        self.held_out[rng.permutation(len(y))[: min(max(1, round(validation * len(y))), len(y) - 1)]] = True


class _Batch:
    """Parameters of S networks; weights (S, D_in, D_out), biases (S, 1, D_out)."""

    def __init__(self, features: int, params: MlpParams, generators: list[torch.Generator], device: str) -> None:
        import torch

        widths = [features, *params.hidden, 2]
        self.parameters: list[torch.Tensor] = []
        for fan_in, fan_out in pairwise(widths):
            bound = 1.0 / fan_in**0.5
            for shape in ((fan_in, fan_out), (1, fan_out)):
                drawn = torch.stack([torch.rand(shape, generator=g) for g in generators])
                self.parameters.append(((2 * drawn - 1) * bound).to(device).requires_grad_())
        self._dropout, self._device = params.dropout, device
        # Dropout masks are drawn where they are used; one stream per network keeps networks independent of each other.
        self._streams = [torch.Generator(device).manual_seed(int(g.initial_seed()) + 1_000_003) for g in generators]

    def forward(self, x: torch.Tensor, dropout: bool = False) -> torch.Tensor:
        """Quantiles (S, B, 2) of features (S, B, D)."""
        import torch

        layers = len(self.parameters) // 2
        for i in range(layers):
            x = torch.baddbmm(self.parameters[2 * i + 1], x, self.parameters[2 * i])
            if i < layers - 1:
                x = torch.relu(x)
                if dropout and self._dropout:
                    drawn = torch.stack([torch.rand(x.shape[1:], generator=g, device=self._device) for g in self._streams])
                    x = x * (drawn >= self._dropout) / (1.0 - self._dropout)
        return x


def _pinball(quantiles: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Mean pinball loss of each network, (S,); quantiles (S, B, 2), y and weight (S, B)."""
    import torch

    error = y[..., None] - quantiles
    loss = torch.maximum(levels * error, (levels - 1.0) * error).sum(dim=-1)
    return (loss * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)


def _batches(sizes: list[int], orders: list[np.random.Generator], batch: int, device: str) -> list[torch.Tensor]:
    """Row numbers (S, B) of one pass over the longest training set; shorter ones start over, so that all take equally many steps."""
    import torch

    index = np.stack([np.resize(rng.permutation(size), max(sizes)) for size, rng in zip(sizes, orders, strict=True)])
    return list(torch.split(torch.from_numpy(index).to(device), batch, dim=1))


def _stack(pairs: list[tuple[Floats, Floats]], device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features (S, N, D), labels (S, N) and presence (S, N), padded with zeros to the longest."""
    import torch

    longest, features = max(len(y) for _, y in pairs), pairs[0][0].shape[1]
    x = torch.zeros(len(pairs), longest, features)
    y, weight = torch.zeros(len(pairs), longest), torch.zeros(len(pairs), longest)
    for s, (rows, labels) in enumerate(pairs):
        x[s, : len(labels)], y[s, : len(labels)] = torch.from_numpy(rows).float(), torch.from_numpy(labels).float()
        weight[s, : len(labels)] = 1.0
    return x.to(device), y.to(device), weight.to(device)


def _predict(network: _Batch, fitted: list[_Scaled], rows: Sequence[Floats], device: str) -> list[tuple[Floats, Floats]]:
    import torch

    x, _, _ = _stack([((r - f.shift) / f.scale, np.zeros(len(r))) for r, f in zip(rows, fitted, strict=True)], device)
    with torch.no_grad():
        out = network.forward(x).cpu().double().numpy()
    return [(out[s, : len(r), 0], out[s, : len(r), 1]) for s, r in enumerate(rows)]
