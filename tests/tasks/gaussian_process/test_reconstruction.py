from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from tasks.gaussian_process.gaussian import GaussianPosterior
from tasks.gaussian_process.layers import Inducing
from tasks.gaussian_process.masked_images import MaskedImages, mask_images
from tasks.gaussian_process.reconstruction import LatentDeepGP, build_latent, image_numbers, judge_hidden, judge_mean_image
from tasks.gaussian_process.streams import SeedStreams
from tasks.gaussian_process.training import FitParams, train

SEEDS = [0, 1]


def masked(seed: int, n: int = 24, pixels: int = 10) -> MaskedImages:
    """Images on a curve: pixel j of image i is sin(t_i + j / 2), so that a few pixels tell the others."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 3, n))
    return mask_images(np.sin(t[:, None] + np.arange(pixels) / 2), 0.5, 2, rng)


IMAGES = [masked(seed) for seed in SEEDS]


def model(images: list[MaskedImages], seeds: list[int] = SEEDS, depth: int = 2) -> LatentDeepGP:
    return build_latent(images, 6, depth, seeds, lambda m, features, d: GaussianPosterior(len(seeds), m, d))


def test_the_bound_is_the_loop_over_images_and_observed_pixels():
    deep = model(IMAGES, depth=1)
    with torch.no_grad():
        for posterior in deep.posteriors:
            posterior.mean += 0.3
    batch = torch.tensor([[3, 5, 9], [0, 1, 20]])
    found = deep.bound(torch.zeros(2, 3, 0), batch, rows=24, samples=4, streams=SeedStreams(SEEDS, 5))
    noise = SeedStreams(SEEDS, 5).normal(3, 2)  # what the latent coordinates are drawn with
    sd = deep.log_spread.exp()
    for r in range(2):
        total = 0.0
        for b, i in enumerate(batch[r].tolist()):
            x = deep.latents[r, i] + sd[r, i] * noise[r, b]
            parts = [Inducing(p.mean[r : r + 1, None], p.root[r : r + 1].tril()) for p in deep.posteriors]
            alone = model([IMAGES[r]], [SEEDS[r]], depth=1)
            mean, variance = alone.layers[0].moments(x[None, None, None], parts[0])
            s = deep.likelihood.noise()[r]
            for j in range(10):
                if IMAGES[r].observed[i, j]:
                    error = float(IMAGES[r].images[i, j]) - mean[0, 0, 0, j]
                    v = variance[0, 0, 0, j if variance.shape[-1] > 1 else 0]
                    total += (Normal(0.0, s.sqrt()).log_prob(error) - v / (2 * s)).item()
            total -= kl_divergence(Normal(deep.latents[r, i], sd[r, i]), Normal(0.0, 1.0)).sum().item()
        assert found.data[r].item() == pytest.approx(24 / 3 * total, rel=1e-4)


def test_hidden_pixels_change_nothing():
    other = [replace(m, images=np.where(m.observed, m.images, 1e6)) for m in IMAGES]
    batch = torch.arange(24).expand(2, 24)
    bounds = [model(images).bound(torch.zeros(2, 24, 0), batch, 24, 2, SeedStreams(SEEDS)).per_datum for images in (IMAGES, other)]
    assert torch.equal(*bounds)


def test_every_parameter_gets_a_gradient():
    deep = model(IMAGES)
    with torch.no_grad():
        for posterior in deep.posteriors:
            posterior.mean += 0.1
    deep.bound(torch.zeros(2, 24, 0), torch.arange(24).expand(2, 24), 24, 2, SeedStreams(SEEDS)).per_datum.sum().backward()
    for name, parameter in deep.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad.reshape(2, -1).abs().amax(1) > 0).all(), name


def test_training_beats_the_mean_image_and_is_the_same_again():
    fit = FitParams(batch=24, curve=0, draws=0)

    def trained() -> dict[str, np.ndarray]:
        deep = model(IMAGES)
        train(deep, image_numbers(IMAGES), fit, 150, SEEDS)
        return judge_hidden(deep, IMAGES, 20, SeedStreams(SEEDS, 2))

    first, again = trained(), trained()
    for name, values in first.items():
        np.testing.assert_array_equal(values, again[name])
    for r, image in enumerate(IMAGES):
        assert first["rmse"][r] < 0.7 * judge_mean_image(image)["rmse"]
        assert first["nll"][r] < judge_mean_image(image)["nll"]


def test_scores_are_those_of_hidden_pixels_alone():
    class Perfect(LatentDeepGP):
        def reconstruct(self, draws, streams):
            true = torch.as_tensor(np.stack([m.images for m in IMAGES]))
            wrong = torch.where(torch.as_tensor(np.stack([m.observed for m in IMAGES])), 99.0, true)
            return wrong[:, None].expand(-1, draws, -1, -1), torch.ones(2, draws, *true.shape[1:])

    deep = model(IMAGES)
    deep.__class__ = Perfect
    found = judge_hidden(deep, IMAGES, 3, SeedStreams(SEEDS))
    np.testing.assert_allclose(found["rmse"], 0.0, atol=1e-12)
    np.testing.assert_allclose(found["nll"], 0.5 * np.log(2 * np.pi))
    np.testing.assert_allclose(found["coverage"], 1.0)


def test_the_mean_image_by_hand():
    # Pixel 0 is shown with 0 and 2 (mean 1), pixel 1 with 4 only: residuals 1, 1, 0, variance 2/3; hidden are 5 and 1.
    images, observed = np.array([[0.0, 4.0], [2.0, 1.0], [5.0, 4.0]]), np.array([[True, False], [True, False], [False, True]])
    found = judge_mean_image(MaskedImages(images, observed, np.zeros((3, 1)), 0.0, 10.0))
    errors = np.array([5.0 - 1.0, 4.0 - 4.0, 1.0 - 4.0])
    assert found["rmse"] == pytest.approx(10 * np.sqrt((errors**2).mean()))
    assert found["nll"] == pytest.approx((0.5 * np.log(2 * np.pi * 2 / 3) + 0.75 * errors**2).mean())
    assert found["coverage"] == pytest.approx(1 / 3)


def test_impossible_input_is_refused():
    with pytest.raises(ValueError, match=r"must agree in shape over seeds and be at least one set, got \[\]"):
        image_numbers([])
    with pytest.raises(ValueError, match="must agree in shape"):
        image_numbers([masked(0), masked(0, n=20)])
    deep = model(IMAGES)
    with pytest.raises(ValueError, match=r"with p = 10, got \(2, 24, 2\), \(2, 24, 9\) and \(2, 24, 9\)"):
        LatentDeepGP(list(deep.layers), list(deep.posteriors), deep.latents, deep.pixels[..., :9], deep.observed[..., :9])
    never = replace(IMAGES[0], observed=IMAGES[0].observed & (np.arange(10) > 0))
    with pytest.raises(ValueError, match="every pixel must be shown by at least one image, 1 are not"):
        judge_mean_image(never)
