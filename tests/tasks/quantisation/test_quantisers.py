from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.quantisation.quantisers import dequantise, fake_quantise, largest_code, quantise, scale_of, search_clip


def rows(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(seed=st.integers(0, 10_000), bits=st.integers(2, 8), dim=st.sampled_from([-1, -2]))
@settings(max_examples=60, deadline=None)
def test_errors_are_at_most_half_a_level_and_rounding_twice_changes_nothing(seed, bits, dim):
    x = rows(seed, 2, 5, 7)
    once = fake_quantise(x, bits, dim)
    scale = scale_of(x, bits, dim)
    assert ((once - x).abs() <= scale / 2 * (1 + 1e-5)).all()
    torch.testing.assert_close(fake_quantise(once, bits, dim), once, atol=1e-6, rtol=1e-6)
    again, _ = quantise(once, bits, dim)
    codes, scales = quantise(x, bits, dim)
    assert torch.equal(again, codes)
    torch.testing.assert_close(dequantise(codes, scales), once)


def test_scales_by_hand():
    x = torch.tensor([[1.0, -2.54], [0.0, 0.0]])
    assert scale_of(x, 8).flatten().tolist() == pytest.approx([0.02, 1.0])
    assert scale_of(x, 8, dim=-2).flatten().tolist() == pytest.approx([1 / 127, 0.02])
    assert quantise(x, 8)[0].tolist() == [[50, -127], [0, 0]]


def test_each_token_and_each_channel_has_its_own_scale():
    x = torch.tensor([[1.0, 2.0], [100.0, 200.0]])
    codes, _ = quantise(x, 8)
    assert torch.equal(codes[0], codes[1])
    codes, _ = quantise(x, 8, dim=-2)
    assert torch.equal(codes[:, 0], codes[:, 1])


def test_sixteen_bits_are_the_tensor_itself():
    x = rows(0, 3, 4)
    assert fake_quantise(x, 16) is x


def test_half_types_are_rounded_to_the_same_levels():
    x = rows(3, 20, 64).bfloat16()
    levels = fake_quantise(x.float(), 8)
    assert fake_quantise(x, 8).dtype == torch.bfloat16
    assert torch.equal(fake_quantise(x, 8), levels.bfloat16())


@pytest.mark.parametrize("clip", [1.0, 0.4])
def test_gradient_is_one_inside_the_clipping_range_and_zero_outside(clip):
    x = rows(1, 4, 50).requires_grad_()
    fake_quantise(x, 4, clip=clip).sum().backward()
    scale = scale_of(x, 4, clip=clip)
    expected = (x.detach().abs() <= 7.5 * scale).float()
    assert torch.equal(x.grad, expected)
    assert bool(expected.all()) == (clip == 1.0)


def test_gradient_of_a_loss_is_taken_at_the_rounded_value():
    x = torch.tensor([1.0, 0.3], requires_grad=True)
    fake_quantise(x, 2).square().sum().backward()  # levels -1, 0, 1
    assert x.grad.tolist() == [2.0, 0.0]


def test_the_best_clipping_ratio_is_that_of_enumeration():
    x = rows(2, 6, 200)
    ratios = (0.3, 0.5, 0.7, 1.0)
    found = search_clip(x, 4, ratios=ratios)
    for row, ratio in zip(x, found.flatten().tolist(), strict=True):
        errors = {r: float((fake_quantise(row, 4, clip=r) - row).square().sum()) for r in ratios}
        assert min(errors, key=errors.get) == pytest.approx(ratio)
    assert (fake_quantise(x, 4, clip=found) - x).square().sum() < (fake_quantise(x, 4) - x).square().sum()


def test_a_channel_of_zeros_is_not_clipped():
    assert search_clip(torch.zeros(2, 5), 4).tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("bits", [0, 1, 9, 32])
def test_unsupported_bits_are_refused(bits):
    with pytest.raises(ValueError, match=f"2 to 8, or 16 for no quantisation, got {bits}"):
        fake_quantise(torch.ones(2), bits)
    with pytest.raises(ValueError, match="bits"):
        largest_code(bits)


@pytest.mark.parametrize("clip", [0.0, 1.5])
def test_impossible_clips_are_refused(clip):
    with pytest.raises(ValueError, match=r"clip must lie in \(0, 1\]"):
        quantise(torch.ones(2), 8, clip=clip)


def test_a_search_needs_ratios():
    with pytest.raises(ValueError, match="no clipping ratios"):
        search_clip(torch.ones(2), 8, ratios=())
