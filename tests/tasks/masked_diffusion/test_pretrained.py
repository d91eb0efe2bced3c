from __future__ import annotations

import json

import pytest
import torch
from tiny_checkpoints import bidirectional_logits, save_dream, save_llada

from tasks.masked_diffusion.decoding import Specials
from tasks.masked_diffusion.prefix_schedule import LspParams, lsp_decode
from tasks.masked_diffusion.pretrained import dream_name, kind_of, llada_name, load_denoiser
from tasks.masked_diffusion.schedulers import LeftToRightParams, QuotaParams, ThresholdParams, decode

TOKENS = [5, 9, 3, 7, 2, 1, 1, 1]


def test_llada_is_a_llama_that_sees_everything(tmp_path):
    twin = save_llada(tmp_path)
    ours = load_denoiser(tmp_path, "float32")
    logits = ours(torch.tensor([TOKENS]), torch.arange(8))[0]
    torch.testing.assert_close(logits, bidirectional_logits(twin, TOKENS), rtol=1e-4, atol=1e-5)
    assert (ours.config.mask_id, ours.config.eos_id, ours.lookback) == (1, 0, 0)


def test_dream_is_a_qwen_that_sees_everything_and_predicts_one_ahead(tmp_path):
    twin = save_dream(tmp_path)
    ours = load_denoiser(tmp_path, "float32")
    logits = ours(torch.tensor([TOKENS]), torch.arange(8))[0]
    torch.testing.assert_close(logits[1:], bidirectional_logits(twin, TOKENS)[:-1], rtol=1e-4, atol=1e-5)
    assert ours.lookback == 1
    assert ours.config.key_heads == 2


@pytest.mark.parametrize("save", [save_llada, save_dream])
def test_a_cached_call_sees_what_an_uncached_one_sees(tmp_path, save):
    save(tmp_path)
    model = load_denoiser(tmp_path, "float32")
    cache = model.new_cache(8)
    cache.begin(0, 8)
    model(torch.tensor([TOKENS]), torch.arange(8), cache)
    cache.freeze(4)
    cache.begin(4, 4)
    with_cache = model(torch.tensor([TOKENS[4:]]), torch.arange(4, 8), cache)[0]
    whole = model(torch.tensor([TOKENS]), torch.arange(8))[0]
    torch.testing.assert_close(with_cache[model.lookback :], whole[4 + model.lookback :], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("save", [save_llada, save_dream])
@pytest.mark.parametrize(
    "scheduler",
    [
        LspParams(tau_min=0.05),
        LspParams(tau_min=None),
        QuotaParams(speedup=2),
        ThresholdParams(threshold=0.1, block=4, cache="prefix"),
        ThresholdParams(threshold=0.1, block=4, cache="dual"),
        LeftToRightParams(),
    ],
)
def test_all_schedulers_drive_both(tmp_path, save, scheduler):
    save(tmp_path)
    found = decode(load_denoiser(tmp_path, "float32"), [5, 9, 3], 12, Specials(1, None, frozenset({4})), scheduler)
    assert len(found.tokens) == 12
    assert 1 not in found.tokens


@pytest.mark.parametrize("save", [save_llada, save_dream])
def test_the_schedule_with_one_commit_is_exact(tmp_path, save):
    """alpha = 1: everything after one full call, so that a twin can say what it must be."""
    twin = save(tmp_path)
    model = load_denoiser(tmp_path, "float32")
    found = lsp_decode(model, [5, 9, 3], 5, Specials(1), LspParams(alpha=1, beta=1, tau_min=None, window=0))
    logits = bidirectional_logits(twin, [5, 9, 3, *[1] * 5])
    logits[:, 1] = -torch.inf
    first = 3 - model.lookback
    assert found.tokens == logits[first : first + 5].argmax(-1).tolist()


def test_weights_that_are_not_needed_have_no_name():
    assert llada_name("model.transformer.blocks.0.rotary_emb.inv_freq") is None
    assert llada_name("model.transformer.ff_out.weight") == "head.weight"
    assert llada_name("transformer.blocks.11.ff_out.weight") == "blocks.11.down.weight"
    assert dream_name("model.layers.2.self_attn.rotary_emb.inv_freq") is None
    assert dream_name("lm_head.weight") == "head.weight"


def edited(folder, **values):
    about = {**json.loads((folder / "config.json").read_text()), **values}
    (folder / "config.json").write_text(json.dumps(about))


def test_folders_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no config\.json"):
        kind_of(tmp_path)
    save_llada(tmp_path)
    edited(tmp_path, mask_token_id=None)
    with pytest.raises(ValueError, match="no mask_token_id, so this is no masked-diffusion model"):
        load_denoiser(tmp_path)
    edited(tmp_path, mask_token_id=1, activation_type="gelu")
    with pytest.raises(ValueError, match="activation_type = 'gelu'; only 'silu' is read"):
        load_denoiser(tmp_path)
    edited(tmp_path, activation_type="silu", d_model=32)
    with pytest.raises(ValueError, match=r"has shape .* config\.json wants"):
        load_denoiser(tmp_path)
    edited(tmp_path, d_model=16, n_layers=3)
    with pytest.raises(ValueError, match=r"lacks 9 weights, the first is blocks\.2\."):
        load_denoiser(tmp_path)
    edited(tmp_path, n_layers=2, n_kv_heads=3)
    with pytest.raises(ValueError, match="heads must be a multiple of key heads, got 4 and 3"):
        load_denoiser(tmp_path)
    edited(tmp_path, model_type="bert")
    with pytest.raises(ValueError, match="holds a model of type 'bert'; known: dream, llada"):
        load_denoiser(tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    edited(tmp_path, model_type="llada", n_kv_heads=4)
    with pytest.raises(FileNotFoundError, match="there are no safetensors"):
        load_denoiser(tmp_path)


def test_dreams_other_architectures_are_refused(tmp_path):
    save_dream(tmp_path)
    edited(tmp_path, rope_scaling={"type": "yarn"})
    with pytest.raises(ValueError, match="scaled rotary embeddings"):
        load_denoiser(tmp_path)


def test_a_tied_head_is_the_embedding(tmp_path):
    save_llada(tmp_path)
    edited(tmp_path, weight_tying=True)
    model = load_denoiser(tmp_path, "float32")
    assert torch.equal(model.head.weight, model.embedding.weight)
