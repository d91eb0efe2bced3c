import pytest
import torch

from tasks.common.node import NullLog
from tasks.language_models.pretrained import load_model
from tasks.language_models.random_llama import RandomLlamaParams, random_llama
from tasks.low_rank.apply import CompressParams, compress, decode_speed, with_factors
from tasks.low_rank.checkpoints import load_compressed
from tasks.low_rank.layers import PerHeadLowRankLinear
from tests.tasks.low_rank.test_layers import factors
from tests.tasks.low_rank.tiny import tiny_ids, tiny_model

SMALL = {"calibration": 3, "held_out": 2, "evaluation": 2, "tokens": 16, "steps": 4, "context": 20}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("model") / "m"
    random_llama(RandomLlamaParams(positions=128), found)
    return found


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "t.txt"
    path.write_text(" ".join(f"sentence {i} of {i * i} words." for i in range(60)))
    return path


@pytest.mark.parametrize(("cache", "size"), [("whole", 2 * 2 * (16 + 8) * 2), ("latent", 2 * 2 * (8 + 8) * 2)])
def test_a_folder_becomes_a_smaller_one_that_loads(folder, text, tmp_path, cache, size):
    """Cache bytes: 2 layers x 2 heads x (16 or 8 for keys, 8 for values) numbers of 2 bytes."""
    found = compress(CompressParams(model=folder, text=text, rank=8, cache=cache, **SMALL), tmp_path / "out", NullLog())
    assert found["rank"] == 8
    assert found["cache_kept"] == 0.5
    assert found["cache_bytes_per_token_before"] == 2 * 2 * 32 * 2
    assert found["cache_bytes_per_token_after"] == size
    assert found["kl_nats_per_token"] > 0
    assert found["decode_ms_after"] > 0
    model = load_compressed(tmp_path / "out")
    assert isinstance(model.model.layers[0].self_attn.v_proj, PerHeadLowRankLinear)
    assert isinstance(model.model.layers[0].self_attn.q_proj, torch.nn.Linear)
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def test_a_compressed_folder_is_no_model_to_compress_again(folder, text, tmp_path):
    compress(CompressParams(model=folder, text=text, **SMALL), tmp_path / "out", NullLog())
    with pytest.raises(ValueError, match="compressed already"):
        compress(CompressParams(model=tmp_path / "out", text=text, **SMALL), tmp_path / "again", NullLog())
    with pytest.raises(ValueError, match=r"lacks 4 weights of a LlamaForCausalLM, such as model.layers.0.self_attn.k_proj.weight"):
        load_model(tmp_path / "out")


def test_the_same_seed_gives_the_same_folder(folder, text, tmp_path):
    params = CompressParams(model=folder, text=text, kept=0.6, queries=True, **SMALL)
    for name in ("a", "b"):
        compress(params, tmp_path / name, NullLog())
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


def test_a_twin_with_factors_shares_the_other_weights():
    model, ids = tiny_model(), tiny_ids(1, 6)
    before = model(ids).logits
    twin = with_factors(model, factors(model))
    assert twin.lm_head.weight is model.lm_head.weight
    assert torch.equal(model(ids).logits, before)
    assert not torch.allclose(twin(ids).logits, before)


def test_a_cache_that_slides_is_not_timed(tmp_path):
    model, params = tiny_model(), CompressParams(model=tmp_path, **SMALL)
    small = with_factors(model, factors(model))
    assert decode_speed(model, small, tiny_ids(1, 20), params, rounds=1)["decode_ms_after"] > 0
    model.config.sliding_window = 21
    assert "slides over a window of 21" in decode_speed(model, small, tiny_ids(1, 20), params, rounds=1)["decoding"]


def test_impossible_requests_are_refused(folder, text, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="rank or kept, not both"):
        CompressParams(model=folder, rank=4, kept=0.5)
    with pytest.raises(ValueError, match="at most the head dimension 16, got 40"):
        compress(CompressParams(model=folder, text=text, rank=40, **SMALL), tmp_path / "out", NullLog())
    with pytest.raises(ValueError, match="are needed; give more text"):
        compress(CompressParams(model=folder, text=text, **{**SMALL, "calibration": 10**4}), tmp_path / "out", NullLog())
    monkeypatch.setattr("tasks.low_rank.apply.calibrate", None)  # what follows is said before anything is computed
    with pytest.raises(ValueError, match="must lie in"):
        compress(CompressParams(model=folder, text=text, kept=1.9, **SMALL), tmp_path / "out", NullLog())
    binary = tmp_path / "binary"
    binary.write_bytes(bytes([0xE7, 0x00]))
    with pytest.raises(ValueError, match=r"binary is no UTF-8 text \(.* at byte 0\)"):
        compress(CompressParams(model=folder, text=binary, **SMALL), tmp_path / "out", NullLog())
    with pytest.raises(ValueError, match="a context of 129 tokens is beyond max_position_embeddings = 128"):
        compress(CompressParams(model=folder, text=text, **{**SMALL, "context": 128}), tmp_path / "out", NullLog())
    with pytest.raises(ValueError, match="no device 'gpu'"):
        CompressParams(model=folder, device="gpu")
    with pytest.raises(ValueError, match="is a folder; give one text file"):
        compress(CompressParams(model=folder, text=tmp_path, **SMALL), tmp_path / "out", NullLog())
