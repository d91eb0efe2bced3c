from __future__ import annotations

import pytest
import torch
from attention_cases import generator
from pydantic import ValidationError

from tasks.attention.hash_attention import (
    HashAttention,
    HashExamples,
    HashParams,
    load_hash_attention,
    membership_loss,
    recall_at,
    save_hash_attention,
    top_threshold,
    train_hash_attention,
)
from tasks.attention.weighted import causal_valid, scaled_logits

SMALL = HashParams(hidden=24, bits=24, steps=150, rate=1e-2, positives=16, keys=128, rows=24)


def example(seed=0, layers=2, heads=4, groups=2, rows=24, n=400, width=12) -> HashExamples:
    """Queries and keys with structure to learn: few directions matter, and keys have a common offset."""
    g, fixed = generator(seed), generator(99)
    turn = torch.randn(layers, groups, width, width, generator=fixed) / width**0.5
    spread = torch.linspace(2.5, 0.1, width)
    key = torch.randn(layers, groups, n, width, generator=g) * spread @ turn + torch.randn(width, generator=fixed)
    query = (torch.randn(layers, heads, rows, width, generator=g) * spread) @ torch.linalg.pinv(turn).mT.repeat_interleave(
        heads // groups, 1
    )
    return HashExamples(query, key, causal_valid(rows, n))


def recall(net, e: HashExamples, count=16) -> float:
    found = []
    for layer in range(e.query.shape[0]):
        query, key = e.query[layer : layer + 1], e.key[layer : layer + 1]
        logits = scaled_logits(query, key)
        found.append(recall_at(net(layer, query, key, logits), logits, e.valid.expand(logits.shape), count).mean())
    return float(torch.stack(found).mean())


def test_training_raises_recall_on_prompts_that_were_not_seen():
    trained = train_hash_attention([example(s) for s in range(4)], SMALL)
    blank = train_hash_attention([example(s) for s in range(4)], SMALL.model_copy(update={"steps": 0}))
    chance = 16 / 400
    held_out = example(50)
    assert recall(blank, held_out) < 3 * chance  # untrained networks hardly rank
    assert recall(trained, held_out) > 5 * chance
    assert recall(trained, held_out) > 2 * recall(blank, held_out)


def test_training_is_a_function_of_its_seed():
    params = SMALL.model_copy(update={"steps": 5})
    one, two = (train_hash_attention([example()], params).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    other = train_hash_attention([example()], params.model_copy(update={"seed": 1})).state_dict()
    assert not torch.equal(one["slope"], other["slope"])


def test_all_layers_and_heads_at_once_are_each_by_itself():
    """The slow twin: one small network after the other."""
    net = HashAttention(2, 4, 2, 12, SMALL)
    e = example()
    net.query_networks.standardise([e.query])
    layer, head = 1, 3
    x = (e.query[layer, head] - net.query_networks.center[layer, head]) / net.query_networks.scale[layer, head]
    for number, (w, b) in enumerate(zip(net.query_networks.weights, net.query_networks.biases, strict=True)):
        x = x @ w[layer, head] + b[layer, head]
        if number < 2:
            x = x * torch.sigmoid(x)
    torch.testing.assert_close(net.query_networks(e.query)[layer, head], x)
    torch.testing.assert_close(net.query_networks(e.query[layer][None], layer)[0, head], x)


def test_scores_are_agreeing_minus_disagreeing_bits():
    net = HashAttention(2, 4, 2, 12, SMALL)
    e = example(n=30)
    query, key = e.query[1:2], e.key[1:2]
    q, k = net.query_bits(1, query) > 0, net.key_bits(1, key) > 0
    agree = (q[:, :, :, None] == k.repeat_interleave(2, 1)[:, :, None]).sum(-1)
    assert torch.equal(net(1, query, key, torch.empty(0)), (2 * agree - 24).float())


def test_standardised_inputs_have_mean_zero_and_spread_one():
    net = HashAttention(2, 4, 2, 12, SMALL)
    e = example()
    net.key_networks.standardise([e.key])
    scaled = (e.key - net.key_networks.center) / net.key_networks.scale
    torch.testing.assert_close(scaled.mean(2), torch.zeros(2, 2, 12), atol=1e-5, rtol=0)
    torch.testing.assert_close(scaled.std(2, unbiased=False), torch.ones(2, 2, 12), atol=1e-4, rtol=0)


def test_the_threshold_leaves_as_many_keys_as_are_asked_for():
    e = example()
    logits = scaled_logits(e.query, e.key)
    above = (logits >= top_threshold(e, 16)[..., None]) & e.valid
    assert (above.sum(-1) == 16).all()


def test_the_loss_is_blind_to_keys_that_may_not_be_read():
    net = HashAttention(1, 4, 2, 12, SMALL.model_copy(update={"keys": 50}))
    e = example(layers=1, n=50)
    hidden = HashExamples(e.query, torch.cat([e.key[:, :, :26], e.key[:, :, 26:] * 100], 2), torch.arange(50).expand(24, 50) < 26)
    shown = HashExamples(e.query, e.key, hidden.valid)
    losses = [membership_loss(net, x, top_threshold(x, 4), generator(3)).item() for x in (shown, hidden)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_networks_come_back_from_a_file_as_they_were(tmp_path):
    net = train_hash_attention([example()], SMALL.model_copy(update={"steps": 3}))
    save_hash_attention(net, tmp_path / "hash.safetensors")
    read = load_hash_attention(tmp_path / "hash.safetensors")
    assert read.params == net.params
    e = example(5)
    assert torch.equal(read(0, e.query[:1], e.key[:1], torch.empty(0)), net(0, e.query[:1], e.key[:1], torch.empty(0)))
    first = (tmp_path / "hash.safetensors").read_bytes()
    save_hash_attention(net, tmp_path / "hash.safetensors")
    assert (tmp_path / "hash.safetensors").read_bytes() == first


def test_recall_of_itself_is_one():
    logits = torch.randn(2, 3, 50, generator=generator())
    valid = causal_valid(3, 50).expand(2, 3, 50)
    assert recall_at(logits, logits, valid, 10).tolist() == torch.ones(2, 3).tolist()
    assert recall_at(-logits, logits, valid, 10).max() == 0


def test_bad_input_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one prompt"):
        train_hash_attention([], SMALL)
    with pytest.raises(ValueError, match="agree in layers, heads and width"):
        train_hash_attention([example(), example(heads=2)], SMALL)
    with pytest.raises(ValueError, match="multiple of 2"):
        HashAttention(1, 3, 2, 8, SMALL)
    with pytest.raises(FileNotFoundError, match="train the predictor"):
        load_hash_attention(tmp_path / "none.safetensors")
    with pytest.raises(ValidationError, match="bits"):
        HashParams(bits=65)
