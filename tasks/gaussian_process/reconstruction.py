"""Deep Gaussian processes with latent inputs: images of which only some pixels are seen.

Every image has latent coordinates x with prior N(0, I) and a Gaussian posterior of its own (Titsias & Lawrence, 2010); a deep GP maps
them to p pixels; the likelihood counts the observed pixels only. So the bound is one on log p(observed pixels).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tasks.gaussian_process import predictive_metrics as scores
from tasks.gaussian_process.deep_gp import Bound, DeepGP, build_layers
from tasks.gaussian_process.layers import SparseLayer
from tasks.gaussian_process.likelihoods import LOG_2PI, Gaussian
from tasks.gaussian_process.masked_images import MaskedImages
from tasks.gaussian_process.problem import InducingStart, Problem, inducing_inputs
from tasks.gaussian_process.streams import SeedStreams

SPREAD = 0.3
"""Standard deviation with which latent coordinates start; their prior has 1."""


class LatentDeepGP(DeepGP):
    """A deep GP from latent coordinates to pixels.

    Args:
        layers: from latent coordinates (q) to pixels (p).
        posteriors: one per layer.
        latents: where the means of the coordinates start, (R, N, q).
        pixels: (R, N, p), standardised; hidden ones are never read by `bound`.
        observed: which pixels count, (R, N, p).
        noise_variance: where the noise of a pixel starts.

    Raises:
        ValueError: for shapes that do not fit.
    """

    pixels: Tensor
    observed: Tensor

    def __init__(
        self,
        layers: Sequence[SparseLayer],
        posteriors: Sequence[nn.Module],
        latents: Tensor,
        pixels: Tensor,
        observed: Tensor,
        noise_variance: float = 0.1,
    ) -> None:
        super().__init__(layers, posteriors, Gaussian(latents.shape[0], noise_variance))
        if pixels.shape != observed.shape or pixels.shape[:2] != latents.shape[:2] or layers[-1].outputs != pixels.shape[2]:
            raise ValueError(
                f"latents, pixels and observed must be (R, N, q), (R, N, p), (R, N, p) with p = {layers[-1].outputs}, "
                f"got {tuple(latents.shape)}, {tuple(pixels.shape)} and {tuple(observed.shape)}"
            )
        self.latents = nn.Parameter(latents.detach().clone())
        self.log_spread = nn.Parameter(torch.full_like(latents, math.log(SPREAD)))
        self.register_buffer("pixels", torch.where(observed, pixels, 0.0))
        self.register_buffer("observed", observed)

    def bound(self, x: Tensor, y: Tensor, rows: int, samples: int, streams: SeedStreams) -> Bound:
        """The bound from a batch of images.

        Args:
            x: is not used: the inputs are the model's own.
            y: numbers of the images, (R, B).
            rows: N.
            samples: S.
            streams: of all noise.
        """
        at = torch.arange(y.shape[0], device=y.device)[:, None], y
        center, log_spread, target, seen = self.latents[at], self.log_spread[at], self.pixels[at], self.observed[at]
        layers = self.draw(samples, streams)
        latents = center + log_spread.exp() * streams.normal(*center.shape[1:])  # one draw for all S
        mean, variance = self.propagate(latents, layers, samples, streams)
        noise = self.likelihood.noise()[:, None, None, None]
        squared = (target[:, None] - mean).square() + variance
        expected = (-0.5 * (LOG_2PI + noise.log() + squared / noise) * seen[:, None]).sum((2, 3)).mean(1)
        divergence = 0.5 * (center.square() + (2 * log_spread).exp() - 2 * log_spread - 1).sum((1, 2))
        return Bound(rows / y.shape[1] * (expected - divergence), layers, rows)

    @torch.no_grad()
    def reconstruct(self, draws: int, streams: SeedStreams) -> tuple[Tensor, Tensor]:
        """Means (R, S, N, p) and variances (R, S, N, p), noise included, of all pixels, each with latent coordinates of its own draw."""
        parts = []
        for _ in range(draws):
            latents = self.latents + self.log_spread.exp() * streams.normal(*self.latents.shape[1:])
            mean, variance = self.propagate(latents, self.draw(1, streams), 1, streams)
            parts.append((mean, (variance + self.likelihood.noise()[:, None, None, None]).expand_as(mean)))
        return torch.cat([m for m, _ in parts], 1), torch.cat([v for _, v in parts], 1)


def image_numbers(images: Sequence[MaskedImages], device: str = "cpu") -> Problem:
    """What `tasks.gaussian_process.training.train` takes rows from: the images' numbers; there are no test rows.

    Raises:
        ValueError: for no images, or seeds with different numbers of images.
    """
    sizes = {m.images.shape for m in images}
    if len(sizes) != 1:
        raise ValueError(f"masked images must agree in shape over seeds and be at least one set, got {sorted(sizes)}")
    replicas, n = len(images), images[0].images.shape[0]
    numbers = torch.arange(n, device=device).expand(replicas, n)
    nothing = torch.zeros(replicas, n, 0, device=device)
    return Problem(nothing, numbers, nothing[:, :0], numbers[:, :0], np.array([m.sd for m in images]), 0)


def build_latent(
    images: Sequence[MaskedImages],
    inducing: int,
    depth: int,
    seeds: Sequence[int],
    posterior: Callable[[int, int, int], nn.Module],
    start: InducingStart = "kmeans",
    jitter: float = 1e-4,
    device: str = "cpu",
) -> LatentDeepGP:
    """An untrained model of R sets of masked images.

    Args:
        images: one set per seed.
        inducing: M.
        depth: L; hidden layers are as wide as the latent space.
        seeds: one per set.
        posterior: (M, features, outputs) -> posterior of a layer.
        start: of the inducing inputs, in latent space.
        jitter: relative jitter of Gram matrices.
        device: of the model.

    Raises:
        ValueError: see `image_numbers`, `inducing_inputs` and `build_layers`.
    """
    image_numbers(images)

    def stacked(name: str) -> Tensor:
        return torch.as_tensor(np.stack([getattr(m, name) for m in images]))

    latents = stacked("latents").float()
    z = inducing_inputs(latents, inducing, seeds, start)
    layers = build_layers(z, latents, depth, images[0].images.shape[1], jitter=jitter)
    posteriors = [posterior(inducing, layer.z.shape[2], layer.outputs) for layer in layers]
    return LatentDeepGP(layers, posteriors, latents, stacked("images").float(), stacked("observed")).to(device)


def judge_hidden(model: LatentDeepGP, images: Sequence[MaskedImages], draws: int, streams: SeedStreams) -> dict[str, np.ndarray]:
    """Scores on the hidden pixels, each (R,): `rmse` in grey values, `nll` in nats per standardised pixel, `coverage` of central 95 %."""
    mean, variance = (part.cpu().double().numpy() for part in model.reconstruct(draws, streams))
    found: dict[str, list[float]] = {"rmse": [], "nll": [], "coverage": []}
    for m, v, image in zip(mean, variance, images, strict=True):
        hidden = ~image.observed
        target, m, v = image.images[hidden], m[:, hidden], v[:, hidden]  # (hidden,), (S, hidden)
        found["rmse"].append(float(scores.rmse(scores.mixture_mean(m), target, image.sd)))
        found["nll"].append(float(scores.mixture_nll(m, v, target)))
        found["coverage"].append(float(scores.mixture_coverage(m, v, target)))
    return {name: np.array(values) for name, values in found.items()}


def judge_mean_image(image: MaskedImages) -> dict[str, float]:
    """Scores of the reference that knows no image: each pixel's mean over the images that show it, and one variance for all pixels.

    Raises:
        ValueError: if a pixel is shown by no image.

    >>> from tasks.gaussian_process.masked_images import mask_images
    >>> rng = np.random.default_rng(0)
    >>> judge_mean_image(mask_images(rng.normal(5.0, 2.0, (400, 8)), 0.5, 2, rng))["rmse"].__round__(1)
    2.0
    """
    shown = image.observed.sum(0)
    if shown.min() < 1:
        raise ValueError(f"every pixel must be shown by at least one image, {int((shown < 1).sum())} are not")
    mean = np.broadcast_to(np.where(image.observed, image.images, 0.0).sum(0) / shown, image.images.shape)
    variance = float(((image.images - mean) ** 2)[image.observed].mean())
    target, m = image.images[~image.observed], mean[~image.observed][None]
    v = np.full_like(m, variance)
    return {
        "rmse": float(scores.rmse(m[0], target, image.sd)),
        "nll": float(scores.mixture_nll(m, v, target)),
        "coverage": float(scores.mixture_coverage(m, v, target)),
    }
