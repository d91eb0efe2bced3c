from __future__ import annotations

import itertools
import math

import pytest
import torch
from attention_cases import exact_attention, generator, qkv

from tasks.attention.baselines import Collisions, Dense, HybridFixed, SinkWindow, TopK, TopP, UniformSample
from tasks.attention.vattention import VAttentionConfig, select
from tasks.attention.weighted import causal_valid, exponentials, repeat_heads, scaled_logits, weighted_attention

SIZED = [SinkWindow(0.2, sink=4), TopK(0.2, 4, 4), UniformSample(0.2, 4, 4), HybridFixed(0.2, 4, 4)]


def case(rows=3, n=100, seed=0):
    query, key, value = qkv(rows=rows, n=n, seed=seed)
    logits = scaled_logits(query, key)
    return logits, causal_valid(rows, n), repeat_heads(value, 4).float()


def weights_of(method, logits, valid, seed=0):
    return method(logits, valid, logits, generator(seed))


@pytest.mark.parametrize("method", SIZED, ids=lambda m: type(m).__name__)
def test_each_row_reads_the_share_that_was_asked_for(method):
    logits, valid, _ = case()
    read = weights_of(method, logits, valid) > 0
    assert torch.equal(read.sum(-1), torch.ceil(valid.sum(-1) * 0.2 - 1e-6).long().expand(1, 4, 3))
    assert not (read & ~valid).any()


@pytest.mark.parametrize("method", [*SIZED, Dense(), TopP(0.9, 4, 4), Collisions(4, 4)], ids=lambda m: type(m).__name__)
def test_ends_are_always_read_with_weight_one(method):
    logits, valid, _ = case()
    weights = method(logits, valid, torch.zeros_like(logits), generator())
    assert (weights[..., :4] == 1).all()
    for row in range(3):
        last = 98 + row
        assert (weights[..., row, last - 4 : last] == 1).all()


@pytest.mark.parametrize("method", [Dense(), TopK(1.0), UniformSample(1.0), HybridFixed(1.0), TopP(1.0), SinkWindow(1.0)], ids=repr)
def test_reading_everything_is_exact_attention(method):
    query, key, value = qkv(rows=3, n=100)
    logits = scaled_logits(query, key)
    weights = weights_of(method, logits, causal_valid(3, 100))
    output = weighted_attention(logits, weights, repeat_heads(value, 4))
    torch.testing.assert_close(output, exact_attention(query, key, value), atol=1e-5, rtol=1e-5)


def test_top_k_reads_the_heaviest_keys_between_the_ends():
    logits, valid, _ = case(rows=1)
    read = weights_of(TopK(0.2, 4, 4), logits, valid)[0, 0, 0] > 0
    inner = logits[0, 0, 0, 4:96]
    assert set((inner.topk(12).indices + 4).tolist()) == set(read[4:96].nonzero()[:, 0].add(4).tolist())


def test_top_k_follows_the_scores_not_the_logits():
    logits, valid, _ = case(rows=1)
    weights = TopK(0.2, 4, 4)(logits, valid, -logits, generator())
    inner = logits[0, 0, 0, 4:96]
    assert set(inner.topk(12, largest=False).indices.tolist()) == set(weights[0, 0, 0, 4:96].nonzero()[:, 0].tolist())


@pytest.mark.parametrize("p", [0.3, 0.6, 0.9, 0.99])
def test_top_p_reads_the_fewest_keys_that_hold_the_share(p):
    """The slow twin: add the heaviest key until the share is reached."""
    logits, valid, _ = case(seed=3)
    weights = weights_of(TopP(p, 4, 4), logits, valid)
    e = exponentials(logits, valid)
    share = (e / e.sum(-1, keepdim=True)).double()
    for h, r in itertools.product(range(4), range(3)):
        seen = 98 + r
        ends = {*range(4), *range(seen - 4, seen)}
        read, mass = set(ends), sum(float(share[0, h, r, j]) for j in ends)
        for j in sorted(set(range(seen)) - ends, key=lambda j: -float(share[0, h, r, j])):
            if mass >= p - 1e-6:
                break
            read.add(j)
            mass += float(share[0, h, r, j])
        assert set(weights[0, h, r].nonzero()[:, 0].tolist()) == read


@pytest.mark.parametrize("method", [UniformSample(0.2, 4, 4), HybridFixed(0.2, 4, 4)], ids=lambda m: type(m).__name__)
def test_weights_stand_for_every_key(method):
    logits, valid, _ = case()
    torch.testing.assert_close(weights_of(method, logits, valid).sum(-1), valid.sum(-1).float().expand(1, 4, 3))


def test_the_hybrid_divides_what_the_ends_leave():
    logits, valid, _ = case(rows=1)
    weights = weights_of(HybridFixed(0.3, 4, 4, heavy_share=0.25), logits, valid)
    assert ((weights == 1).sum(-1) == 8 + 6).all()  # 30 keys, 8 at the ends, round(22 / 4) = 6 heavy (ties to even), 16 sampled
    assert ((weights > 1).sum(-1) == 16).all()
    assert weights.max() == pytest.approx((100 - 14) / 16)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_hybrid_at_its_extremes_is_sampling_alone_or_top_k(share):
    logits, valid, _ = case()
    twin = TopK(0.2, 4, 4) if share else UniformSample(0.2, 4, 4)
    assert torch.equal(weights_of(HybridFixed(0.2, 4, 4, heavy_share=share), logits, valid), weights_of(twin, logits, valid))


def test_uniform_sampling_is_vattention_without_heavy_keys_and_with_a_bound_that_asks_for_nothing():
    logits, valid, _ = case(rows=2, n=109)
    config = VAttentionConfig(sink=4, window=4, heavy=0, base=12, base_min=2, epsilon=0.99, delta=0.99)
    mine = UniformSample(density=20 / 108, sink=4, window=4)
    assert torch.equal(weights_of(mine, logits[..., :1, :], valid[:1]), select(logits[..., :1, :], valid[:1], config, generator()).weights)


def test_samples_are_unbiased():
    logits, valid, _ = case(rows=1, n=60)
    e = exponentials(logits, valid)
    draws = torch.stack([(weights_of(UniformSample(0.3, 2, 2), logits, valid, s) * e).sum(-1).flatten() for s in range(800)])
    assert ((draws.mean(0) - e.sum(-1).flatten()).abs() < 4 * draws.std(0) / math.sqrt(800)).all()


def test_beginning_and_end_that_overlap_are_not_counted_twice():
    logits, valid, _ = case(rows=1, n=6)
    for method in (SinkWindow(1.0, 4), TopK(1.0, 4, 4), UniformSample(1.0, 4, 4), HybridFixed(1.0, 4, 4), TopP(0.5, 4, 4)):
        assert torch.equal(weights_of(method, logits, valid), torch.ones(1, 4, 1, 6)), method


def test_collisions_take_the_weights_they_are_given_between_the_ends():
    logits, valid, _ = case(rows=1)
    scores = torch.where(torch.rand(logits.shape, generator=generator()) < 0.2, 3.0, 0.0)
    weights = Collisions(4, 4)(logits, valid, scores, generator())
    assert torch.equal(weights[..., 4:96], scores[..., 4:96])
    with pytest.raises(ValueError, match="use the predictor MagicPIG"):
        Collisions()(logits, valid, logits, generator())


@pytest.mark.parametrize("density", [0.0, -0.1, 1.5, math.nan])
@pytest.mark.parametrize("make", [SinkWindow, TopK, UniformSample, HybridFixed])
def test_impossible_densities_are_refused(make, density):
    with pytest.raises(ValueError, match="density must lie in"):
        make(density)


def test_impossible_shares_are_refused():
    with pytest.raises(ValueError, match="p must lie in"):
        TopP(0.0)
    with pytest.raises(ValueError, match="heavy_share must lie in"):
        HybridFixed(0.1, heavy_share=1.1)
