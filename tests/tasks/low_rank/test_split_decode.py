"""The block algorithm that the Triton kernel follows, against the masked dense formulas."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.attention.kernels.gpu_programs import BLOCK
from tasks.attention.kernels.online_softmax import merge_parts
from tasks.low_rank.kernels import reference
from tasks.low_rank.kernels.split_decode import Partials, RotaryKeys, part_size, split_decode
from tasks.quantisation.quantisers import dequantise, quantise


def draw(seed: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=g) for shape in shapes]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@given(
    seed=st.integers(0, 1000),
    groups=st.integers(1, 2),
    queries=st.integers(1, 3),
    slots=st.integers(1, 4 * BLOCK),
    rank_k=st.integers(1, 40),
    rank_v=st.integers(1, 40),
    splits=st.integers(1, 6),
)
@settings(max_examples=40, deadline=None)
def test_parts_merge_to_the_formula_for_ragged_lengths_odd_ranks_and_groups(seed, groups, queries, slots, rank_k, rank_v, splits):
    q, K, V = draw(seed, (2, groups * queries, rank_k), (2, groups, slots, rank_k), (2, groups, slots, rank_v))
    lengths = torch.randint(1, slots + 1, (2,), generator=torch.Generator().manual_seed(seed))
    close(split_decode(q, K, V, lengths, splits=min(splits, slots)), reference.decode(q, K, V, lengths))


def rotary_case(seed: int):
    q, C_K, B_K, C_V = draw(seed, (2, 6, 32), (2, 2, 200, 11), (2, 11, 32), (2, 2, 200, 7))
    g = torch.Generator().manual_seed(seed)
    positions = torch.stack([torch.randperm(900, generator=g)[:200].sort().values for _ in range(2)])
    return q, C_K, C_V, RotaryKeys(B_K, positions, reference.rotary_frequencies(32))


@pytest.mark.parametrize("splits", [1, 3])
def test_rebuilt_keys_are_rotated_by_logical_position(splits):
    q, C_K, C_V, rotary = rotary_case(0)
    lengths = torch.tensor([200, 77])
    expected = reference.decode_with_rope(q, C_K, rotary.B_K, C_V, rotary.positions, rotary.frequencies, lengths)
    close(split_decode(q, C_K, C_V, lengths, rotary=rotary, splits=splits), expected)
    slots = RotaryKeys(rotary.B_K, torch.arange(200).expand(2, -1), rotary.frequencies)
    assert (split_decode(q, C_K, C_V, lengths, rotary=slots, splits=splits) - expected).abs().max() > 1e-2


@pytest.mark.parametrize("with_rope", [False, True])
def test_int8_latents_equal_their_dequantised_values(with_rope):
    q, C_K, C_V, rotary = rotary_case(1)
    K_codes, K_scales = quantise(C_K, 8)
    V_codes, V_scales = quantise(C_V, 8)
    K, V = dequantise(K_codes, K_scales), dequantise(V_codes, V_scales)
    scales = {"key_scales": K_scales[..., 0], "value_scales": V_scales[..., 0]}
    if with_rope:
        found = split_decode(q, K_codes, V_codes, rotary=rotary, splits=2, **scales)
        expected = reference.decode_with_rope(q, K, rotary.B_K, V, rotary.positions, rotary.frequencies)
    else:
        latent_q = reference.absorb_keys(q, rotary.B_K)
        found = split_decode(latent_q, K_codes, V_codes, scale=32**-0.5, splits=2, **scales)
        expected = reference.decode(latent_q, K, V, scale=32**-0.5)
    close(found, expected)
    # Rounding is seen, and small.
    exact = reference.decode_with_rope(q, C_K, rotary.B_K, C_V, rotary.positions, rotary.frequencies)
    if with_rope:
        assert 1e-5 < (found - exact).abs().max() < 0.05


def test_slots_beyond_the_length_and_padded_ranks_leak_nothing():
    q, K, V = draw(2, (1, 2, 5), (1, 1, 100, 5), (1, 1, 100, 3))
    expected = reference.decode(q, K, V, torch.tensor([70]))
    K[:, :, 70:], V[:, :, 70:] = float("nan"), float("nan")
    close(split_decode(q, K, V, torch.tensor([70]), splits=2), expected)


def test_parts_without_slots_count_nothing():
    q, K, V = draw(3, (1, 1, 4), (1, 1, 300, 4), (1, 1, 300, 4))
    short = torch.tensor([10])  # all but the first of five parts are empty
    close(split_decode(q, K, V, short, splits=5), reference.decode(q, K, V, short))


def test_two_parts_by_hand():
    # Part 1: weights 1 and 1 (top 0), values sum to 4; part 2: one weight 1 at top 1, that is twice as heavy, value 6.
    parts = Partials(torch.tensor([4.0, 6.0]).reshape(1, 1, 2, 1), torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[2.0, 1.0]]]))
    assert merge_parts(parts.top, parts.total, parts.values).item() == pytest.approx((4 + 2 * 6) / (2 + 2))


def test_parts_are_multiples_of_tiles_and_cover_the_cache():
    for slots in (1, BLOCK, BLOCK + 1, 1000):
        for splits in (1, 2, 7):
            size = part_size(slots, splits)
            assert size % BLOCK == 0
            assert size * splits >= slots


def bad(**changes):
    q, K, V = draw(0, (2, 4, 8), (2, 2, 10, 8), (2, 2, 10, 5))
    return {"q": q, "K": K, "V": V} | changes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (bad(q=torch.ones(2, 3, 8)), "shapes do not fit"),
        (bad(K=torch.ones(2, 2, 8, 10).mT), "contiguous"),
        (bad(lengths=torch.tensor([11, 1])), "from 1 to 10"),
        (bad(splits=11), "splits must lie in 1...10, got 11"),
        (bad(q=torch.ones(2, 4, 7)), "absorb B_K"),
        (bad(K=torch.ones(2, 2, 10, 8, dtype=torch.int8)), "K of type torch.int8 needs scales"),
        (bad(value_scales=torch.ones(2, 2, 10)), "needs no scales"),
        (bad(rotary=RotaryKeys(torch.ones(2, 8, 6), torch.zeros(2, 10), torch.ones(4))), "expected \\(g, r, H\\)"),
        (bad(rotary=RotaryKeys(torch.ones(2, 8, 8), torch.zeros(2, 9), torch.ones(4))), "positions must have shape"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        split_decode(**arguments)
