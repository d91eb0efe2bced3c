"""DSVI by GPyTorch's `DeepGP`: an implementation by others of the method that `tasks.gaussian_process.gaussian` implements.

`ReferenceDeepGP` copies one replica of ours into a GPyTorch model with the same kernels, inducing inputs, mean functions, noise and
Gaussian posteriors, so that bounds can be compared number by number. Hidden layers are sampled here rather than by GPyTorch, which
draws from torch's global generator. Two traps of the library (1.15) are avoided: at its first call a variational strategy overwrites
the mean that it was given unless it is told that it has one, and jitter is absolute.
"""

from __future__ import annotations

from typing import Any

import gpytorch
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.models.deep_gps import DeepGP as GPyTorchDeepGP
from gpytorch.models.deep_gps import DeepGPLayer
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from torch import Tensor

from tasks.gaussian_process.deep_gp import DeepGP
from tasks.gaussian_process.gaussian import GaussianPosterior
from tasks.gaussian_process.layers import SparseLayer


class LinearMean(gpytorch.means.Mean):  # type: ignore[misc]
    """Fixed linear mean functions x W, one column of W (D, d) per output; None for zero means."""

    weights: Tensor | None

    def __init__(self, weights: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("weights", None if weights is None else weights.T[:, :, None].clone())  # (d, D, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Means (..., d, B) at x (..., d, B, D), which GPyTorch repeats for every output."""
        return x.new_zeros(x.shape[:-1]) if self.weights is None else (x @ self.weights)[..., 0]


class ReferenceLayer(DeepGPLayer):  # type: ignore[misc]
    """A layer with the parameters of replica r of one of ours.

    Args:
        layer: ours.
        posterior: its Gaussian posterior.
        replica: r.
        last: squeeze the only output.
    """

    def __init__(self, layer: SparseLayer, posterior: GaussianPosterior, replica: int, last: bool) -> None:
        z = layer.z[replica].detach().clone()
        batch = torch.Size([] if last else [layer.outputs])
        variance = layer.kernel.diagonal()[replica].item()
        distribution = CholeskyVariationalDistribution(z.shape[0], batch_shape=batch)
        strategy = VariationalStrategy(self, z, distribution, jitter_val=layer.jitter * variance)
        super().__init__(strategy, z.shape[1], None if last else layer.outputs)
        self.mean_module = LinearMean(None if layer.mean is None else layer.mean[replica])
        self.covar_module = ScaleKernel(RBFKernel(ard_num_dims=z.shape[1]))
        self.to(z.dtype)
        self.covar_module.outputscale = variance
        self.covar_module.base_kernel.lengthscale = layer.kernel.lengthscale()[replica].detach()
        distribution.variational_mean.data.copy_(posterior.mean[replica].detach().T.reshape(*batch, -1))
        distribution.chol_variational_covar.data.copy_(posterior.root[replica].detach().tril().reshape(*batch, *[z.shape[0]] * 2))
        strategy.variational_params_initialized.fill_(1)
        self.outputs = layer.outputs

    def forward(self, x: Tensor) -> Any:
        """Prior at x, as GPyTorch's strategies ask for it."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class ReferenceDeepGP(GPyTorchDeepGP):  # type: ignore[misc]
    """GPyTorch's deep GP for regression, with its likelihood.

    Args:
        model: ours, with Gaussian posteriors and likelihood.
        replica: which of its problems is copied.

    Raises:
        ValueError: for another posterior, likelihood, or number of outputs, or a replica that there is not.

    >>> from tasks.gaussian_process.deep_gp import build_deep_gp, build_layers
    >>> from tasks.gaussian_process.streams import SeedStreams
    >>> x = torch.randn(1, 9, 2, generator=torch.Generator().manual_seed(0))
    >>> layers = build_layers(x[:, :4], x, depth=1, outputs=1)
    >>> ours = build_deep_gp(layers, [GaussianPosterior(1, 4, 1)])
    >>> theirs = ReferenceDeepGP(ours, replica=0).bound(x[0], x[0, :, 0], 9, [])
    >>> bool(torch.isclose(theirs, ours.bound(x, x[..., 0], 9, 1, SeedStreams([0])).per_datum[0], atol=1e-3))
    True
    """

    def __init__(self, model: DeepGP, replica: int) -> None:
        replicas = model.layers[0].z.shape[0]
        if not 0 <= replica < replicas:
            raise ValueError(f"replica must lie in 0..{replicas - 1}, got {replica}")
        if not all(isinstance(p, GaussianPosterior) for p in model.posteriors):
            raise ValueError(f"posteriors must be Gaussian, got {sorted({type(p).__name__ for p in model.posteriors})}")
        if not hasattr(model.likelihood, "noise") or model.layers[-1].outputs != 1:
            raise ValueError("the reference is for regressions: it needs a Gaussian likelihood and one output")
        super().__init__()
        pairs = list(zip(model.layers, model.posteriors, strict=True))
        self.stack = torch.nn.ModuleList(
            ReferenceLayer(layer, posterior, replica, last=number == len(pairs)) for number, (layer, posterior) in enumerate(pairs, 1)
        )
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood().to(model.layers[0].z.dtype)
        self.likelihood.noise = model.likelihood.noise()[replica].detach()

    def forward(self, x: Tensor, noise: list[Tensor]) -> Any:
        """Distribution of the last layer's f, S samples of the hidden layers deep.

        Args:
            x: (B, D).
            noise: standard normal numbers for each hidden layer, (S, B, d).

        Returns:
            GPyTorch's normal distribution with mean and variance (S, B); S = 1 without hidden layers.
        """
        h = x[None]
        for layer, draws in zip(list(self.stack)[:-1], noise, strict=True):
            f = layer(h, are_samples=True)
            h = f.mean + f.variance.sqrt() * draws
        return self.stack[-1](h, are_samples=True)

    def bound(self, x: Tensor, y: Tensor, rows: int, noise: list[Tensor]) -> Tensor:
        """GPyTorch's evidence lower bound per datum, from a batch x (B, D), y (B,) of `rows` rows; differentiable."""
        objective = gpytorch.mlls.DeepApproximateMLL(gpytorch.mlls.VariationalELBO(self.likelihood, self, num_data=rows))
        bound: Tensor = objective(self(x, noise), y)
        return bound

    def divergence(self) -> float:
        """KL divergence of all layers' posteriors from their priors, in nats."""
        return float(self.variational_strategy.kl_divergence().item())

    @property
    def widths(self) -> list[int]:
        """Outputs of the hidden layers, for the noise."""
        return [layer.outputs for layer in list(self.stack)[:-1]]  # type: ignore[misc]


@torch.no_grad()
def predict(model: ReferenceDeepGP, x: Tensor, noise: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Means and variances of the predictive mixture for y, noise included, (S, T)."""
    model.eval()
    try:
        f = model(x, noise)
        return f.mean, f.variance + model.likelihood.noise
    finally:
        model.train()
