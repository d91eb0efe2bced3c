"""Deep Gaussian processes: sparse layers, a posterior over each layer's inducing variables, a likelihood, and the bound.

The model is agnostic of how inducing variables are inferred: a posterior is anything with `draw(z, samples, streams) -> Inducing`.
R independent problems (seeds, splits) of equal shape run as one batch; nothing mixes along that axis. Doubly stochastic inference:
Salimbeni & Deisenroth (2017). Shapes: R replicas, S posterior samples, B rows, D features, M inducing inputs, d outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tasks.gaussian_process.layers import Inducing, SparseLayer, linear_mean
from tasks.gaussian_process.likelihoods import make_likelihood
from tasks.gaussian_process.streams import SeedStreams


class Posterior(Protocol):
    """Approximate posterior of one layer's whitened inducing variables V, with prior N(0, I)."""

    def draw(self, z: Tensor, samples: int, streams: SeedStreams) -> Inducing:
        """Samples of V (or a Gaussian) given inducing inputs z (R, M, D), with its divergence from the prior."""
        ...


@dataclass(frozen=True)
class Bound:
    """An estimate of the evidence lower bound, per replica (R,), in nats.

    Attributes:
        data: N / B times the sum over the batch of the expected log-likelihood.
        layers: per layer the drawn inducing variables, with their divergence from the prior.
        rows: N.
    """

    data: Tensor
    layers: tuple[Inducing, ...]
    rows: int

    @property
    def kl(self) -> Tensor:
        """Divergence of all layers, (R,)."""
        return torch.stack([layer.kl for layer in self.layers]).sum(0)

    @property
    def per_datum(self) -> Tensor:
        """(data - kl) / N, (R,)."""
        return (self.data - self.kl) / self.rows


class DeepGP(nn.Module):
    """Layers, one posterior each, and a likelihood.

    Args:
        layers: from inputs to outputs.
        posteriors: one per layer, modules with `draw`.
        likelihood: see `likelihoods`.

    Raises:
        ValueError: unless there is one posterior per layer and at least one layer.
    """

    layers: Any
    posteriors: Any
    likelihood: Any

    def __init__(self, layers: Sequence[SparseLayer], posteriors: Sequence[nn.Module], likelihood: nn.Module) -> None:
        super().__init__()
        if len(layers) != len(posteriors) or not layers:
            raise ValueError(f"a deep GP needs one posterior per layer, got {len(layers)} layers and {len(posteriors)} posteriors")
        self.layers = nn.ModuleList(layers)
        self.posteriors = nn.ModuleList(posteriors)
        self.likelihood = likelihood

    def draw(self, samples: int, streams: SeedStreams) -> tuple[Inducing, ...]:
        """Inducing variables of every layer, drawn independently of each other."""
        return tuple(posterior.draw(layer.z, samples, streams) for layer, posterior in zip(self.layers, self.posteriors, strict=True))

    def propagate(
        self, x: Tensor, inducing: Sequence[Inducing], samples: int, streams: SeedStreams, common_noise: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of the last layer's f, after one draw of f by row in every hidden layer.

        Args:
            x: inputs (R, B, D).
            inducing: per layer, e.g. `Inducing(V)` with V (R, S, M, d).
            samples: S.
            streams: noise of the hidden layers.
            common_noise: the same draws for all rows: each row is distributed as before, but does not depend on the others.

        Returns:
            mean (R, S, B, d), variance (R, S, B, d or 1).

        Raises:
            ValueError: if x has another shape than the first layer takes.
        """
        features = self.layers[0].z.shape[-1]
        if x.ndim != 3 or x.shape[-1] != features:
            raise ValueError(f"x must have shape (R, B, {features}), got {tuple(x.shape)}")
        h = x[:, None]
        for number, (layer, variables) in enumerate(zip(self.layers, inducing, strict=True)):
            mean, variance = layer.moments(h, variables)
            if number < len(self.layers) - 1:
                noise = streams.normal(samples, 1 if common_noise else x.shape[1], mean.shape[-1])
                h = mean + variance.sqrt() * noise
        mean = mean.expand(-1, samples, -1, -1)
        return mean, variance.expand(-1, samples, -1, -1)

    def bound(self, x: Tensor, y: Tensor, rows: int, samples: int, streams: SeedStreams) -> Bound:
        """The evidence lower bound from a batch.

        Args:
            x: (R, B, D).
            y: (R, B), numbers or class numbers.
            rows: N, the rows of the whole training set.
            samples: S, posterior samples.
            streams: of all noise.

        Raises:
            ValueError: for shapes that do not fit.
        """
        if y.shape != x.shape[:2]:
            raise ValueError(f"y must have shape {tuple(x.shape[:2])}, got {tuple(y.shape)}")
        layers = self.draw(samples, streams)
        mean, variance = self.propagate(x, layers, samples, streams)
        noise = streams.normal(*mean.shape[1:]) if not hasattr(self.likelihood, "noise") else mean
        expected = self.likelihood.expected(mean, variance, y, noise)
        return Bound(rows / x.shape[1] * expected.mean(1).sum(-1), layers, rows)


def build_layers(
    z: Tensor,
    x: Tensor,
    depth: int,
    outputs: int,
    hidden: int | None = None,
    hidden_variance: float = 0.01,
    jitter: float = 1e-4,
) -> list[SparseLayer]:
    """Layers of a deep GP: hidden ones with a linear mean function, the last with mean zero.

    Inducing inputs of deeper layers are those of the first, pushed through the mean functions.

    Args:
        z: inducing inputs of the first layer, (R, M, D).
        x: training inputs (R, N, D), for the principal axes where a width changes.
        depth: L >= 1.
        outputs: of the last layer.
        hidden: width of hidden layers; D when None.
        hidden_variance: initial kernel variance of hidden layers (the last starts at 1).
        jitter: relative jitter of K_ZZ.

    Raises:
        ValueError: for a depth below 1, or more inducing inputs than rows.

    >>> x = torch.randn(1, 9, 2, generator=torch.Generator().manual_seed(0))
    >>> [layer.outputs for layer in build_layers(x[:, :4], x, depth=3, outputs=1)]
    [2, 2, 1]
    """
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")
    if z.shape[1] > x.shape[1]:
        raise ValueError(f"inducing inputs must not outnumber the {x.shape[1]} training rows, got {z.shape[1]}")
    width = x.shape[-1] if hidden is None else hidden
    layers = []
    for number in range(1, depth):
        mean = linear_mean(x, width)
        layers.append(SparseLayer(z, width, mean, hidden_variance, jitter=jitter, name=f"layer {number}"))
        z, x = z @ mean, x @ mean
    layers.append(SparseLayer(z, outputs, None, 1.0, jitter=jitter, name=f"layer {depth}"))
    return layers


def build_deep_gp(layers: Sequence[SparseLayer], posteriors: Sequence[nn.Module], likelihood: str = "gaussian") -> DeepGP:
    """A deep GP of given layers and posteriors, with a likelihood by name.

    >>> from tasks.gaussian_process.gaussian import GaussianPosterior
    >>> x = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(0))
    >>> layers = build_layers(x[:, :4], x, depth=2, outputs=1)
    >>> model = build_deep_gp(layers, [GaussianPosterior(2, 4, layer.outputs) for layer in layers])
    >>> model.bound(x, x[..., 0], rows=9, samples=5, streams=SeedStreams([0, 1])).per_datum.shape
    torch.Size([2])
    """
    return DeepGP(layers, posteriors, make_likelihood(likelihood, layers[0].z.shape[0]))
