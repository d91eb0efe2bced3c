"""Every method and predictor fits the interface: same call, weights of the right shape, nothing read that is not valid."""

from __future__ import annotations

import pytest
import torch
from attention_cases import generator, qkv

from tasks.attention import baselines, predictors
from tasks.attention.vattention import Vattention, VAttentionConfig
from tasks.attention.weighted import causal_valid, scaled_logits

METHODS = {
    "dense": baselines.Dense(),
    "sink_window": baselines.SinkWindow(0.2, 4),
    "topk": baselines.TopK(0.2, 4, 4),
    "topp": baselines.TopP(0.8, 4, 4),
    "random": baselines.UniformSample(0.2, 4, 4),
    "hybrid": baselines.HybridFixed(0.2, 4, 4),
    "vattention": Vattention(VAttentionConfig(sink=4, window=4)),
    "vattention_output": Vattention(VAttentionConfig(sink=4, window=4, mode="sdpa", epsilon=0.5)),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods(name):
    q, k, v = qkv(heads=6, groups=2, rows=5, n=200)
    logits, valid = scaled_logits(q, k), causal_valid(5, 200)
    weights = METHODS[name](logits, valid, logits, generator(), values=v)
    assert weights.shape == logits.shape
    assert weights.dtype == torch.float32
    assert not ((weights > 0) & ~valid).any()
    assert (weights >= 0).all()
    assert (weights.sum(-1) > 0).all()


@pytest.mark.parametrize("predictor", [predictors.oracle, predictors.SimHash(16), predictors.ProductQuantised(iterations=2)])
def test_predictors(predictor):
    q, k, _ = qkv(heads=6, groups=2, rows=5, n=200)
    logits = scaled_logits(q, k)
    scores = predictor(3, q, k, logits)
    assert scores.shape == logits.shape
    together = torch.stack([scores.flatten().double(), logits.flatten().double()])
    assert torch.corrcoef(together)[0, 1] > 0.4
