import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.low_rank.factorisations import (
    Diagonal,
    Plain,
    SharedFactors,
    Whitened,
    activation_scale,
    fisher_scale,
    spectrum,
    truncate_heads,
    truncate_matrix,
)
from tasks.low_rank.whitening import whitening
from tests.tasks.low_rank.tiny import positive, randn

E, H, HEADS = 12, 5, 3


def activations() -> torch.Tensor:
    """Tokens whose channels correlate and differ in scale."""
    return (randn(200, E, seed=3) * torch.logspace(-1, 1, E)) @ (torch.eye(E) + 0.4 * randn(E, E, seed=4))


def second_moment() -> torch.Tensor:
    x = activations()
    return x.T @ x / len(x)


def activation_error(weight: torch.Tensor, product: torch.Tensor) -> float:
    return float((activations() @ (weight - product)).square().sum() / 200)


def test_full_rank_gives_the_weight_back_in_all_coordinates():
    weight = randn(HEADS, E, H)
    for coordinates in (Plain(), Diagonal(positive(E)), Whitened(whitening(second_moment()))):
        found = truncate_heads(spectrum(weight, coordinates), H)
        torch.testing.assert_close(found.A @ found.B, weight, atol=1e-4, rtol=1e-4)


@given(rank=st.integers(1, H - 1))
@settings(max_examples=4, deadline=None)
def test_plain_truncation_leaves_the_dropped_squared_singular_values(rank: int):
    weight = randn(HEADS, E, H)
    found = truncate_heads(spectrum(weight, Plain()), rank)
    dropped = torch.linalg.svdvals(weight)[:, rank:].square().sum()
    torch.testing.assert_close((weight - found.A @ found.B).square().sum(), dropped, rtol=1e-4, atol=1e-5)


def test_whitened_truncation_leaves_the_dropped_values_in_activations_and_nobody_does_better():
    weight = randn(E, H)
    white = spectrum(weight, Whitened(whitening(second_moment())))
    best = truncate_matrix(white, 2)
    error = activation_error(weight, best.A @ best.B)
    assert error == pytest.approx(float(white.sigma[2:].square().sum()), rel=1e-3)
    scales = (Plain(), activation_scale(activations().abs().mean(0)), fisher_scale(positive(E, H)))
    for coordinates in scales:
        other = truncate_matrix(spectrum(weight, coordinates), 2)
        assert error <= activation_error(weight, other.A @ other.B) * (1 + 1e-5)


def test_row_weights_have_the_closed_form_of_fwsvd():
    """With F constant within rows, the weighted error of the scaled SVD is the sum of its dropped squared singular values."""
    weight, rows = randn(E, H), positive(E, 1, seed=2)
    fisher = rows.expand(E, H)
    found = truncate_matrix(spectrum(weight, fisher_scale(fisher)), 2)
    error = (fisher * (weight - found.A @ found.B).square()).sum()
    dropped = torch.linalg.svdvals(rows.sqrt() * weight)[2:].square().sum()
    torch.testing.assert_close(error, dropped, rtol=1e-4, atol=1e-5)


def test_masks_choose_triples_and_pad_with_zeros():
    weight = randn(2, E, H)
    found = spectrum(weight, Plain())
    mask = torch.tensor([[True, False, True, False, False], [False, True, False, False, False]])
    cut = truncate_heads(found, mask)
    assert cut.ranks == (2, 1)
    assert cut.parameters() == 3 * (E + H)
    by_hand = sum(found.sigma[0, i] * torch.outer(found.left[0, :, i], found.right[0, i]) for i in (0, 2))
    torch.testing.assert_close(cut.A[0] @ cut.B[0], by_hand)
    assert float(cut.A[1, :, 1].abs().max()) == float(cut.B[1, 1].abs().max()) == 0


def test_columns_of_a_joint_factorisation_are_the_projections():
    weight = randn(E, 9)
    found = spectrum(weight, Plain())
    parts = [truncate_matrix(found, 9, columns, owners=2) for columns in (slice(0, 4), slice(4, 9))]
    torch.testing.assert_close(torch.cat([part.A @ part.B for part in parts], 1), weight, atol=1e-5, rtol=1e-4)
    assert parts[0].parameters() == E * 9 / 2 + 9 * 4


def test_weights_come_back_in_the_layout_of_linear_layers():
    assert SharedFactors(randn(E, 2), randn(2, 9)).weight().shape == (9, E)
    assert truncate_heads(spectrum(randn(HEADS, E, H), Plain()), 2).weight().shape == (HEADS * H, E)


def test_dead_channels_are_clamped_and_bad_scales_refused():
    scale = activation_scale(torch.tensor([0.0, 1.0, 4.0]))
    assert float(scale.scale.min()) > 0
    assert scale.scale[1:].tolist() == [1.0, 2.0]  # (mean |x|)^0.5
    with pytest.raises(ValueError, match="positive"):
        Diagonal(torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match="not finite"):
        spectrum(torch.full((3, 2), float("nan")), Plain())
