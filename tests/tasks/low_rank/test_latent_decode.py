"""The CPU kernels against the masked dense formulas, and those against an attention written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.low_rank.kernels import latent_decode, reference
from tasks.low_rank.kernels.latent_decode import TILE, flash_decode, flash_decode_with_rope


def draw(seed: int, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(a) for a in arrays]


def close(found: np.ndarray, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    np.testing.assert_allclose(found, expected.numpy(), atol=tolerance, rtol=tolerance)


@given(
    seed=st.integers(0, 1000),
    groups=st.integers(1, 3),
    queries=st.integers(1, 4),
    slots=st.integers(1, 3 * TILE),
    rank_k=st.integers(1, 40),
    rank_v=st.integers(1, 40),
)
@settings(max_examples=40, deadline=None)
def test_kernel_equals_the_formula_for_ragged_lengths_odd_ranks_and_groups(seed, groups, queries, slots, rank_k, rank_v):
    q, K, V = draw(seed, (2, groups * queries, rank_k), (2, groups, slots, rank_k), (2, groups, slots, rank_v))
    lengths = np.random.default_rng(seed).integers(1, slots + 1, 2)
    close(flash_decode(q, K, V, lengths), reference.decode(*tensors(q, K, V, lengths)))


def test_the_formula_is_attention_over_what_counts():
    q, K, V = tensors(*draw(0, (1, 2, 8), (1, 2, 5, 8), (1, 2, 5, 3)))
    expected = torch.nn.functional.scaled_dot_product_attention(q[:, :, None], K[:, :, :3], V[:, :, :3])[:, :, 0]
    torch.testing.assert_close(reference.decode(q, K, V, torch.tensor([3])), expected)


@pytest.mark.parametrize("slots", [TILE - 1, TILE, TILE + 1])
def test_tiles_meet_without_a_gap(slots):
    q, K, V = draw(1, (1, 1, 4), (1, 1, slots, 4), (1, 1, slots, 4))
    close(flash_decode(q, K, V), reference.decode(*tensors(q, K, V)))


def test_what_lies_beyond_the_length_is_never_read():
    q, K, V = draw(2, (1, 2, 4), (1, 1, 300, 4), (1, 1, 300, 4))
    K[:, :, 200:], V[:, :, 200:] = np.nan, np.nan
    assert np.isfinite(flash_decode(q, K, V, np.array([200]))).all()


def test_large_scores_do_not_overflow_and_one_slot_takes_all():
    q, K, V = draw(3, (1, 1, 4), (1, 1, 300, 4), (1, 1, 300, 2))
    K[0, 0, 217] = 1000 * q[0, 0]
    close(flash_decode(q, K, V)[0, 0], torch.from_numpy(V[0, 0, 217]))
    close(flash_decode(q, -K, V), reference.decode(*tensors(q, -K, V)))


@pytest.mark.parametrize("reads", [1, 2, 3, 6])
def test_a_latent_read_once_or_again_for_each_head_gives_the_same(reads):
    q, K, V = draw(4, (2, 6, 20), (2, 1, 300, 20), (2, 1, 300, 7))
    close(flash_decode(q, K, V, heads_per_read=reads), reference.decode(*tensors(q, K, V)))


def test_absorbed_and_folded_decoding_equals_the_reconstructed_path():
    # 4 query heads over 2 key-value heads, H = 16; the output projection is E = 24.
    h, g, H, L, r, rv, E = 4, 2, 16, 150, 9, 11, 24
    q, C_K, C_V, B_K, B_V, O = draw(5, (2, h, H), (2, g, L, r), (2, g, L, rv), (g, r, H), (g, rv, H), (E, h * H))  # noqa: E741
    keys, values = np.einsum("bglr,grd->bgld", C_K, B_K), np.einsum("bglr,grd->bgld", C_V, B_V)
    expected = reference.decode(*tensors(q, keys, values)).flatten(1) @ torch.from_numpy(O).T
    absorbed = reference.absorb_keys(*tensors(q, B_K)).numpy()
    latent = flash_decode(np.ascontiguousarray(absorbed), C_K, C_V, scale=H**-0.5)
    folded = reference.fold_values(*tensors(O, B_V))
    assert folded.shape == (E, h * rv)
    close(latent.reshape(2, -1) @ folded.numpy().T, expected, 1e-3)
    # With the default scale, 1/sqrt(r), the result is another one.
    assert np.abs(flash_decode(np.ascontiguousarray(absorbed), C_K, C_V) - latent).max() > 1e-2


def rotary_case(seed: int, h: int = 4, g: int = 2, H: int = 16, L: int = 150, r: int = 9, rv: int = 5):
    q, C_K, B_K, C_V = draw(seed, (2, h, H), (2, g, L, r), (g, r, H), (2, g, L, rv))
    rng = np.random.default_rng(seed)
    positions = np.stack([np.sort(rng.choice(4 * L, L, replace=False)) for _ in range(2)])  # slots are not positions
    return q, C_K, B_K, C_V, positions, reference.rotary_frequencies(H).numpy()


@pytest.mark.parametrize("lengths", [None, np.array([37, 150])])
def test_rotary_kernel_equals_the_formula(lengths):
    case = rotary_case(6)
    expected = reference.decode_with_rope(*tensors(*case), None if lengths is None else torch.from_numpy(lengths))
    close(flash_decode_with_rope(*case, lengths), expected, 1e-3)


def test_rotation_is_that_of_transformers():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    H, positions = 16, torch.tensor([[0, 3, 4, 900]])
    x = torch.randn(1, 1, 4, H, generator=torch.Generator().manual_seed(0))
    config = LlamaConfig(hidden_size=2 * H, num_attention_heads=2, rope_parameters={"rope_type": "default", "rope_theta": 1e5})
    cos, sin = LlamaRotaryEmbedding(config)(x, positions)
    expected, _ = apply_rotary_pos_emb(x, x, cos, sin)
    found = reference.rotate_by_position(x, positions[:, None], reference.rotary_frequencies(H, 1e5))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_rotating_the_latent_is_not_rotating_the_key():
    _, C_K, B_K, _, positions, _ = rotary_case(7, r=8)
    keys = reference.rotate_by_position(
        torch.from_numpy(C_K[:1, :1] @ B_K[0]), torch.from_numpy(positions[:1, None]), reference.rotary_frequencies(16)
    )
    latents = reference.rotate_by_position(
        torch.from_numpy(C_K[:1, :1]), torch.from_numpy(positions[:1, None]), reference.rotary_frequencies(8)
    )
    assert (latents @ torch.from_numpy(B_K[0]) - keys).abs().max() > 0.1


def test_the_order_of_slots_does_not_matter_but_their_positions_do():
    q, C_K, B_K, C_V, positions, frequencies = rotary_case(8)
    order = np.random.default_rng(0).permutation(C_K.shape[2])
    shuffled = [np.ascontiguousarray(part[:, :, order]) for part in (C_K, C_V)]
    base = flash_decode_with_rope(q, C_K, B_K, C_V, positions, frequencies)
    moved = flash_decode_with_rope(q, shuffled[0], B_K, shuffled[1], np.ascontiguousarray(positions[:, order]), frequencies)
    np.testing.assert_allclose(moved, base, atol=1e-4)
    slots = np.broadcast_to(np.arange(C_K.shape[2]), positions.shape).copy()
    assert np.abs(flash_decode_with_rope(q, C_K, B_K, C_V, slots, frequencies) - base).max() > 1e-2


def test_all_positions_equal_is_no_rotation_up_to_the_query():
    # Scores depend on differences of positions alone: with query and keys at 7, the rotation cancels.
    q, C_K, B_K, C_V, positions, frequencies = rotary_case(9)
    rotated = reference.rotate_by_position(torch.from_numpy(q), torch.full((1, 1), 7), torch.from_numpy(frequencies)).numpy()
    found = flash_decode_with_rope(np.ascontiguousarray(rotated), C_K, B_K, C_V, np.full_like(positions, 7), frequencies)
    plain = reference.decode(*tensors(q, np.einsum("bglr,grd->bgld", C_K, B_K), C_V))
    close(found, plain, 1e-3)


def bad(**changes):
    q, K, V = draw(0, (2, 4, 8), (2, 2, 10, 8), (2, 2, 10, 5))
    return {"q": q, "K": K, "V": V} | changes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (bad(q=np.ones((2, 4, 8))), "q must be a contiguous float32 array"),
        (bad(K=np.ones((2, 2, 8, 10), np.float32).transpose(0, 1, 3, 2)), "K must be a contiguous"),
        (bad(V=np.ones((2, 2, 9, 5), np.float32)), "shapes do not fit"),
        (bad(q=np.ones((2, 3, 8), np.float32)), "shapes do not fit"),
        (bad(q=np.ones((2, 4, 7), np.float32)), "absorb B_K into the queries first"),
        (bad(lengths=np.array([0, 3])), "from 1 to 10, got \\[0, 3\\]"),
        (bad(lengths=np.array([11, 3])), "from 1 to 10"),
        (bad(heads_per_read=3), "must divide the 2 query heads"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        flash_decode(**arguments)


def test_what_does_not_fit_the_rotary_kernel_is_refused():
    q, C_K, B_K, C_V, positions, frequencies = rotary_case(10)
    with pytest.raises(ValueError, match=r"expected \(g, r, H\)"):
        flash_decode_with_rope(q, C_K, B_K[:, :-1], C_V, positions, frequencies)
    with pytest.raises(ValueError, match="H/2"):
        flash_decode_with_rope(q, C_K, B_K, C_V, positions, frequencies[:-1])
    with pytest.raises(ValueError, match="positions must have shape"):
        flash_decode_with_rope(q, C_K, B_K, C_V, positions[:, :-1], frequencies)


def test_kernels_are_compiled_once():
    assert latent_decode._compiled() is latent_decode._compiled()
