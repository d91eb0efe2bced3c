from __future__ import annotations

import pytest
import torch
from attention_cases import generator, tiny_llama

from tasks.attention.recording import record
from tasks.attention.registration import sparse_attention
from tasks.attention.vattention import VAttentionConfig


@pytest.fixture(scope="module")
def recorded():
    model = tiny_llama(layers=3)
    ids = torch.randint(1, 64, (1, 90), generator=generator())
    return model, ids, record(model, ids[:, :80], ids[:, 80:])


def test_shapes_and_order(recorded):
    _, _, layers = recorded
    assert [r.layer for r in layers] == [0, 1, 2]
    assert layers[0].query.shape == (1, 6, 10, 8)
    assert layers[0].key.shape == layers[0].value.shape == (1, 2, 90, 8)
    assert layers[0].logits().shape == (1, 6, 10, 90)
    assert layers[0].valid().shape == (10, 90)
    assert layers[0].values().shape == (1, 2, 90, 8)


def test_what_is_recorded_is_what_exact_attention_inside_the_model_sees(recorded):
    model, ids, layers = recorded
    seen = {}
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    model(input_ids=ids[:, :80], cache=cache)
    with sparse_attention(model, VAttentionConfig(heavy=1.0), observer=lambda o: seen.setdefault(o.layer, o)):
        model(input_ids=ids[:, 80:], cache=cache)
    for r in layers:
        assert torch.allclose(r.logits(), seen[r.layer].logits, atol=1e-4)
        assert torch.equal(r.valid().expand(1, 6, 10, 90), seen[r.layer].valid.expand(1, 6, 10, 90))


def test_only_the_layers_that_were_asked_for(recorded):
    model, ids, layers = recorded
    some = record(model, ids[:, :80], ids[:, 80:], layers=[1])
    assert [r.layer for r in some] == [1]
    assert torch.equal(some[0].query, layers[1].query)
    assert model.config._attn_implementation == "sdpa"


def test_the_last_rows_keep_their_keys(recorded):
    _, _, layers = recorded
    few = layers[0].rows(3)
    assert few.query.shape[2] == 3
    assert torch.equal(few.valid(), layers[0].valid()[-3:])
    assert layers[0].rows(99) is layers[0]
