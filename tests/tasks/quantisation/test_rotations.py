from __future__ import annotations

import pytest
import torch
from scipy import linalg

from tasks.quantisation.quantisers import fake_quantise
from tasks.quantisation.rotations import block_rotation, block_size, cayley_step, hadamard, random_orthogonal, rotate


def distance_from_orthogonal(S: torch.Tensor) -> float:
    eye = torch.eye(S.shape[-1], dtype=torch.float64)
    return float((S.double().mT @ S.double() - eye).abs().max())


@pytest.mark.parametrize("size", [1, 2, 16, 64])
def test_hadamard_is_scipys_and_orthogonal(size):
    found = hadamard(size)
    torch.testing.assert_close(found, torch.tensor(linalg.hadamard(size) / size**0.5, dtype=torch.float32))
    assert distance_from_orthogonal(found) < 1e-6
    assert torch.equal(found, found.T)


@pytest.mark.parametrize("size", [3, 28, 576])
def test_block_rotation_is_orthogonal_and_the_fast_path_equals_it(size):
    matrix = block_rotation(size)
    assert distance_from_orthogonal(matrix) < 1e-6
    x = torch.randn(2, 5, size, generator=torch.Generator().manual_seed(size))
    torch.testing.assert_close(rotate(x), x @ matrix.T, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rotate(rotate(x)), x, atol=1e-5, rtol=1e-5)


def test_blocks_are_as_large_as_divide():
    assert [block_size(n) for n in (1, 6, 64, 576)] == [1, 2, 64, 64]
    assert torch.equal(block_rotation(3), torch.eye(3))


def test_an_outlier_costs_less_after_a_rotation():
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(0))
    x[:, 3] = 100.0
    plain = (fake_quantise(x, 8) - x).square().mean()
    turned = rotate(fake_quantise(rotate(x), 8) - rotate(x)).square().mean()
    assert turned < 0.1 * plain


def test_random_matrices_are_orthogonal_and_follow_the_generator():
    drawn = [random_orthogonal((3, 7, 7), torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert max(distance_from_orthogonal(S) for S in drawn[0]) < 1e-6
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_cayley_steps_stay_orthogonal_for_many_large_steps():
    g = torch.Generator().manual_seed(0)
    S, gradient = random_orthogonal((4, 28, 28), g), torch.randn(4, 28, 28, generator=g)
    for _ in range(50):
        S = cayley_step(S, gradient, 1.0)
    assert max(distance_from_orthogonal(part) for part in S) < 1e-5


def test_cayley_steps_descend_to_the_closest_rotation():
    # min |S - Q| over rotations S is at Q itself when Q is a rotation of the same handedness.
    g = torch.Generator().manual_seed(1)
    Q = random_orthogonal((1, 5, 5), g)
    S = cayley_step(Q, torch.randn(1, 5, 5, generator=g), 1.0)
    start = float((S - Q).norm())
    for _ in range(200):
        S = cayley_step(S, S - Q, 0.3)
    assert start > 0.3
    assert float((S - Q).norm()) < 1e-3


def test_a_small_step_follows_the_projected_gradient():
    # To first order S - t (G S^T - S G^T) S.
    g = torch.Generator().manual_seed(2)
    S, G = random_orthogonal((6, 6), g).double(), torch.randn(6, 6, generator=g).double()
    expected = S - 1e-5 * (G @ S.T - S @ G.T) @ S
    torch.testing.assert_close(cayley_step(S, G, 1e-5), expected, atol=1e-8, rtol=0)


def test_no_gradient_no_step():
    S = random_orthogonal((3, 3), torch.Generator().manual_seed(0))
    torch.testing.assert_close(cayley_step(S, torch.zeros(3, 3), 1.0), S)


def test_impossible_arguments_are_refused():
    with pytest.raises(ValueError, match="power of two rows, got 12"):
        hadamard(12)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        block_size(0)
    with pytest.raises(ValueError, match="square matrices"):
        cayley_step(torch.zeros(2, 3), torch.zeros(2, 3), 1.0)
    with pytest.raises(ValueError, match="rate must be positive, got 0"):
        cayley_step(torch.eye(2), torch.zeros(2, 2), 0.0)
