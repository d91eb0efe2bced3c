from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tasks.diffusion.noise_training import DenoiserParams, noise_prediction_error, noised, train_denoiser
from tasks.diffusion.schedules import signal_levels

TINY = DenoiserParams(hidden=16, blocks=1, steps=40, batch=64)


def two_modes(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.c_[1.3 * (2 * rng.integers(0, 2, n) - 1) + 0.3 * rng.standard_normal(n), rng.standard_normal(n) * 0.4]


def test_noised_rows_have_the_levels_moments():
    noise = torch.randn(100_000, 1, generator=torch.Generator().manual_seed(0))
    u = noised(torch.full((100_000, 1), 2.0), 0.36, noise)
    assert u.mean().item() == pytest.approx(1.2, abs=0.01)
    assert u.std().item() == pytest.approx(0.8, abs=0.01)


def test_training_learns_what_no_gaussian_can():
    model, losses = train_denoiser(two_modes(1000, 0)[:, :1], DenoiserParams(hidden=32, steps=500, batch=128, rate=3e-3), seed=0)
    assert losses.shape == (500,)
    rows, abar = two_modes(2000, 1)[:, :1], signal_levels("linear", 256)[30:90:20]
    error = noise_prediction_error(model, rows, abar, seed=2)
    variance = rows.var(axis=0)
    gaussian = np.mean([(a * variance / (a * variance + 1 - a)).mean() for a in abar])  # E (eps - best linear guess)^2
    assert error < 0.9 * gaussian


def test_the_error_of_an_untrained_network_has_a_closed_form():
    model, _ = train_denoiser(np.random.default_rng(0).standard_normal((50, 2)), DenoiserParams(hidden=4, steps=1, rate=1e-12), seed=0)
    rows = 2.0 * np.random.default_rng(1).standard_normal((50_000, 2))
    a = 0.4
    # eps - sqrt(1-a) (sqrt(a) u + sqrt(1-a) eps) = a eps - sqrt(a (1-a)) u
    assert noise_prediction_error(model, rows, np.array([a]), seed=3) == pytest.approx(a**2 + a * (1 - a) * 4, rel=0.02)


def test_a_seed_gives_the_same_weights_and_another_one_others():
    rows = two_modes(200, 0)
    runs = [train_denoiser(rows, TINY, seed)[0].state_dict() for seed in (3, 3, 4)]
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])
    assert not torch.equal(runs[0]["leave.weight"], runs[2]["leave.weight"])


def test_what_is_kept_are_the_averaged_weights():
    rows = two_modes(200, 0)
    averaged = train_denoiser(rows, TINY, 3)[0].state_dict()
    last = train_denoiser(rows, TINY.model_copy(update={"ema": 0.0}), 3)[0].state_dict()
    assert not torch.equal(averaged["leave.weight"], last["leave.weight"])


def test_steps_are_reported_as_they_happen():
    seen: list[int] = []
    _, losses = train_denoiser(two_modes(100, 0), TINY, 0, after=lambda step, loss: seen.append(step))
    assert seen == list(range(40))
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("rows", [np.zeros((1, 3)), np.zeros(5), np.array([[0.0, np.nan], [1.0, 2.0]])])
def test_rows_that_cannot_be_learnt_from_are_refused(rows):
    with pytest.raises(ValueError, match="finite matrix of at least two rows"):
        train_denoiser(rows, TINY, 0)


@pytest.mark.parametrize("bad", [{"steps": 0}, {"rate": 0.0}, {"ema": 1.0}, {"levels": 20}, {"schedule": "cubic"}, {"hiden": 3}])
def test_impossible_parameters_are_refused(bad):
    with pytest.raises(ValidationError):
        DenoiserParams(**bad)
