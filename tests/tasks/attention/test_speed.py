from __future__ import annotations

import pytest
import torch
from attention_cases import exact_attention, generator
from pydantic import ValidationError

from tasks.attention.kernels import fused_decode
from tasks.attention.speed import SpeedParams, arms_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_timed_computes_attention(dtype):
    g = generator()
    keys, values = (torch.randn(2, 600, 32, generator=g).to(dtype) for _ in range(2))
    query, planes = torch.randn(4, 32, generator=g), fused_decode.signature_planes(32, g)
    params = SpeedParams(contexts=(600,), heads=4, groups={"gqa": 2}, width=32, densities=(10, 100))
    arms, density = arms_of(query, keys, values, fused_decode.signatures(keys, planes), planes, params)
    exact = exact_attention(query[None, :, None].to(dtype).float(), keys[None].float(), values[None].float())[0, :, 0]
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    for name in ("sdpa", "folded", "matmul", "dense_kernel", "attend_100"):
        assert torch.allclose(arms[name]().float(), exact, atol=tolerance), name
    out, counts = arms["numba_10"]()
    assert (counts == 60).all()
    assert not torch.allclose(out, exact, atol=1e-4)
    assert 0 < density <= 1


def test_calls_take_queries_and_draws_in_turn():
    g = generator()
    keys, values = (torch.randn(2, 600, 32, generator=g) for _ in range(2))
    query, planes = torch.randn(4, 32, generator=g), fused_decode.signature_planes(32, g)
    params = SpeedParams(contexts=(600,), heads=4, groups={"gqa": 2}, width=32, densities=(10,), steps=3)
    arms, _ = arms_of(query, keys, values, fused_decode.signatures(keys, planes), planes, params)
    for name in ("attend_10", "torch_10"):
        outputs = [arms[name]() for _ in range(4)]
        assert torch.equal(outputs[3], outputs[0]), name
        assert not torch.allclose(outputs[1], outputs[0], atol=0.1), name


def test_ratios_are_to_the_fastest_dense_variant(pipeline):
    metrics = pipeline[1]["evaluate-speed"]
    assert metrics["dense_kernel.speedup.f32_mha_1k"] <= 1.0 + 1e-9
    assert metrics["numba_05.speedup.f32_mha_1k.n"] == 2
    assert all(value > 0 for name, value in metrics.items() if ".ms." in name and not name.endswith((".lo", ".se")))


def test_short_contexts_are_refused():
    with pytest.raises(ValidationError, match="at least 256 keys, got 100"):
        SpeedParams(contexts=(100,))
