"""The Triton kernel's source, run block by block by a stand-in for Triton, against the masked dense formulas."""

from __future__ import annotations

import sys

import interpreted_triton
import pytest
import torch

from tasks.attention.kernels.online_softmax import merge_parts
from tasks.low_rank.kernels import reference, split_decode, triton_latent_decode
from tasks.low_rank.kernels.split_decode import RotaryKeys
from tasks.low_rank.kernels.triton_latent_decode import partial_attention
from tasks.quantisation.quantisers import quantise


@pytest.fixture
def triton(monkeypatch):
    interpreted_triton.install(monkeypatch)
    triton_latent_decode._kernel.cache_clear()
    yield
    triton_latent_decode._kernel.cache_clear()
    triton_latent_decode.tl = None


def draw(seed: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=g) for shape in shapes]


LENGTHS = torch.tensor([150, 20])


def decoded(q, K, V, splits=3, scale=None, rotary=None, key_scales=None, value_scales=None, lengths=LENGTHS):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    found = partial_attention(q, K, V, lengths, scale, rotary, key_scales, value_scales, splits)
    return merge_parts(found.top, found.total, found.values)


@pytest.mark.parametrize(("heads", "groups", "rank_k", "rank_v"), [(4, 4, 32, 32), (6, 2, 11, 23), (40, 2, 28, 5)])
@pytest.mark.parametrize("splits", [1, 3])
def test_dense_and_absorbed_caches(triton, heads, groups, rank_k, rank_v, splits):
    q, K, V = draw(0, (2, heads, rank_k), (2, groups, 150, rank_k), (2, groups, 150, rank_v))
    torch.testing.assert_close(decoded(q, K, V, splits), reference.decode(q, K, V, LENGTHS), atol=1e-4, rtol=1e-4)


def rotary_case():
    q, C_K, B_K, C_V = draw(1, (2, 6, 64), (2, 2, 150, 28), (2, 28, 64), (2, 2, 150, 28))
    g = torch.Generator().manual_seed(1)
    positions = torch.stack([torch.randperm(900, generator=g)[:150].sort().values for _ in range(2)])
    return q, C_K, C_V, RotaryKeys(B_K, positions, reference.rotary_frequencies(64))


def test_rebuilt_and_rotated_keys(triton):
    q, C_K, C_V, rotary = rotary_case()
    expected = reference.decode_with_rope(q, C_K, rotary.B_K, C_V, rotary.positions, rotary.frequencies, LENGTHS)
    torch.testing.assert_close(decoded(q, C_K, C_V, rotary=rotary), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("with_rope", [False, True])
def test_int8_latents(triton, with_rope):
    q, C_K, C_V, rotary = rotary_case()
    (K, K_scales), (V, V_scales) = quantise(C_K, 8), quantise(C_V, 8)
    given = {"key_scales": K_scales[..., 0].contiguous(), "value_scales": V_scales[..., 0].contiguous()}
    if with_rope:
        expected = reference.decode_with_rope(q, K * K_scales, rotary.B_K, V * V_scales, rotary.positions, rotary.frequencies, LENGTHS)
        found = decoded(q, K, V, rotary=rotary, **given)
    else:
        q = reference.absorb_keys(q, rotary.B_K)
        expected = reference.decode(q, K * K_scales, V * V_scales, LENGTHS, scale=0.125)
        found = decoded(q, K, V, scale=0.125, **given)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


def test_bfloat16_is_as_exact_as_its_rounding(triton):
    q, K, V = (part.bfloat16() for part in draw(2, (2, 4, 32), (2, 4, 150, 32), (2, 4, 150, 32)))
    expected = reference.decode(q.float(), K.float(), V.float(), LENGTHS)
    torch.testing.assert_close(decoded(q, K, V), expected, atol=2e-2, rtol=2e-2)


def test_it_is_the_torch_algorithm_part_by_part(triton):
    q, K, V = draw(3, (2, 6, 11), (2, 2, 150, 11), (2, 2, 150, 7))
    arguments = (q, K, V, LENGTHS, 0.3, None, None, None, 3)
    found, expected = partial_attention(*arguments), split_decode.partial_attention(*arguments)
    for name in ("values", "top", "total"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), atol=1e-4, rtol=1e-4)


def test_nothing_beyond_the_length_is_read(triton):
    q, K, V = draw(4, (2, 2, 16), (2, 2, 150, 16), (2, 2, 150, 16))
    expected = reference.decode(q, K, V, LENGTHS)
    K[1, :, 20:], V[1, :, 20:] = float("nan"), float("nan")
    torch.testing.assert_close(decoded(q, K, V), expected, atol=1e-4, rtol=1e-4)


def test_types_and_head_dimensions_that_do_not_fit_are_refused():
    q, C_K, C_V, rotary = rotary_case()
    with pytest.raises(ValueError, match="must have the queries' type"):
        decoded(q, C_K.double(), C_V, rotary=rotary)
    narrow = RotaryKeys(rotary.B_K[..., :24].contiguous(), rotary.positions, rotary.frequencies[:12])
    with pytest.raises(ValueError, match="power of two of at least 16 to rotate keys, got 12"):
        decoded(q[..., :24].contiguous(), C_K, C_V, rotary=narrow)


def test_a_missing_triton_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    triton_latent_decode._kernel.cache_clear()
    q, K, V = draw(5, (2, 2, 16), (2, 2, 150, 16), (2, 2, 150, 16))
    with pytest.raises(ImportError, match="pip install triton"):
        decoded(q, K, V)
