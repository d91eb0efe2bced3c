from __future__ import annotations

import pytest
import torch

from tasks.quantisation import quantised_training
from tasks.quantisation.quantised_training import QuantisationParams, quantise_factors
from tasks.quantisation.quantisers import fake_quantise
from tasks.quantisation.rotations import block_rotation, cayley_step

H, E, R, D = 3, 24, 6, 8


def problem(seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    W = torch.randn(H, E, D, generator=g)
    u, s, v = torch.linalg.svd(W, full_matrices=False)
    A, B = u[..., :R] * s[:, None, :R], v[:, :R]
    return W, A, B, torch.rand(H, E, D, generator=g).square() + 1e-3


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def error(W, A, B, F, rotate_input=True):
    S1 = block_rotation(E) if rotate_input else torch.eye(E)
    target = S1 @ W
    return float((F * (target - A @ B).square()).sum() / (F * target.square()).sum())


@pytest.mark.parametrize("latent", ["learned", "fixed", "none"])
@pytest.mark.parametrize("rotate_input", [True, False])
def test_what_is_returned_is_on_levels_and_has_the_reported_error(latent, rotate_input):
    W, A, B, F = problem()
    params = QuantisationParams(weight_bits=4, steps=6, rate=1e-3, latent_rotation=latent, rotate_input=rotate_input)
    found = quantise_factors(W, A, B, F, params, generator())
    torch.testing.assert_close(fake_quantise(found.A, 4, dim=-2), found.A)
    torch.testing.assert_close(fake_quantise(found.B, 4, dim=-2), found.B)
    assert error(W, found.A, found.B, F, rotate_input) == pytest.approx(found.error, rel=1e-4)
    assert found.error <= found.objective.min() + 1e-7


def test_the_returned_factors_are_never_worse_than_the_start():
    W, A, B, F = problem()
    for rate in (1e-4, 0.3):  # the second one jumps about
        found = quantise_factors(W, A, B, F, QuantisationParams(weight_bits=3, steps=15, rate=rate), generator())
        assert error(W, found.A, found.B, F) <= found.objective[0] + 1e-6


def test_training_lowers_the_error_and_learning_the_rotation_lowers_it_further():
    W, A, B, F = problem()
    ends = {}
    for latent in ("fixed", "learned"):
        params = QuantisationParams(weight_bits=4, steps=50, latent_rotation=latent)
        found = quantise_factors(W, A, B, F, params, generator())
        ends[latent] = found.error / found.objective[0]
    assert ends["learned"] < ends["fixed"] < 1


def test_steps_of_the_latent_rotation_are_cayleys_along_the_straight_through_gradient(monkeypatch):
    """By hand, with P = A S^T and R = S B: dL/dS = (D Q(R)^T)^T A + Q(P)^T D B^T, where D = dL/d(Q(P) Q(R))."""
    W, A, B, F = problem()
    seen = []
    monkeypatch.setattr(quantised_training, "cayley_step", lambda S, g, rate: seen.append((S.clone(), g, rate)) or cayley_step(S, g, rate))
    params = QuantisationParams(weight_bits=4, steps=2, rate=1e-12, rotation_rate=0.5, rotate_input=False)
    quantise_factors(W, A, B, F, params, generator())
    (S, gradient, rate), (moved, _, _) = seen
    left, right = fake_quantise(A @ S.mT, 4, dim=-2), fake_quantise(S @ B, 4, dim=-2)
    D = -2 * F * (W - left @ right) / (F * W.square()).sum()
    torch.testing.assert_close(gradient, (D @ right.mT).mT @ A + left.mT @ D @ B.mT, rtol=1e-3, atol=1e-7)
    assert rate == 0.5
    torch.testing.assert_close(moved, cayley_step(S, gradient, 0.5), rtol=1e-5, atol=1e-6)


def test_the_latent_rotation_is_orthogonal_after_training_and_moved():
    W, A, B, F = problem()
    start = quantise_factors(W, A, B, F, QuantisationParams(weight_bits=3, steps=0), generator()).latent_rotation
    found = quantise_factors(W, A, B, F, QuantisationParams(weight_bits=3, steps=50, rate=1e-3), generator())
    S = found.latent_rotation.double()
    assert (S.mT @ S - torch.eye(R, dtype=torch.float64)).abs().max() < 1e-5
    assert (found.latent_rotation - start).abs().max() > 1e-3
    fixed = quantise_factors(W, A, B, F, QuantisationParams(weight_bits=3, steps=5, latent_rotation="fixed"), generator())
    assert torch.equal(fixed.latent_rotation, start)


def test_without_rounding_rotations_change_nothing():
    W, A, B, F = problem()
    ones = torch.ones_like(F)  # rotations keep the unweighted error
    found = quantise_factors(W, A, B, ones, QuantisationParams(weight_bits=16, activation_bits=16, steps=0), generator())
    torch.testing.assert_close(block_rotation(E).T @ found.A @ found.B, A @ B, atol=1e-5, rtol=1e-5)
    plain = QuantisationParams(weight_bits=16, steps=0, rotate_input=False, latent_rotation="none")
    kept = quantise_factors(W, A, B, F, plain, generator())
    assert torch.equal(kept.A, A)
    assert torch.equal(kept.B, B)


def test_fewer_bits_cost_more():
    W, A, B, F = problem()
    ends = [quantise_factors(W, A, B, F, QuantisationParams(weight_bits=b, steps=0), generator()).objective[0] for b in (3, 4, 8, 16)]
    assert ends == sorted(ends, reverse=True)


def test_a_head_alone_is_trained_as_in_the_batch_up_to_normalisation():
    # Adam's steps do not depend on the scale of the loss; heads do not share anything but that scale.
    W, A, B, F = problem()
    params = QuantisationParams(weight_bits=4, steps=5, rate=1e-3, latent_rotation="none")
    together = quantise_factors(W, A, B, F, params, generator())
    for head in range(H):
        part = slice(head, head + 1)
        alone = quantise_factors(W[part], A[part], B[part], F[part], params, generator())
        both = error(W[part], together.A[part], together.B[part], F[part])
        assert both == pytest.approx(alone.error, rel=0.05)


def test_impossible_arguments_are_refused():
    W, A, B, F = problem()
    with pytest.raises(ValueError, match="shapes do not fit"):
        quantise_factors(W, A, B[:, :-1], F, QuantisationParams(), generator())
    with pytest.raises(ValueError, match="not zero everywhere"):
        quantise_factors(W, A, B, torch.zeros_like(F), QuantisationParams(), generator())
    with pytest.raises(ValueError, match="got 12"):
        QuantisationParams(weight_bits=12)
    with pytest.raises(ValueError, match="got 1"):
        QuantisationParams(activation_bits=1)
