"""The chain against its simulation step by step, the divergence against densities, and the limits where the truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

from tasks.diffusion.linear_gaussian import OrnsteinUhlenbeck, doob_drift, gaussian_kl, reverse_chain, sampler_marginals
from tasks.gaussian_process.deep_gp import build_deep_gp, build_layers
from tasks.gaussian_process.diffusion_bridge import BridgeParams, BridgePosterior
from tasks.gaussian_process.exact import ExactGP
from tasks.gaussian_process.gaussian import GaussianPosterior
from tasks.gaussian_process.streams import SeedStreams
from tasks.training.loop import descend

M, D, COLUMNS = 3, 2, 2
Z = torch.randn(2, M, D, generator=torch.Generator().manual_seed(0)).double()


def posterior(seed: int | None = 1, prior_factor=None, **options) -> BridgePosterior:
    """Two replicas in float64; with a seed, all parameters are moved off their start."""
    made = BridgePosterior(M, D, COLUMNS, BridgeParams(hidden=8, amortiser=8, **options), SeedStreams([0, 1]), prior_factor).double()
    if seed is not None:
        g = torch.Generator().manual_seed(seed)
        for name, parameter in made.named_parameters():
            if name != "log_sigma":
                parameter.data += 0.3 * torch.randn(parameter.shape, generator=g).double()
    return made


def streams(seed: int = 0) -> SeedStreams:
    return SeedStreams([seed, seed + 1], dtype=torch.float64)


def by_hand(made: BridgePosterior, samples: int):
    """The pseudo-code, one replica, one sample and one step at a time, in NumPy with the tables of `linear_gaussian`."""
    p = made.params
    process = OrnsteinUhlenbeck(p.lam, p.g)
    chain, at = reverse_chain(process, p.sigma, p.steps, p.doob, p.integrator), sampler_marginals(process, p.sigma, p.steps, p.doob)
    mus, noise = made.center(Z).detach().numpy(), streams().normal(p.steps + 1, samples, M * COLUMNS).numpy()
    weights = {name: value.detach().numpy() for name, value in made.named_parameters()}
    values, terms = np.empty((2, samples, M, COLUMNS)), np.zeros((2, 3))
    for r in range(2):
        mu = mus[r].ravel()
        for s in range(samples):
            if p.start == "bridge":
                v = at.decay[0] * mu + math.sqrt(at.kappa[0]) * noise[r, 0, s]
            else:
                v = mu + p.sigma * noise[r, 0, s]
                terms[r, 0] += gaussian_kl(((1 - at.decay[0]) ** 2 * mu**2).sum(), mu.size, p.sigma**2, at.kappa[0]) / samples
            first = v
            for k in range(p.steps):
                h = v @ weights["correction.weights.0"][r] + weights["correction.biases.0"][r, 0]
                h = h + mu @ weights["from_context"][r] + at.times[k] * weights["from_time"][r, 0]
                for layer in (1, 2):
                    h = h / (1 + np.exp(-h)) @ weights[f"correction.weights.{layer}"][r] + weights[f"correction.biases.{layer}"][r, 0]
                correction = p.bound * np.tanh(h / p.bound)
                if p.own_start != "absorbed":
                    correction = correction + doob_drift(process, p.sigma, v, at.times[k], first, mu)
                terms[r, 1] += 0.5 * chain.weight[k] * (correction**2).sum() / samples
                v = chain.gain[k] * v + chain.pull[k] * mu + chain.shift[k] * correction + chain.spread[k] * noise[r, k + 1, s]
            end = Normal(torch.tensor(chain.end_mean * mu), float(np.sqrt(chain.end_variance)))
            terms[r, 2] += (end.log_prob(torch.tensor(v)).sum() - Normal(0.0, 1.0).log_prob(torch.tensor(v)).sum()).item() / samples
            values[r, s] = v.reshape(M, COLUMNS)
    return values, terms


@pytest.mark.parametrize("center", ["amortised", "zero", "vector"])
@pytest.mark.parametrize("start", ["bridge", "paper"])
@pytest.mark.parametrize(("integrator", "doob"), [("exact", True), ("exact", False), ("euler", True), ("euler", False)])
def test_draws_are_those_of_a_loop(center, start, integrator, doob):
    compare_with_loop(posterior(center=center, start=start, integrator=integrator, doob=doob, steps=4))


@pytest.mark.parametrize("own_start", ["explicit", "detached"])
def test_doobs_drift_of_the_paths_own_start_can_be_added(own_start):
    compare_with_loop(posterior(own_start=own_start, steps=4))


def test_a_detached_start_has_the_same_draws_and_another_gradient():
    drawn = {kind: posterior(own_start=kind, steps=4) for kind in ("explicit", "detached")}
    kl = {kind: made.draw(Z, 3, streams()).kl.sum() for kind, made in drawn.items()}
    assert kl["explicit"].item() == kl["detached"].item()
    gradients = [torch.autograd.grad(kl[kind], made.amortiser.weights[0])[0] for kind, made in drawn.items()]
    assert not torch.allclose(*gradients)


def compare_with_loop(made: BridgePosterior) -> None:
    drawn = made.draw(Z, 3, streams())
    values, terms = by_hand(made, 3)
    np.testing.assert_allclose(drawn.values.detach().numpy(), values, atol=1e-5)
    found = torch.stack([drawn.terms[name] for name in ("start", "path", "end")], 1).detach().numpy()
    np.testing.assert_allclose(found, terms, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("steps", [1, 2, 10])
def test_without_corrections_the_end_is_the_reference_for_any_number_of_steps(steps):
    made = posterior(None, center="vector", steps=steps)
    made.vector.data = torch.full_like(made.vector.data, 1.5)
    drawn = made.draw(Z, 4000, streams())
    assert drawn.values.mean().item() == pytest.approx(1.5, abs=0.01)
    assert drawn.values.std().item() == pytest.approx(0.3, rel=0.02)
    assert drawn.terms["path"].abs().max().item() == 0.0
    expected = float(gaussian_kl(1.5**2 * M * COLUMNS, M * COLUMNS, 0.09, 1.0))
    assert drawn.kl[0].item() == pytest.approx(expected, abs=0.2)


def test_paper_start_pays_its_own_divergence_on_top():
    made = posterior(None, center="vector", start="paper", steps=4)
    made.vector.data = torch.full_like(made.vector.data, 1.0)
    at = sampler_marginals(OrnsteinUhlenbeck(), 0.3, 4)
    expected = gaussian_kl((1 - math.exp(-1)) ** 2 * M * COLUMNS, M * COLUMNS, 0.09, at.kappa[0])
    np.testing.assert_allclose(made.draw(Z, 2, streams()).terms["start"].detach().numpy(), expected, rtol=1e-5)


def test_divergence_bounds_that_of_the_end_from_the_prior():
    # A linear correction leaves Q Gaussian, so that KL(Q_end || prior) is known: the chain rule makes the whole at least as large.
    made = posterior(None, center="zero", steps=5, bound=1e6)
    made.correction.biases[-1].data[:] = 0.7  # a constant correction shifts the mean alone
    drawn = made.draw(Z, 4000, streams())
    mean, variance = drawn.values.mean().item(), drawn.values.var().item()
    end = float(gaussian_kl(mean**2 * M * COLUMNS, M * COLUMNS, variance, 1.0))
    assert drawn.kl.min().item() > end
    assert variance == pytest.approx(0.09, rel=0.04)


def test_zero_center_is_the_amortiser_at_zero_and_the_vector_at_zero():
    draws = []
    for center in ("zero", "amortised", "vector"):
        made = posterior(None, center=center)
        made.correction.weights[-1].data += 0.1
        drawn = made.draw(Z, 3, streams())
        gradients = torch.autograd.grad(drawn.kl.sum() + drawn.values.sum(), list(made.correction.parameters()))
        draws.append((drawn.values, drawn.kl, *gradients))
    for other in draws[1:]:
        for a, b in zip(draws[0], other, strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


def test_refining_the_steps_leaves_the_divergence_of_the_reference_unchanged():
    expected = float(gaussian_kl(0.0, M * COLUMNS, 0.09, 1.0))
    for steps in (1, 5, 20):
        found = posterior(None, center="zero", steps=steps).draw(Z, 4000, streams()).kl
        assert found[0].item() == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("doob", [True, False])
@pytest.mark.parametrize("sigma", [0.1, 0.3, 1.0])
def test_learnable_sigma_starts_as_the_fixed_one(sigma, doob):
    fixed, learned = (posterior(learn_sigma=learn, sigma=sigma, doob=doob) for learn in (False, True))
    learned.load_state_dict(fixed.state_dict(), strict=False)
    a, b = fixed.draw(Z, 4, streams()), learned.draw(Z, 4, streams())
    torch.testing.assert_close(a.values, b.values, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(a.kl, b.kl, atol=0.1, rtol=0.02)


def test_learnable_sigma_keeps_the_reference_exact_between_the_tables_values():
    made = posterior(None, learn_sigma=True, center="zero", steps=3)
    made.log_sigma.data = torch.log(torch.tensor([0.2345, 0.871])).double()
    drawn = made.draw(Z, 10_000, streams())
    np.testing.assert_allclose(drawn.values.flatten(1).std(1).detach().numpy(), [0.2345, 0.871], rtol=0.02)
    (gradient,) = torch.autograd.grad(drawn.kl.sum(), [made.log_sigma])
    assert bool((gradient.abs() > 0).all())


def test_unwhitened_diffusion_weighs_u_against_the_gram_matrix():
    half = torch.randn(2, M, M, generator=torch.Generator().manual_seed(3)).double()
    lower = torch.linalg.cholesky(half @ half.mT + torch.eye(M).double())
    plain, made = posterior(), posterior(whiten=False, prior_factor=lambda: lower)
    u, drawn = plain.draw(Z, 5, streams()).values, made.draw(Z, 5, streams())
    torch.testing.assert_close(lower[:, None] @ drawn.values, u)
    mu = made.center(Z)
    for r in range(2):
        prior = MultivariateNormal(torch.zeros(M).double(), lower[r] @ lower[r].mT)
        reference = Normal(mu[r], 0.3).log_prob(u[r]).sum((1, 2))
        by_column = sum(prior.log_prob(u[r, :, :, column]) for column in range(COLUMNS))
        expected = (reference - by_column).mean()
        torch.testing.assert_close(drawn.terms["end"][r], expected)


def test_matching_loss_of_a_constant_correction():
    made = posterior(None, center="zero", steps=4, bound=1e6)
    made.correction.biases[-1].data[:] = 0.5
    kappa = sampler_marginals(OrnsteinUhlenbeck(), 0.3, 4).kappa
    assert made.draw(Z, 2, streams()).matching[0].item() == pytest.approx(0.25 * kappa[:-1].mean(), rel=1e-5)


def test_corrections_are_bounded():
    made = posterior(None, center="zero", bound=2.0, steps=1)
    made.correction.biases[-1].data[:] = 1e6
    chain = reverse_chain(OrnsteinUhlenbeck(), 0.3, 1)
    expected = 0.5 * chain.weight[0] * 4.0 * M * COLUMNS
    assert made.draw(Z, 2, streams()).terms["path"][0].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "greater than or equal to 1"),
        ({"sigma": 0.0}, "greater than 0"),
        ({"lam": 0.0}, "greater than 0"),
        ({"g": -1.0}, "greater than 0"),
        ({"bound": 0.0}, "greater than 0"),
        ({"center": "nowhere"}, "amortised"),
        ({"learn_sigma": True, "integrator": "euler"}, "needs integrator 'exact'"),
        ({"learn_sigma": True, "sigma": 5.0}, "must start in"),
        ({"own_start": "explicit", "doob": False}, "needs doob and a fixed sigma"),
        ({"own_start": "detached", "learn_sigma": True}, "needs doob and a fixed sigma"),
    ],
)
def test_impossible_parameters_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BridgeParams(**options)


def test_impossible_posteriors_are_refused():
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        BridgePosterior(0, 1, 1, BridgeParams(), SeedStreams([0]))
    with pytest.raises(ValueError, match="needs the factor of K_ZZ"):
        BridgePosterior(1, 1, 1, BridgeParams(whiten=False), SeedStreams([0]))


@pytest.fixture(scope="module")
def conjugate():
    """Five points, one layer, Z = X, fixed hyperparameters: exact regression is the truth. Methods train as replicas side by side."""
    x = torch.tensor([-1.6, -0.7, 0.1, 0.8, 1.7]).double()[None, :, None]
    y = torch.sin(2 * x[..., 0]) + 0.2
    truth = ExactGP(x[0].numpy(), y[0].numpy(), np.array([1.0]), 1.0, 0.1)
    found = {}
    for name in ("dsvi", "ddvi", "dbvi"):
        layers = build_layers(x, x, 1, 1, jitter=1e-8)
        center = "amortised" if name == "dbvi" else "zero"
        made = (
            GaussianPosterior(1, 5, 1)
            if name == "dsvi"
            else BridgePosterior(5, 1, 1, BridgeParams(center=center, steps=5), SeedStreams([0]))
        )
        model = build_deep_gp(layers, [made]).double()
        noise = SeedStreams([1], dtype=torch.float64)
        loss = lambda step, model=model, noise=noise: -model.bound(x, y, 5, 4, noise).per_datum.sum()  # noqa: E731
        descend(loss, list(made.parameters()), 1000, rate=0.01, schedule="cosine", clip=10.0)
        with torch.no_grad():
            bound = model.bound(x, y, 5, 4000, SeedStreams([2], dtype=torch.float64))
            mean, _ = model.propagate(x, model.draw(4000, SeedStreams([3], dtype=torch.float64)), 4000, noise)
        found[name] = 5 * bound.per_datum.item(), mean.mean(1)[0, :, 0].numpy()
    return truth, x[0].numpy(), found


def test_every_bound_is_below_the_evidence_and_the_gaussian_one_reaches_it(conjugate):
    truth, _, found = conjugate
    evidence = truth.log_marginal_likelihood()
    assert found["dsvi"][0] == pytest.approx(evidence, abs=1e-2)
    for name in ("ddvi", "dbvi"):
        assert evidence - 1.5 < found[name][0] < evidence + 0.02


@pytest.mark.parametrize("name", ["dsvi", "ddvi", "dbvi"])
def test_posterior_means_are_the_exact_ones(conjugate, name):
    truth, x, found = conjugate
    exact = truth.posterior(x)[0]
    np.testing.assert_allclose(found[name][1], exact, atol=0.05)
