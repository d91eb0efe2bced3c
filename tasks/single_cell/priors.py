"""Priors of latents behind one interface: draw u from p(u) N(z; u, rho^2 I), which is the prior half of a split Gibbs sampler.

Gaussians and mixtures answer in closed form, for sampling and for the posterior mean under any Gaussian noise; the diffusion prior
runs a reverse chain. All speak data units; the diffusion prior divides by its one scale inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError

from tasks.common.formats import read_json, write_atomically, write_json
from tasks.diffusion.ancestral import GammaTable, ReverseChain, Variance, tabulate_gamma
from tasks.diffusion.noise_training import DenoiserParams, train_denoiser
from tasks.diffusion.schedules import noise_to_signal, signal_levels

if TYPE_CHECKING:
    import torch

    from tasks.diffusion.denoiser import TabularDenoiser

Floats = NDArray[np.float64]


class Prior(Protocol):
    """What the split Gibbs sampler asks of a prior."""

    def sample(self, z: torch.Tensor, rho: float, generator: torch.Generator) -> torch.Tensor:
        """One draw from p(u) N(z; u, rho^2 I) for each row of z (n, k), in z's type."""
        ...


@dataclass(frozen=True)
class FlatPrior:
    """No prior at all: u = z + rho xi. What a chain does with it comes from the data alone."""

    def sample(self, z: torch.Tensor, rho: float, generator: torch.Generator) -> torch.Tensor:
        """One draw for each row of z (n, k)."""
        return z + rho * _noise(z, generator)


@dataclass(frozen=True)
class MixturePrior:
    """A Gaussian mixture with C components in k dimensions; one component is the Gaussian prior.

    Attributes:
        weights: (C,), positive, sum 1.
        means: (C, k).
        covariances: (C, k, k), symmetric positive semi-definite.

    Raises:
        ValueError: for shapes that do not fit, or weights that are no probabilities.

    >>> prior = MixturePrior(np.ones(1), np.zeros((1, 2)), np.eye(2)[None])
    >>> prior.posterior_mean([[2.0, 0.0]], 1.0).tolist()
    [[1.0, 0.0]]
    """

    weights: Floats
    means: Floats
    covariances: Floats
    _tables: dict[float, tuple[torch.Tensor, ...]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        count, k = self.means.shape
        if self.weights.shape != (count,) or self.covariances.shape != (count, k, k):
            raise ValueError(
                f"shapes do not fit: weights {self.weights.shape}, means {self.means.shape}, covariances {self.covariances.shape}"
            )
        if (self.weights <= 0).any() or not np.isclose(self.weights.sum(), 1.0):
            raise ValueError(f"weights must be positive and sum to 1, got {self.weights.tolist()}")

    def responsibilities(self, y: ArrayLike, noise: ArrayLike) -> Floats:
        """Probability (n, C) of each component given y = u + N(0, noise); `noise` is a variance or a covariance (k, k)."""
        from scipy.special import softmax

        gaps = np.asarray(y, dtype=float)[:, None] - self.means  # (n, C, k)
        total = self.covariances + _covariance(noise, self.means.shape[1])
        _, logdet = np.linalg.slogdet(total)
        squares = np.einsum("nck,ckl,ncl->nc", gaps, np.linalg.inv(total), gaps)
        return np.asarray(softmax(np.log(self.weights) - 0.5 * (logdet + squares), axis=1))

    def posterior_mean(self, y: ArrayLike, noise: ArrayLike) -> Floats:
        """E[u | y] (n, k) for y = u + N(0, noise): shrinkage to each component, weighed by its responsibility."""
        y = np.asarray(y, dtype=float)
        gain = self.covariances @ np.linalg.inv(self.covariances + _covariance(noise, self.means.shape[1]))  # (C, k, k)
        each = self.means + np.einsum("ckl,ncl->nck", gain, y[:, None] - self.means)
        return np.asarray(np.einsum("nc,nck->nk", self.responsibilities(y, noise), each))

    def sample(self, z: torch.Tensor, rho: float, generator: torch.Generator) -> torch.Tensor:
        """One draw for each row of z (n, k): a component by its responsibility, then its conditional Gaussian."""
        import torch

        dtype, y = z.dtype, z.double().cpu()
        gain, root, precision, logs, means = self._table(rho)
        gaps = y[:, None] - means  # (n, C, k)
        whitened = torch.einsum("nck,ckl->ncl", gaps, precision)
        log_odds = logs - 0.5 * whitened.square().sum(-1)
        chosen = torch.multinomial(torch.softmax(log_odds, 1), 1, generator=generator).squeeze(1) if len(means) > 1 else None
        noise = torch.randn(y.shape, generator=generator, dtype=torch.float64)
        if chosen is None:
            out = means[0] + gaps[:, 0] @ gain[0].T + noise @ root[0].T
        else:
            rows = torch.arange(len(y))
            moved = torch.einsum("nk,nlk->nl", gaps[rows, chosen], gain[chosen]) + torch.einsum("nk,nlk->nl", noise, root[chosen])
            out = means[chosen] + moved
        return out.to(dtype).to(z.device)

    def _table(self, rho: float) -> tuple[torch.Tensor, ...]:
        import torch

        if rho not in self._tables:
            k = self.means.shape[1]
            total = self.covariances + rho**2 * np.eye(k)
            gain = self.covariances @ np.linalg.inv(total)
            values, vectors = np.linalg.eigh(self.covariances - gain @ self.covariances)
            root = vectors * np.sqrt(np.maximum(values, 0))[:, None, :]
            precision = np.linalg.cholesky(np.linalg.inv(total))
            _, logdet = np.linalg.slogdet(total)
            arrays = (gain, root, precision, np.log(self.weights) - 0.5 * logdet, self.means)
            self._tables[rho] = tuple(torch.as_tensor(a, dtype=torch.float64) for a in arrays)
        return self._tables[rho]


def gaussian_prior(latents: ArrayLike) -> MixturePrior:
    """The Gaussian with the mean and covariance of latents (n, k). Its posterior mean is Wiener shrinkage."""
    u = np.asarray(latents, dtype=float)
    return MixturePrior(np.ones(1), u.mean(axis=0)[None], np.atleast_2d(np.cov(u, rowvar=False))[None])


def isotropic_prior(latents: ArrayLike) -> MixturePrior:
    """N(0, s^2 I) with the latents' (n, k) mean square s^2: their scale and nothing of their structure."""
    u = np.asarray(latents, dtype=float)
    return MixturePrior(np.ones(1), np.zeros((1, u.shape[1])), np.square(u).mean() * np.eye(u.shape[1])[None])


def mixture_prior(latents: ArrayLike, components: int, seed: int) -> MixturePrior:
    """A mixture fitted to latents (n, k) by EM, full covariances with a small ridge.

    Raises:
        ValueError: unless 1 <= components <= n.
    """
    from sklearn.mixture import GaussianMixture

    u = np.asarray(latents, dtype=float)
    if not 1 <= components <= len(u):
        raise ValueError(f"components must lie in 1..{len(u)}, the number of cells, got {components}")
    ridge = 1e-2 * float(u.var(axis=0).mean())
    model = GaussianMixture(components, reg_covar=ridge, n_init=3, random_state=seed).fit(u)
    return MixturePrior(model.weights_, model.means_, model.covariances_)


@dataclass(frozen=True)
class DiffusionPrior:
    """A denoiser of latents as a prior.

    Attributes:
        model: noise predictor for latents divided by `scale`.
        scale: s.
        gamma: mean squared prediction per column and level.
        params: how it was trained; tells the trained levels.
    """

    model: TabularDenoiser
    scale: float
    gamma: GammaTable
    params: DenoiserParams
    _chains: dict[tuple[int, str], ReverseChain] = field(default_factory=dict, repr=False, compare=False)
    n_sub: int = 16
    variance: Variance = "diagonal"

    def sample(self, z: torch.Tensor, rho: float, generator: torch.Generator) -> torch.Tensor:
        """One draw for each row of z (n, k), data units.

        Raises:
            ValueError: if rho / scale lies outside of the trained levels.
        """
        chain = self.chain()
        least, largest = chain.least * self.scale, chain.largest * self.scale
        if not least < rho <= largest:
            raise ValueError(
                f"rho must lie above {least:.4g} and be at most {largest:.4g}, the noise that the prior was trained on, got {rho:.4g}"
            )
        u = chain.sample((z / self.scale).float(), rho / self.scale, generator)
        return u.to(z.dtype) * self.scale

    def chain(self) -> ReverseChain:
        """The reverse chain in units of `scale`."""
        key = (self.n_sub, self.variance)
        if key not in self._chains:
            ratios = noise_to_signal(signal_levels(self.params.schedule, self.params.levels)[[0, -1]])
            gamma = self.gamma if self.variance == "diagonal" else self.gamma.scalar()
            self._chains[key] = ReverseChain(self.model, gamma, self.n_sub, self.variance, *(float(r) for r in ratios))
        return self._chains[key]

    def to(self, device: str) -> DiffusionPrior:
        """The same prior on another device."""
        return DiffusionPrior(self.model.to(device), self.scale, self.gamma, self.params, n_sub=self.n_sub, variance=self.variance)

    def with_steps(self, n_sub: int, variance: Variance = "diagonal") -> DiffusionPrior:
        """The same prior with another reverse chain."""
        return DiffusionPrior(self.model, self.scale, self.gamma, self.params, n_sub=n_sub, variance=variance)

    def save(self, folder: Path) -> None:
        """Write `prior.safetensors` (weights, table of gamma) and `config.json`."""
        import torch
        from safetensors.torch import save_file

        weights = {name: value.detach().cpu().contiguous() for name, value in self.model.state_dict().items()}
        table = {"gamma.log_noise": torch.as_tensor(self.gamma.log_noise), "gamma.values": torch.as_tensor(self.gamma.values)}
        write_atomically(folder / "prior.safetensors", lambda path: save_file(weights | table, path))
        width = int(self.model.enter.in_features)
        write_json(folder / "config.json", {"width": width, "scale": self.scale, "denoiser": self.params.model_dump(), "kind": "diffusion"})

    @classmethod
    def load(cls, folder: Path, n_sub: int = 16, variance: Variance = "diagonal") -> DiffusionPrior:
        """What `save` wrote.

        Raises:
            ValueError: if the files are not a diffusion prior's.
        """
        import torch
        from safetensors.torch import load_file

        from tasks.diffusion.denoiser import TabularDenoiser

        about = read_json(folder / "config.json")
        try:
            params, width, scale = DenoiserParams(**about["denoiser"]), int(about["width"]), float(about["scale"])
        except (KeyError, TypeError, ValidationError) as error:
            raise ValueError(f"{folder / 'config.json'} does not describe a diffusion prior ({error}); fit it again") from None
        weights = load_file(folder / "prior.safetensors")
        gamma = GammaTable(weights.pop("gamma.log_noise").numpy(), weights.pop("gamma.values").numpy())
        model = TabularDenoiser(width, params.hidden, params.blocks, generator=torch.Generator())
        model.load_state_dict(weights)
        return cls(model.eval(), scale, gamma, params, n_sub=n_sub, variance=variance)


def fit_diffusion_prior(
    latents: ArrayLike,
    params: DenoiserParams,
    seed: int,
    *,
    device: str = "cpu",
    after: Callable[[int, float], None] | None = None,
) -> tuple[DiffusionPrior, np.ndarray]:
    """Train a denoiser on latents (n, k) divided by their root mean square, and tabulate what its reverse variance needs.

    Returns:
        The prior and the training losses (steps,).

    >>> latents = np.random.default_rng(0).standard_normal((64, 2)) * 3
    >>> prior, losses = fit_diffusion_prior(latents, DenoiserParams(hidden=8, steps=5), seed=0)
    >>> round(prior.scale), losses.size
    (3, 5)
    """
    import torch

    u = np.asarray(latents, dtype=float)
    scale = float(np.sqrt(np.square(u).mean()))
    if not scale > 0 or not np.isfinite(scale):
        raise ValueError(f"latents must be finite and not all zero, got a root mean square of {scale}")
    model, losses = train_denoiser(u / scale, params, seed, device=device, after=after)
    least, largest = noise_to_signal(signal_levels(params.schedule, params.levels)[[0, -1]])
    rows = torch.as_tensor(u / scale, dtype=torch.float32, device=device)
    gamma = tabulate_gamma(model, rows, float(least), float(largest), torch.Generator().manual_seed(seed))
    return DiffusionPrior(model, scale, gamma, params), losses


def _covariance(noise: ArrayLike, k: int) -> Floats:
    value = np.asarray(noise, dtype=float)
    return value if value.ndim == 2 else value * np.eye(k)


def _noise(z: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    import torch

    return torch.randn(z.shape, generator=generator, dtype=z.dtype, device=generator.device).to(z.device)
