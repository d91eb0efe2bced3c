"""Inducing variables sampled by stochastic-gradient Hamiltonian Monte Carlo (SGHMC), hyperparameters by Monte Carlo EM.

Havasi et al. (2018): chains move through the whitened inducing variables V of all layers jointly, with the preconditioner that
Springenberg et al. (2016) estimate during burn-in; after every move the hyperparameters take a step uphill on the log joint density
at a random state out of a moving window. The energy takes the expected log-likelihood over f given V, as the evidence lower bound
does: the chains then sample the best posterior that any variational method with this bound could reach, the reference for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from tasks.common.node import Params
from tasks.gaussian_process.deep_gp import Bound, DeepGP
from tasks.gaussian_process.layers import Inducing, SparseLayer
from tasks.gaussian_process.likelihoods import LOG_2PI, make_likelihood
from tasks.gaussian_process.streams import SeedStreams


class SghmcParams(Params):
    """The sampler.

    Attributes:
        rate: step size, in units of the preconditioner.
        friction: share of the momentum that a move loses, in (0, 1).
        moves: per step of the hyperparameters.
        chains: that move side by side.
        burn_in: moves during which the preconditioner adapts.
        window: last moves whose states are kept.
    """

    rate: float = Field(0.01, gt=0.0)
    friction: float = Field(0.05, gt=0.0, lt=1.0)
    moves: int = Field(1, ge=1)
    chains: int = Field(2, ge=1)
    burn_in: int = Field(200, ge=1)
    window: int = Field(300, ge=1)


class ChainPosterior(nn.Module):
    """States of C chains in one layer's V, the last of which stand for the posterior.

    Args:
        replicas: R.
        inducing: M.
        outputs: d.
        params: of the sampler.

    Raises:
        ValueError: for sizes below 1.

    >>> posterior = ChainPosterior(1, 3, 2, SghmcParams(chains=4))
    >>> posterior.draw(torch.zeros(1, 3, 1), 6, SeedStreams([0])).values.shape
    torch.Size([1, 6, 3, 2])
    """

    values: Tensor
    momentum: Tensor
    gradient: Tensor
    square: Tensor
    memory: Tensor
    kept: Tensor

    def __init__(self, replicas: int, inducing: int, outputs: int, params: SghmcParams) -> None:
        super().__init__()
        if min(replicas, inducing, outputs) < 1:
            raise ValueError(f"replicas, inducing and outputs must be at least 1, got {replicas}, {inducing} and {outputs}")
        self.params, self.moved = params, 0
        shape = (replicas, params.chains, inducing, outputs)
        for name, value in (("values", 0.0), ("momentum", 0.0), ("gradient", 0.0), ("square", 1.0), ("memory", 1.0)):
            self.register_buffer(name, torch.full(shape, value))
        self.register_buffer("kept", torch.zeros(params.window, *shape))

    @property
    def filled(self) -> int:
        """How many states of each chain are kept."""
        return min(self.moved, self.params.window)

    def draw(self, z: Tensor, samples: int, streams: SeedStreams) -> Inducing:
        """States (R, S, M, d), evenly spaced over chains and time, the same places in every layer: layers are drawn jointly.

        Before the first move all are the starting state; kept states come again where S exceeds their number.
        """
        states = self.values
        if self.filled:
            states = self.kept[: self.filled].permute(1, 2, 0, 3, 4).flatten(1, 2)  # (R, C * filled, M, d), chain by chain
        places = ((torch.arange(samples, device=states.device) + 0.5) * states.shape[1] / samples).long()
        return joint_density(states[:, places])

    def move(self, gradient: Tensor, noise: Tensor) -> None:
        """One move, given the gradient of the energy at `values` and standard normal noise, all (R, C, M, d).

        With m = 1 / sqrt(mean square gradient), momentum' = (1 - friction) momentum - rate^2 m gradient + sqrt(2 rate^2 friction m)
        noise, values' = values + momentum' (Springenberg et al., 2016, Eq. 10, without their estimate of the gradients' noise).
        """
        if self.moved < self.params.burn_in:
            share = 1 / (self.memory + 1)
            self.gradient += share * (gradient - self.gradient)
            self.square += share * (gradient.square() - self.square)
            steady = self.gradient.square() / self.square.clamp_min(1e-16)
            self.memory += 1 - steady * self.memory
        scale = self.params.rate**2 / self.square.clamp_min(1e-16).sqrt()
        friction = self.params.friction
        self.momentum.mul_(1 - friction).add_(-scale * gradient + (2 * friction * scale).sqrt() * noise)
        self.values += self.momentum
        self.kept[self.moved % self.params.window] = self.values
        self.moved += 1


def joint_density(values: Tensor) -> Inducing:
    """Samples (R, S, M, d) with minus the prior's log-density in place of a divergence: there is none of a sample."""
    return Inducing(values, None, {"prior": 0.5 * (values.square() + LOG_2PI).sum((2, 3)).mean(1)})


class SampledDeepGP(DeepGP):
    """A deep GP whose bound is preceded by moves of the chains, and is the log joint density at a state of the window."""

    def __init__(self, layers: Sequence[SparseLayer], likelihood: nn.Module, params: SghmcParams) -> None:
        posteriors = [ChainPosterior(layer.z.shape[0], layer.z.shape[1], layer.outputs, params) for layer in layers]
        super().__init__(layers, posteriors, likelihood)
        self.params = params

    @property
    def chains(self) -> list[ChainPosterior]:
        """The posteriors, from the first layer to the last."""
        return [p for p in self.posteriors if isinstance(p, ChainPosterior)]

    def start_at(self, values: Sequence[Tensor]) -> None:
        """Set where chains start: per layer (R, 1 or C, M, d).

        Raises:
            ValueError: after the first move, or for another number of layers.
        """
        if len(values) != len(self.chains) or self.chains[0].moved:
            raise ValueError(f"start_at needs one tensor for each of {len(self.chains)} layers, before any move; got {len(values)}")
        with torch.no_grad():
            for chain, value in zip(self.chains, values, strict=True):
                chain.values.copy_(value.expand_as(chain.values))

    def log_likelihood(self, values: Sequence[Tensor], x: Tensor, y: Tensor, rows: int, streams: SeedStreams) -> Tensor:
        """N / B times the summed expected log-likelihood of a batch at states (R, C, M, d) of every layer, (R, C)."""
        samples = values[0].shape[1]
        mean, variance = self.propagate(x, [Inducing(v) for v in values], samples, streams)
        noise = streams.normal(*mean.shape[1:]) if not hasattr(self.likelihood, "noise") else mean
        expected: Tensor = self.likelihood.expected(mean, variance, y, noise)
        return rows / x.shape[1] * expected.sum(-1)

    def move(self, x: Tensor, y: Tensor, rows: int, streams: SeedStreams) -> None:
        """Move all chains once along the energy of a batch.

        Raises:
            FloatingPointError: for a gradient that is not finite, naming the layer.
        """
        with torch.enable_grad():
            values = [chain.values.detach().clone().requires_grad_() for chain in self.chains]
            energy = torch.stack([0.5 * v.square().sum() for v in values]).sum()
            energy = energy - self.log_likelihood(values, x, y, rows, streams).sum()
            gradients = torch.autograd.grad(energy, values)
        for number, (chain, gradient) in enumerate(zip(self.chains, gradients, strict=True), 1):
            if not bool(torch.isfinite(gradient).all()):
                raise FloatingPointError(f"the energy's gradient in layer {number} is not finite at move {chain.moved}; lower the rate")
            chain.move(gradient, streams.normal(*gradient.shape[1:]))

    def bound(self, x: Tensor, y: Tensor, rows: int, samples: int, streams: SeedStreams) -> Bound:
        """Move the chains, then the log joint density at one kept state of each chain, for the hyperparameters.

        Args:
            x: (R, B, D).
            y: (R, B).
            rows: N.
            samples: is not used: there are as many as chains.
            streams: of all noise.

        Raises:
            ValueError: for shapes that do not fit.
        """
        if y.shape != x.shape[:2]:
            raise ValueError(f"y must have shape {tuple(x.shape[:2])}, got {tuple(y.shape)}")
        for _ in range(self.params.moves):
            self.move(x, y, rows, streams)
        filled = self.chains[0].filled
        chosen = (streams.uniform(1)[:, 0] * filled).long().clamp_max(filled - 1)
        replicas = torch.arange(len(chosen), device=chosen.device)
        values = [chain.kept[chosen, replicas] for chain in self.chains]
        data = self.log_likelihood(values, x, y, rows, streams).mean(1)
        return Bound(data, tuple(joint_density(v) for v in values), rows)


def build_sampled(layers: Sequence[SparseLayer], likelihood: str, params: SghmcParams) -> SampledDeepGP:
    """A deep GP sampled by SGHMC, to be trained by `tasks.gaussian_process.training.train`.

    What that reports as its bound is the log joint density per row, which is none.

    >>> from tasks.gaussian_process.deep_gp import build_layers
    >>> x = torch.randn(1, 9, 2, generator=torch.Generator().manual_seed(0))
    >>> model = build_sampled(build_layers(x[:, :4], x, depth=2, outputs=1), "gaussian", SghmcParams(chains=3))
    >>> model.bound(x, x[..., 0], 9, 1, SeedStreams([0])).per_datum.shape, [c.moved for c in model.chains]
    (torch.Size([1]), [1, 1])
    """
    return SampledDeepGP(layers, make_likelihood(likelihood, layers[0].z.shape[0]), params)
