import pytest
import torch

from tasks.low_rank.whitening import unwhiten, whitening
from tests.tasks.low_rank.tiny import randn


def moment(tokens: int, size: int) -> torch.Tensor:
    x = randn(tokens, size)
    return x.T @ x / tokens


def test_the_factor_squares_to_the_moment():
    factor = whitening(moment(50, 6))
    torch.testing.assert_close(factor @ factor.T, moment(50, 6).double())
    assert float(factor.triu(1).abs().max()) == 0


def test_fewer_tokens_than_channels_and_dead_channels_get_a_ridge():
    poor = moment(3, 8)
    poor[:, 7] = poor[7, :] = 0
    factor = whitening(poor)
    assert bool(torch.isfinite(factor).all())
    ridge = (factor @ factor.T - poor.double()).diagonal()
    assert float(ridge.min()) > 0
    torch.testing.assert_close(ridge, ridge[0].expand(8))


def test_unwhitening_solves_with_the_transposed_factor():
    factor, columns = whitening(moment(50, 6)), randn(6, 3).double()
    torch.testing.assert_close(factor.T @ unwhiten(factor, columns), columns)


@pytest.mark.parametrize("bad", [torch.full((3, 3), float("nan")), torch.zeros(2, 3), -torch.eye(3) * 10])
def test_what_is_no_moment_is_refused(bad: torch.Tensor):
    with pytest.raises(ValueError, match=r"second moment|square"):
        whitening(bad)


@pytest.mark.parametrize("ridge", [0.0, -1e-4, 2.0, float("nan")])
def test_a_ridge_that_could_not_grow_is_refused(ridge: float):
    with pytest.raises(ValueError, match=r"ridge must lie in \(0, 1\]"):
        whitening(torch.eye(3), ridge)
