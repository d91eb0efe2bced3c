"""Posterior over whitened inducing variables as the end of a reverse diffusion: DBVI, and DDVI where its start is fixed.

The reference chain P of `tasks.diffusion.linear_gaussian` runs from N(m_1, kappa_1 I) to N(mu, sigma^2 I), m_t = exp(-lam t) mu. The
posterior Q adds a learned correction r(U, t, mu) to every step, which costs the path term of the bound; the end term weighs P's
end against the prior (Xu et al., 2026, Prop. 3, for the discrete chain itself, so that it is a bound for every K).
mu is an amortising network of the inducing inputs (DBVI), zero (DDVI; Xu et al., 2024), or a free parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from tasks.common.node import Params
from tasks.diffusion.linear_gaussian import OrnsteinUhlenbeck, reverse_chain, sampler_marginals
from tasks.gaussian_process.batched_networks import ReplicatedNetwork
from tasks.gaussian_process.layers import Inducing
from tasks.gaussian_process.likelihoods import LOG_2PI
from tasks.gaussian_process.streams import SeedStreams

SIGMA_GRID = (0.02, 3.0, 65)
"""Smallest and largest learnable sigma, and how many values the table of its marginals has."""


class BridgeParams(Params):
    """The diffusion and its networks.

    Attributes:
        center: where the reverse process starts: `amortised` (DBVI), `zero` (DDVI), or `vector`, a free mean.
        sigma: standard deviation of the reference's end, in whitened coordinates (the prior has 1).
        learn_sigma: makes log sigma a parameter of each layer (exact integrator only).
        steps: K.
        doob: bridge marginals; False for the plain Ornstein-Uhlenbeck ones of DDVI's paper.
        start: `bridge`, N(m_1, kappa_1 I), which costs nothing; `paper`, N(mu, sigma^2 I), which costs its divergence from that.
        integrator: `exact` transitions, or `euler` (Euler-Maruyama).
        lam: rate of the reference process.
        g: its noise scale.
        hidden: width of the two hidden layers of the correction.
        amortiser: width of the hidden layer of mu's network.
        bound: largest absolute value of a correction, else the chain is an unbounded feedback loop.
        own_start: Doob's h of the path's own start: `absorbed` in the correction, or added to it (`explicit`, or `detached`, without
            a gradient through the start); it is not bounded, and Q then differs from P before training.
        whiten: diffuse V with prior N(0, I); False diffuses U with prior N(0, K_ZZ), as the paper writes.
    """

    center: Literal["amortised", "zero", "vector"] = "amortised"
    sigma: float = Field(0.3, gt=0.0)
    learn_sigma: bool = False
    steps: int = Field(10, ge=1)
    doob: bool = True
    start: Literal["bridge", "paper"] = "bridge"
    integrator: Literal["exact", "euler"] = "exact"
    lam: float = Field(1.0, gt=0.0)
    g: float = Field(1.0, gt=0.0)
    hidden: int = Field(64, ge=1)
    amortiser: int = Field(64, ge=1)
    bound: float = Field(30.0, gt=0.0)
    own_start: Literal["absorbed", "explicit", "detached"] = "absorbed"
    whiten: bool = True

    def model_post_init(self, context: Any, /) -> None:
        """Refuse a combination that has no meaning."""
        if self.learn_sigma and self.integrator != "exact":
            raise ValueError("learn_sigma needs integrator 'exact', got 'euler'")
        if self.own_start != "absorbed" and (self.learn_sigma or not self.doob):
            raise ValueError(f"own_start {self.own_start!r} needs doob and a fixed sigma")
        lo, hi, _ = SIGMA_GRID
        if self.learn_sigma and not lo < self.sigma < hi:
            raise ValueError(f"a learnable sigma must start in ({lo}, {hi}), got {self.sigma}")


class BridgePosterior(nn.Module):
    """Q(V) of one layer, V (M, d), as the end of K corrected reverse steps.

    Args:
        inducing: M.
        features: D, width of an inducing input.
        outputs: d.
        params: the diffusion.
        streams: of the initial weights; one seed per replica.
        prior_factor: gives L (R, M, M) with L L^T = K_ZZ; needed when `params.whiten` is False.

    Raises:
        ValueError: for sizes below 1, or without `prior_factor` where it is needed.

    >>> posterior = BridgePosterior(5, 3, 2, BridgeParams(sigma=1.0), SeedStreams([0]))
    >>> drawn = posterior.draw(torch.zeros(1, 5, 3), 4, SeedStreams([7]))
    >>> drawn.values.shape, sorted(drawn.terms), drawn.kl.item()  # before training, sigma = 1: the prior itself
    (torch.Size([1, 4, 5, 2]), ['end', 'path', 'start'], 0.0)
    """

    decay: Tensor
    times: Tensor
    kappa: Tensor
    toward: Tensor
    forget: Tensor
    end: Tensor
    log_kappa: Tensor
    log_information: Tensor
    log_sigma: Tensor

    def __init__(
        self,
        inducing: int,
        features: int,
        outputs: int,
        params: BridgeParams,
        streams: SeedStreams,
        prior_factor: Callable[[], Tensor] | None = None,
    ) -> None:
        super().__init__()
        if min(inducing, features, outputs) < 1:
            raise ValueError(f"inducing, features and outputs must be at least 1, got {inducing}, {features} and {outputs}")
        if not params.whiten and prior_factor is None:
            raise ValueError("prior_factor is None, but whiten=False needs the factor of K_ZZ; pass layer.factor")
        self.params, self.shape, self.prior_factor = params, (inducing, outputs), prior_factor
        size, width = inducing * outputs, params.hidden
        # First layer of the correction by parts, so that the context and the times cost one product per draw, not per step.
        self.correction = ReplicatedNetwork((size, width, width, size), streams)
        spread = (2 * size + 1) ** -0.5
        self.from_context = nn.Parameter((2 * streams.uniform(size, width) - 1) * spread)
        self.from_time = nn.Parameter((2 * streams.uniform(1, width) - 1) * spread)
        replicas = len(streams)
        if params.center == "amortised":
            self.amortiser = ReplicatedNetwork((features, params.amortiser, outputs), streams)
        elif params.center == "vector":
            self.vector = nn.Parameter(torch.zeros(replicas, inducing, outputs))
        process = OrnsteinUhlenbeck(params.lam, params.g)
        if params.learn_sigma:
            lo, hi, count = SIGMA_GRID
            grid = np.geomspace(lo, hi, count)
            table = sampler_marginals(process, grid, params.steps, params.doob)
            self._keep("log_kappa", np.log(table.kappa))
            self._keep("log_information", np.log(table.information))
            self.log_sigma = nn.Parameter(torch.full((replicas,), math.log(params.sigma)))
        chain = reverse_chain(process, params.sigma, params.steps, params.doob, params.integrator)
        at = sampler_marginals(process, params.sigma, params.steps, params.doob)
        self._keep("times", at.times)
        self._keep("decay", at.decay)
        for name in ("gain", "pull", "shift", "spread", "weight"):
            self._keep(name, np.broadcast_to(getattr(chain, name), (params.steps,)))
        self._keep("kappa", at.kappa)
        a, q = at.decay[:-1], process.noise_variance(at.times[:-1])
        self._keep("toward", a / q)  # these two make `doob_drift`
        self._keep("forget", a * params.sigma**2 / (a**2 * params.sigma**2 + q))
        self._keep("end", np.array([chain.end_mean, chain.end_variance], dtype=float))

    def center(self, z: Tensor) -> Tensor:
        """The mean mu (R, M, d), where the reference process ends."""
        if self.params.center == "amortised":
            mu: Tensor = self.amortiser(z)
            return mu
        if self.params.center == "vector":
            return self.vector
        return z.new_zeros(z.shape[0], *self.shape)

    def sigma(self) -> Tensor:
        """Standard deviation of the reference's end, per replica or one for all."""
        if not self.params.learn_sigma:
            return self.decay.new_tensor([self.params.sigma])
        lo, hi, _ = SIGMA_GRID
        return self.log_sigma.clamp(math.log(lo), math.log(hi)).exp()

    def draw(self, z: Tensor, samples: int, streams: SeedStreams) -> Inducing:
        """Samples of V (R, S, M, d), with the start, path and end terms of the divergence."""
        mu = self.center(z).flatten(1)[:, None]  # (R, 1, P), P = M d
        replicas, _, size = mu.shape
        coefficients = self._coefficients()
        noise = streams.normal(self.params.steps + 1, samples, size)  # (R, K + 1, S, P)
        v, start = self._start(mu, coefficients, noise[:, 0])
        drive = coefficients["spread"] * noise[:, 1:].transpose(0, 1) + coefficients["pull"] * mu  # (K, R, S, P)
        bias = self.correction.biases[0] + mu @ self.from_context  # (R, 1, H)
        biases = bias + self.times[:-1, None, None, None] * self.from_time[None]  # (K, R, 1, H)
        gain, shift = coefficients["gain"], coefficients["shift"]
        largest, corrections, states = self.params.bound, [], [v]
        for k in range(self.params.steps):
            first = torch.baddbmm(biases[k], v, self.correction.weights[0])
            r = largest * torch.tanh(self.correction.tail(first) / largest)
            if self.params.own_start != "absorbed":
                own = states[0].detach() if self.params.own_start == "detached" else states[0]
                r = r + self.toward[k] * (own - mu - self.forget[k] * (v - self.decay[k] * mu))
            v = gain[k] * v + shift[k] * r + drive[k]
            corrections.append(r)
            states.append(v)
        squared = torch.stack(corrections).square().sum(-1)  # (K, R, S)
        path = 0.5 * (coefficients["weight"][..., 0] * squared).sum(0).mean(1)
        values = v.reshape(replicas, samples, *self.shape)
        values, end = self._end(values, mu, coefficients)
        terms = {"start": start.expand(replicas), "path": path, "end": end}
        with torch.no_grad():
            route = torch.stack(states).diff(dim=0).norm(dim=-1).sum(0).mean(1)
            diagnostics = {"route": route, "center_norm": mu.norm(dim=-1)[:, 0], "sigma": self.sigma().expand(replicas)}
        matching = (coefficients["kappa"][:-1, ..., 0] * squared).mean(0).mean(1) / size
        return Inducing(values, None, terms, diagnostics, matching)

    def _start(self, mu: Tensor, c: dict[str, Tensor], noise: Tensor) -> tuple[Tensor, Tensor]:
        if self.params.start == "bridge":
            return self.decay[0] * mu + c["kappa"][0].sqrt() * noise, mu.new_zeros(mu.shape[0])
        ratio = c["sigma2"] / c["kappa"][0]
        distance = (1 - self.decay[0]) ** 2 * mu.square().sum(-1)[:, 0]
        kl = 0.5 * (mu.shape[-1] * (ratio - 1 - ratio.log()).flatten() + distance / c["kappa"][0].flatten())
        return mu + c["sigma2"].sqrt() * noise, kl

    def _end(self, values: Tensor, mu: Tensor, c: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """E log of the reference's end density over the prior's, and V, which differs from U without whitening."""
        deviation = (values.flatten(2) - c["end_mean"] * mu).square() / c["end_variance"]
        reference = -0.5 * (deviation + c["end_variance"].log() + LOG_2PI).sum(-1)
        log_determinant = values.new_zeros(())
        if not self.params.whiten and self.prior_factor is not None:
            lower = self.prior_factor()
            values = torch.linalg.solve_triangular(lower[:, None], values, upper=False)
            log_determinant = values.shape[-1] * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)[:, None]
        prior = -0.5 * (values.flatten(2).square() + LOG_2PI).sum(-1) - log_determinant
        return values, (reference - prior).mean(1)

    def _coefficients(self) -> dict[str, Tensor]:
        """Per step (K, 1 or R, 1, 1), end moments and sigma^2 (1 or R, 1, 1), kappa (K + 1, 1 or R, 1, 1)."""
        if not self.params.learn_sigma:
            c = {name: getattr(self, name)[:, None, None, None] for name in ("gain", "pull", "shift", "spread", "weight", "kappa")}
            sigma2 = self.decay.new_full((1, 1, 1), self.params.sigma**2)
            return c | {"end_mean": self.end[0], "end_variance": self.end[1].reshape(1, 1, 1), "sigma2": sigma2}
        sigma = self.sigma()
        kappa, information = self._interpolated(sigma)  # (R, K + 1), (R, K)
        before, after = kappa[:, :-1], kappa[:, 1:]
        gain, nu = (after / before).sqrt() * torch.exp(-information / 2), -after * torch.expm1(-information)
        pull = self.decay[1:] - gain * self.decay[:-1]
        named = {"gain": gain, "pull": pull, "shift": nu, "spread": nu.sqrt(), "weight": nu, "kappa": kappa}
        c = {name: value.T[:, :, None, None] for name, value in named.items()}
        end = kappa[:, -1, None, None]
        return c | {"end_mean": self.decay[-1], "end_variance": end, "sigma2": sigma.square()[:, None, None]}

    def _interpolated(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """Variances and integrals I_k between the table's sigmas; any positive values make a chain with exact marginals."""
        lo, hi, count = SIGMA_GRID
        position = (sigma.log() - math.log(lo)) / math.log(hi / lo) * (count - 1)
        below = position.detach().floor().long().clamp(0, count - 2)
        share = (position - below)[:, None]
        kappa, information = (
            ((1 - share) * table[below] + share * table[below + 1]).exp() for table in (self.log_kappa, self.log_information)
        )
        return torch.cat([kappa[:, :-1], sigma.square()[:, None]], 1), information

    def _keep(self, name: str, values: Any) -> None:
        self.register_buffer(name, torch.tensor(np.ascontiguousarray(values), dtype=torch.get_default_dtype()))
