from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.diffusion.noise_training import DenoiserParams
from tasks.single_cell.priors import (
    DiffusionPrior,
    FlatPrior,
    MixturePrior,
    fit_diffusion_prior,
    gaussian_prior,
    isotropic_prior,
    mixture_prior,
)

TINY = DenoiserParams(hidden=8, blocks=1, steps=30, batch=32)


def mixture():
    means = np.array([[2.0, 0.0], [-1.0, 1.0]])
    covariances = np.array([[[1.0, 0.3], [0.3, 0.5]], [[0.4, 0.0], [0.0, 2.0]]])
    return MixturePrior(np.array([0.3, 0.7]), means, covariances)


def test_posterior_mean_against_numerical_integration():
    prior, y, noise = mixture(), np.array([0.5, -0.4]), np.array([[1.2, 0.2], [0.2, 0.6]])
    axis = np.linspace(-9, 9, 361)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)

    def normal(x, mean, covariance):
        gap = x - mean
        return np.exp(-0.5 * np.einsum("nk,kl,nl->n", gap, np.linalg.inv(covariance), gap)) / np.sqrt(np.linalg.det(covariance))

    density = sum(w * normal(grid, m, c) for w, m, c in zip(prior.weights, prior.means, prior.covariances, strict=True))
    density = density * normal(grid, y, noise)
    slow = (grid * density[:, None]).sum(axis=0) / density.sum()
    np.testing.assert_allclose(prior.posterior_mean(y[None], noise)[0], slow, atol=1e-6)


def test_samples_have_the_posterior_moments():
    prior, y, rho = mixture(), np.array([0.5, -0.4]), 0.9
    z = torch.as_tensor(np.tile(y, (200_000, 1)))
    u = prior.sample(z, rho, torch.Generator().manual_seed(0)).numpy()
    np.testing.assert_allclose(u.mean(axis=0), prior.posterior_mean(y[None], rho**2)[0], atol=0.01)
    weights = prior.responsibilities(y[None], rho**2)[0]
    second = np.zeros((2, 2))
    for w, m, c in zip(weights, prior.means, prior.covariances, strict=True):
        gain = c @ np.linalg.inv(c + rho**2 * np.eye(2))
        mean = m + gain @ (y - m)
        second += w * (c - gain @ c + np.outer(mean, mean))
    mean = prior.posterior_mean(y[None], rho**2)[0]
    np.testing.assert_allclose(np.cov(u, rowvar=False), second - np.outer(mean, mean), atol=0.015)


def test_the_gaussian_prior_is_wiener_shrinkage():
    latents = np.random.default_rng(0).standard_normal((500, 3)) @ np.diag([3.0, 1.0, 0.2]) + 1
    prior = gaussian_prior(latents)
    y = np.random.default_rng(1).standard_normal((4, 3))
    mean, covariance = latents.mean(axis=0), np.cov(latents, rowvar=False)
    slow = [mean + covariance @ np.linalg.solve(covariance + 2 * np.eye(3), v - mean) for v in y]
    np.testing.assert_allclose(prior.posterior_mean(y, 2.0), slow, atol=1e-10)


def test_the_isotropic_prior_knows_the_scale_alone():
    latents = np.random.default_rng(0).standard_normal((500, 3)) @ np.diag([3.0, 1.0, 0.2])
    y = np.random.default_rng(1).standard_normal((4, 3))
    s2 = np.square(latents).mean()
    np.testing.assert_allclose(isotropic_prior(latents).posterior_mean(y, 2.0), y * s2 / (s2 + 2))


def test_em_finds_two_far_classes():
    rng = np.random.default_rng(0)
    latents = np.concatenate([rng.standard_normal((300, 2)) + np.array([6, 0]), rng.standard_normal((100, 2)) - np.array([6, 0])])
    prior = mixture_prior(latents, 2, seed=0)
    order = np.argsort(prior.means[:, 0])
    np.testing.assert_allclose(prior.weights[order], [0.25, 0.75], atol=0.01)
    np.testing.assert_allclose(prior.means[order][:, 0], [-6, 6], atol=0.2)


def test_a_flat_prior_only_adds_noise():
    u = FlatPrior().sample(torch.full((100_000, 1), 3.0), 2.0, torch.Generator().manual_seed(0))
    assert u.mean().item() == pytest.approx(3, abs=0.03)
    assert u.std().item() == pytest.approx(2, abs=0.03)


def test_a_diffusion_prior_speaks_data_units():
    latents = np.random.default_rng(0).standard_normal((200, 3)) * 5
    prior, _ = fit_diffusion_prior(latents, TINY, seed=0)
    assert prior.scale == pytest.approx(5, rel=0.1)
    z, rho = torch.ones(6, 3, dtype=torch.float64) * 4, 2.5
    inside = prior.chain().sample((z / prior.scale).float(), rho / prior.scale, torch.Generator().manual_seed(1))
    outside = prior.sample(z, rho, torch.Generator().manual_seed(1))
    assert outside.dtype == torch.float64
    np.testing.assert_allclose(outside, inside.double() * prior.scale)


def test_a_trained_prior_shrinks_towards_the_modes():
    rng = np.random.default_rng(0)
    latents = 4.0 * (2 * rng.integers(0, 2, (1000, 1)) - 1) * np.array([[1.0, 0.0]]) + rng.standard_normal((1000, 2))
    prior, _ = fit_diffusion_prior(latents, DenoiserParams(hidden=32, steps=600, batch=128, rate=3e-3), seed=0)
    truth = MixturePrior(np.full(2, 0.5), np.array([[4.0, 0.0], [-4.0, 0.0]]), np.stack([np.eye(2)] * 2))
    z = torch.tensor([[2.0, 1.0]]).expand(5000, 2)
    ours = prior.sample(z, 2.0, torch.Generator().manual_seed(0)).numpy()
    exact = truth.posterior_mean([[2.0, 1.0]], 4.0)[0]
    np.testing.assert_allclose(ours.mean(axis=0), exact, atol=0.35)


def test_saved_and_read_it_draws_the_same(tmp_path):
    prior, _ = fit_diffusion_prior(np.random.default_rng(0).standard_normal((100, 3)), TINY, seed=0)
    prior.save(tmp_path)
    again = DiffusionPrior.load(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"prior.safetensors", "config.json"}
    z = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    draws = [p.sample(z, 0.7, torch.Generator().manual_seed(1)) for p in (prior, again, again.with_steps(4))]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_what_is_no_prior_is_refused(tmp_path):
    with pytest.raises(ValueError, match="shapes do not fit"):
        MixturePrior(np.ones(2) / 2, np.zeros((2, 3)), np.zeros((2, 2, 2)))
    with pytest.raises(ValueError, match="sum to 1"):
        MixturePrior(np.ones(2), np.zeros((2, 1)), np.ones((2, 1, 1)))
    with pytest.raises(ValueError, match=r"1\.\.3, the number of cells, got 4"):
        mixture_prior(np.zeros((3, 2)), 4, 0)
    with pytest.raises(ValueError, match="not all zero"):
        fit_diffusion_prior(np.zeros((3, 2)), TINY, 0)
    prior, _ = fit_diffusion_prior(3 * np.random.default_rng(0).standard_normal((100, 2)), TINY, seed=0)
    for rho in (0.9 * 0.01977 * prior.scale, 1.1 * 174.4 * prior.scale):  # trained levels, in data units
        bounds = f"above {0.019768 * prior.scale:.4g} and be at most {174.423 * prior.scale:.4g}"
        with pytest.raises(ValueError, match=bounds):
            prior.sample(torch.zeros(1, 2), rho, torch.Generator())
    prior.save(tmp_path)
    (tmp_path / "config.json").write_text('{"kind": "diffusion"}')
    with pytest.raises(ValueError, match="does not describe a diffusion prior"):
        DiffusionPrior.load(tmp_path)
