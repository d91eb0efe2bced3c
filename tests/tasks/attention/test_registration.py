from __future__ import annotations

import pytest
import torch
from attention_cases import exact_attention, generator, qkv, tiny_llama

from tasks.attention.registration import (
    NAME,
    STATE,
    attention_forward,
    attention_layers,
    configure,
    generator_for,
    register,
    sparse_attention,
    valid_keys,
)
from tasks.attention.vattention import VAttentionConfig

SPARSE = VAttentionConfig(sink=4, window=4, heavy=4, base=0.2)
GREEDY = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


@pytest.fixture(scope="module")
def ids():
    return torch.randint(1, 64, (2, 150), generator=generator())


def logits_after(model, ids, rows=5):
    """Logits of the last rows, after a dense prefill of what is before them."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    model(input_ids=ids[:, :-rows], cache=cache, use_cache=True)
    return model(input_ids=ids[:, -rows:], cache=cache, use_cache=True).logits


def test_reading_everything_generates_what_dense_attention_does(model, ids):
    dense = model.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY)
    with sparse_attention(model, VAttentionConfig(heavy=1.0)):
        assert torch.equal(model.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY), dense)


def test_question_rows_see_what_dense_attention_sees(model, ids):
    dense = logits_after(model, ids)
    with sparse_attention(model, VAttentionConfig(heavy=1.0)):
        assert torch.allclose(logits_after(model, ids), dense, atol=2e-4)
    with sparse_attention(model, SPARSE):
        assert not torch.allclose(logits_after(model, ids), dense, atol=1e-3)


def test_padding_on_the_left_is_never_read(model, ids):
    mask = torch.ones_like(ids)
    mask[1, :60] = 0
    seen = []
    with sparse_attention(model, SPARSE, observer=seen.append):
        model.generate(ids, attention_mask=mask, **GREEDY)
    assert seen
    assert all(o.weights[1, ..., :60].sum() == 0 and (o.weights[1, ..., 60:64] == 1).all() for o in seen)


def test_padded_and_alone_agree_when_everything_is_read(model, ids):
    mask = torch.ones_like(ids)
    mask[1, :60] = 0
    with sparse_attention(model, VAttentionConfig(heavy=1.0)):
        together = model.generate(ids, attention_mask=mask, **GREEDY)[1, 150:]
        alone = model.generate(ids[1:, 60:], attention_mask=mask[1:, 60:], **GREEDY)[0, 90:]
    assert torch.equal(together, alone)


def test_the_old_implementation_comes_back(model):
    with sparse_attention(model, SPARSE):
        assert model.config._attn_implementation == NAME
    with pytest.raises(IndexError), sparse_attention(model, SPARSE):
        model(input_ids=torch.tensor([[64]]))
    assert model.config._attn_implementation == "sdpa"
    assert not any(hasattr(layer, STATE) for layer in attention_layers(model))


def test_contexts_nest(model):
    with sparse_attention(model, SPARSE) as outer:
        with sparse_attention(model, VAttentionConfig()) as inner:
            assert getattr(attention_layers(model)[0], STATE) is inner
        assert getattr(attention_layers(model)[0], STATE) is outer
        assert model.config._attn_implementation == NAME


def test_set_attn_implementation_alone_uses_the_defaults(ids):
    model = tiny_llama(layers=1)
    register()
    model.set_attn_implementation(NAME)
    with pytest.warns(UserWarning, match="below 30"):
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY)
    assert out.shape == (2, 156)
    configure(model, VAttentionConfig(heavy=1.0))
    model.set_attn_implementation("sdpa")
    dense = model.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY)
    model.set_attn_implementation(NAME)
    assert torch.equal(model.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY), dense)


def test_the_same_seed_gives_the_same_numbers_and_another_one_others(model, ids):
    results = []
    for seed in (0, 0, 1):
        with sparse_attention(model, SPARSE, seed=seed):
            results.append(logits_after(model, ids))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_layers_and_steps_draw_different_samples():
    draws = {
        (seed, layer, step): torch.rand(1, generator=generator_for(seed, layer, step)).item()
        for seed in (0, 1)
        for layer in (0, 1)
        for step in (0, 1)
    }
    assert len(set(draws.values())) == 8


def test_samples_do_not_depend_on_the_order_of_layers(model):
    q, k, v = qkv(heads=6, rows=2, n=90)
    layers = attention_layers(model)
    runs = []
    for order in (layers, layers[::-1]):
        configure(model, SPARSE)
        runs.append({layer.layer_idx: attention_forward(layer, q, k, v, None)[0] for layer in order})
    assert all(torch.equal(runs[0][i], runs[1][i]) for i in runs[0])
    assert not torch.equal(runs[0][0], runs[0][1])
    for layer in layers:
        delattr(layer, STATE)


def test_many_rows_go_in_blocks(model, monkeypatch):
    q, k, v = qkv(heads=6, rows=7, n=90)
    layer = attention_layers(model)[0]
    configure(model, VAttentionConfig(heavy=1.0))
    monkeypatch.setattr("tasks.attention.registration.ELEMENTS", 6 * 90 * 2)
    out, none = attention_forward(layer, q, k, v, None)
    assert none is None
    assert torch.allclose(out.transpose(1, 2), exact_attention(q, k, v), atol=1e-5)
    delattr(layer, STATE)


def test_a_soft_cap_is_applied(model):
    q, k, v = qkv(heads=6, rows=2, n=50)
    layer = attention_layers(model)[0]
    configure(model, VAttentionConfig(heavy=1.0))
    capped, _ = attention_forward(layer, q, k, v, None, softcap=0.5)
    plain, _ = attention_forward(layer, q, k, v, None)
    assert not torch.allclose(capped, plain, atol=1e-2)
    delattr(layer, STATE)


def test_masks_of_both_kinds_mean_the_same():
    bools = torch.tensor([[[[True, False, True]]]])
    additive = torch.where(bools, 0.0, torch.finfo(torch.float32).min)
    assert torch.equal(valid_keys(additive, 1, 3, "cpu"), bools)
    assert torch.equal(valid_keys(bools, 1, 3, "cpu"), bools)
    assert valid_keys(None, 1, 4, "cpu", window=2).tolist() == [[False, False, True, True]]


def test_what_cannot_be_computed_is_refused(model):
    q, k, v = qkv(heads=6, rows=1)
    layer = attention_layers(model)[0]
    with pytest.raises(ValueError, match="dropout must be 0"):
        attention_forward(layer, q, k, v, None, dropout=0.1)
    with pytest.raises(ValueError, match="cannot compute s_aux"):
        attention_forward(layer, q, k, v, None, s_aux=torch.zeros(6))
    with pytest.raises(ValueError, match="either config= or method="):
        configure(model, SPARSE, method=lambda *a, **k: None)
    with pytest.raises(ValueError, match="'hashattention' must be given as predictor="):
        configure(model, VAttentionConfig(predictor="hashattention"))
    with pytest.raises(ValueError, match="no attention layers"):
        configure(torch.nn.Linear(2, 2), SPARSE)
