from __future__ import annotations

import pytest
import torch
from attention_cases import exact_attention, qkv

from tasks.attention.weighted import causal_valid, exponentials, repeat_heads, scaled_logits, weighted_attention


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_unit_weights_are_exact_attention(groups):
    q, k, v = qkv(groups=groups)
    logits = scaled_logits(q, k)
    weights = causal_valid(3, 120).expand(logits.shape).float()
    assert torch.allclose(weighted_attention(logits, weights, repeat_heads(v, 4)), exact_attention(q, k, v), atol=1e-5)


def test_a_weight_of_two_is_the_same_key_twice():
    q, k, v = qkv(heads=1, groups=1, rows=1, n=5)
    logits = scaled_logits(q, k)
    weights = torch.tensor([1.0, 2.0, 0.0, 1.0, 1.0]).expand(1, 1, 1, 5)
    twice = [0, 1, 1, 3, 4]
    repeated = weighted_attention(logits[..., twice], torch.ones(1, 1, 1, 5), v[:, :, twice])
    assert torch.allclose(weighted_attention(logits, weights, v), repeated, atol=1e-6)


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[1000.0, 2000.0, 1999.0]])
    out = weighted_attention(logits, torch.tensor([[1.0, 0.0, 1.0]]), torch.eye(3))
    assert out.tolist() == [[0.0, 0.0, 1.0]]
    assert exponentials(logits, torch.tensor([[True, True, True]]))[0, 1] == 1.0


def test_a_row_that_reads_nothing_gives_zero():
    assert weighted_attention(torch.zeros(1, 3), torch.zeros(1, 3), torch.ones(3, 2)).tolist() == [[0.0, 0.0]]


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="5 query heads cannot share 2"):
        repeat_heads(torch.zeros(1, 2, 3, 4), 5)


def test_causal_rows_are_the_last_positions():
    assert causal_valid(2, 4).tolist() == [[True, True, True, False], [True, True, True, True]]
    assert causal_valid(2, 4, window=2).tolist() == [[False, True, True, False], [False, False, True, True]]


def test_bfloat16_inputs_are_computed_in_float32():
    q, k, _ = (x.bfloat16() for x in qkv(seed=1))
    assert scaled_logits(q, k).dtype == torch.float32
    assert torch.equal(scaled_logits(q, k), scaled_logits(q.float(), k.float()))
