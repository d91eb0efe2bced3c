"""Implicit posterior over whitened inducing variables (IPVI): a generator makes V from noise, a discriminator tells V from the prior.

The logit T of a discriminator that tells samples of q (label 1) from samples of the prior p (label 0) is log q(V) - log p(V) at its
optimum, so that E_q T(V) stands in for the divergence, which has no closed form (Yu et al., 2019, Sec. 3). `ImplicitDeepGP`
alternates: its bound first improves every discriminator, then is a bound to improve everything else with. While a discriminator
lags behind, that is no bound at all, and never one that may be compared with other methods' bounds.

The generator adds its network's output to the scaled noise itself, and the discriminator sees squares too: q then starts as the prior,
has a density everywhere, and a Gaussian q is within reach of the discriminator's first layer. Both favour the baseline.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tasks.common.node import Params
from tasks.gaussian_process.batched_networks import ReplicatedNetwork
from tasks.gaussian_process.deep_gp import Bound, DeepGP
from tasks.gaussian_process.layers import Inducing, SparseLayer
from tasks.gaussian_process.likelihoods import make_likelihood
from tasks.gaussian_process.streams import SeedStreams

NETWORKS = 3
"""Purpose of the random streams that initial weights come from."""


class ImplicitParams(Params):
    """Generator and discriminator of every layer.

    Attributes:
        hidden: width of the two hidden layers of both networks.
        draws: samples of q and of the prior per update of a discriminator.
        updates: of every discriminator before each step of the rest.
        rate: of the discriminators' Adam.
    """

    hidden: int = Field(128, ge=1)
    draws: int = Field(64, ge=1)
    updates: int = Field(1, ge=1)
    rate: float = Field(1e-3, gt=0.0)


class DensityRatio(nn.Module):
    """Estimates log q(v) - log p(v) from samples by telling them apart; T = 0 at the start.

    Its parameters ask for no gradient, so that whoever trains a model that holds it leaves it alone; `improve` trains it.

    Args:
        size: length of v.
        hidden: width of the two hidden layers.
        rate: of Adam.
        streams: of the initial weights, one seed per replica.
    """

    def __init__(self, size: int, hidden: int, rate: float, streams: SeedStreams) -> None:
        super().__init__()
        self.network = ReplicatedNetwork((2 * size, hidden, hidden, 1), streams)
        self.network.requires_grad_(False)
        self.rate = rate
        self._optimiser: torch.optim.Adam | None = None

    def forward(self, v: Tensor) -> Tensor:
        """Log-ratio (R, n) at v (R, n, size)."""
        logits: Tensor = self.network(torch.cat([v, v.square() - 1], -1))
        return logits[..., 0]

    def loss(self, of_q: Tensor, of_p: Tensor) -> Tensor:
        """Cross-entropy of telling samples of q from samples of p, (R,); its minimiser over all functions is the log-ratio."""
        return F.softplus(-self(of_q)).mean(-1) + F.softplus(self(of_p)).mean(-1)

    def improve(self, of_q: Tensor, of_p: Tensor) -> Tensor:
        """One step of Adam; the loss before it, (R,).

        >>> ratio = DensityRatio(1, 8, 1e-2, SeedStreams([0]))
        >>> round(ratio.improve(torch.ones(1, 4, 1), -torch.ones(1, 4, 1)).item(), 4)  # 2 log 2: nothing is known yet
        1.3863
        """
        parameters = list(self.network.parameters())
        with torch.enable_grad():
            self.network.requires_grad_(True)
            loss = self.loss(of_q.detach(), of_p.detach())
            gradients = torch.autograd.grad(loss.sum(), parameters)
            self.network.requires_grad_(False)
        if self._optimiser is None:
            self._optimiser = torch.optim.Adam(parameters, lr=self.rate)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        return loss.detach()


class ImplicitPosterior(nn.Module):
    """Generator V = s * eps + network(eps), eps ~ N(0, I) of V's size, and the discriminator that stands for its density.

    Args:
        inducing: M.
        outputs: d.
        params: widths and updates.
        streams: of the initial weights; one seed per replica.

    Raises:
        ValueError: for sizes below 1.

    >>> posterior = ImplicitPosterior(3, 2, ImplicitParams(hidden=8), SeedStreams([0]))
    >>> drawn = posterior.draw(torch.zeros(1, 3, 1), 5, SeedStreams([1]))
    >>> drawn.values.shape, drawn.kl.item()  # before training: the prior
    (torch.Size([1, 5, 3, 2]), 0.0)
    """

    def __init__(self, inducing: int, outputs: int, params: ImplicitParams, streams: SeedStreams) -> None:
        super().__init__()
        if min(inducing, outputs) < 1:
            raise ValueError(f"inducing and outputs must be at least 1, got {inducing} and {outputs}")
        self.shape, self.params = (inducing, outputs), params
        size = inducing * outputs
        self.generator = ReplicatedNetwork((size, params.hidden, params.hidden, size), streams)
        self.log_scale = nn.Parameter(torch.zeros(len(streams), 1, size))
        self.ratio = DensityRatio(size, params.hidden, params.rate, streams)

    def sample(self, samples: int, streams: SeedStreams) -> Tensor:
        """Samples of V as vectors, (R, S, M d)."""
        noise = streams.normal(samples, self.shape[0] * self.shape[1])
        moved: Tensor = self.generator(noise)
        return self.log_scale.exp() * noise + moved

    def draw(self, z: Tensor, samples: int, streams: SeedStreams) -> Inducing:
        """Samples of V (R, S, M, d), with the estimated divergence E_q T(V)."""
        v = self.sample(samples, streams)
        return Inducing(v.reshape(*v.shape[:2], *self.shape), None, {"ratio": self.ratio(v).mean(1)})

    def improve(self, streams: SeedStreams) -> Tensor:
        """Improve the discriminator against the generator as it is; the last loss (R,)."""
        for _ in range(self.params.updates):
            with torch.no_grad():
                of_q = self.sample(self.params.draws, streams)
            loss = self.ratio.improve(of_q, streams.normal(*of_q.shape[1:]))
        return loss


class ImplicitDeepGP(DeepGP):
    """A deep GP whose posteriors have discriminators: every bound first improves these."""

    def bound(self, x: Tensor, y: Tensor, rows: int, samples: int, streams: SeedStreams) -> Bound:
        """Data term and estimated divergence, after `updates` steps of every discriminator."""
        for posterior in self.posteriors:
            posterior.improve(streams)
        return super().bound(x, y, rows, samples, streams)


def build_implicit(layers: Sequence[SparseLayer], likelihood: str, params: ImplicitParams, seeds: Sequence[int]) -> ImplicitDeepGP:
    """A deep GP with implicit posteriors, to be trained by `tasks.gaussian_process.training.train`.

    Args:
        layers: of R replicas, from inputs to outputs.
        likelihood: see `likelihoods.make_likelihood`.
        params: of the networks.
        seeds: one per replica; the networks' initial weights come from them.

    Raises:
        ValueError: for seeds that do not match the layers, or an unknown likelihood.
    """
    replicas = layers[0].z.shape[0]
    if len(seeds) != replicas:
        raise ValueError(f"seeds must be one per replica, got {len(seeds)} for {replicas}")
    streams = SeedStreams(seeds, NETWORKS)
    posteriors = [ImplicitPosterior(layer.z.shape[1], layer.outputs, params, streams) for layer in layers]
    return ImplicitDeepGP(layers, posteriors, make_likelihood(likelihood, replicas))
