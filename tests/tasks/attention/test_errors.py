from __future__ import annotations

import math

import pytest
import torch
from attention_cases import generator

from tasks.attention.errors import Exact, row_errors
from tasks.attention.weighted import weighted_attention


def case():
    logits = torch.randn(2, 3, 20, generator=generator()) * 2
    valid = torch.ones(3, 20, dtype=torch.bool)
    valid[0, 15:] = False
    return logits, valid, torch.randn(2, 20, 4, generator=generator(1))


def test_exact_attention_has_no_error():
    logits, valid, values = case()
    found = row_errors(Exact.of(logits, valid, values), valid.expand(2, 3, 20).float(), values)
    assert found.err.max() < 1e-6
    assert found.derr.abs().max() < 1e-6
    assert (found.density == 1).all()


def test_errors_equal_those_computed_row_by_row():
    logits, valid, values = case()
    weights = (torch.rand(2, 3, 20, generator=generator(2)) < 0.4).float() * 1.7 * valid
    weights[..., 0] = 1.0
    found = row_errors(Exact.of(logits, valid, values), weights, values)
    for h in range(2):
        for r in range(3):
            e = torch.exp(logits[h, r].double()) * valid[r]
            exact, w = e @ values[h].double() / e.sum(), weights[h, r].double()
            output = (w * e) @ values[h].double() / (w * e).sum()
            assert found.err[h, r].item() == pytest.approx(((output - exact).norm() / exact.norm()).item(), rel=1e-4)
            assert found.derr[h, r].item() == pytest.approx((((w * e).sum() - e.sum()) / e.sum()).item(), rel=1e-4)
            assert found.density[h, r].item() == pytest.approx(((w > 0).sum() / valid[r].sum()).item())


def test_a_known_output_is_taken_as_it_is():
    logits, valid, values = case()
    weights = valid.expand(2, 3, 20).float()
    output = weighted_attention(logits, weights, values)
    exact = Exact.of(logits, valid, values)
    assert row_errors(exact, weights, values, 2 * output).err.numpy() == pytest.approx(1.0, abs=1e-5)


def test_a_truncated_sum_is_biased_low():
    logits, valid, values = case()
    weights = valid.expand(2, 3, 20).float().clone()
    weights[..., :5] = 0
    assert (row_errors(Exact.of(logits, valid, values), weights, values).derr < 0).all()


def test_the_entropy_of_equal_scores_is_the_logarithm_of_their_number():
    values = torch.zeros(8, 1)
    assert Exact.of(torch.zeros(1, 8), torch.ones(1, 8, dtype=torch.bool), values).entropy().item() == pytest.approx(math.log(8))
    peaked = torch.tensor([[100.0] + [0.0] * 7])
    assert Exact.of(peaked, torch.ones(1, 8, dtype=torch.bool), values).entropy().item() == pytest.approx(0.0, abs=1e-6)
