from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from tasks.language_models.random_llama import RandomLlamaParams, byte_tokenizer, random_llama, random_model


def test_equal_parameters_give_equal_bytes_whatever_the_global_generator_says(tmp_path):
    torch.randn(3)
    random_llama(RandomLlamaParams(), tmp_path / "a")
    before = torch.random.get_rng_state()
    torch.randn(5)
    random_llama(RandomLlamaParams(), tmp_path / "b")
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert "model.safetensors" in names
    assert [(tmp_path / "a" / n).read_bytes() for n in names] == [(tmp_path / "b" / n).read_bytes() for n in names]
    torch.random.set_rng_state(before)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_nothing_that_is_written_names_the_folder(tmp_path):
    random_llama(RandomLlamaParams(), tmp_path / "model")
    for path in (tmp_path / "model").glob("*.json"):
        assert str(tmp_path) not in path.read_text()


def test_another_seed_gives_other_weights():
    one, two = (random_model(RandomLlamaParams(seed=s), 300).lm_head.weight for s in (0, 1))
    assert not torch.equal(one, two)


def test_three_query_heads_share_a_key_value_head_and_attention_is_not_flat():
    params = RandomLlamaParams(layers=3, kv_heads=1, head_width=8)
    model = random_model(params, 300)
    assert (model.config.num_attention_heads, model.config.num_key_value_heads, len(model.model.layers)) == (3, 1, 3)
    model.set_attn_implementation("eager")
    ids = torch.arange(100)[None]
    with torch.inference_mode():
        last = model(ids, output_attentions=True).attentions[-1][0, :, -1]
    entropy = -(last * last.clamp(min=1e-12).log()).sum(-1)
    assert (entropy < 0.95 * torch.tensor(100.0).log()).all()


def test_the_tokenizer_gives_back_any_text_and_knows_the_chat_form():
    tokenizer = byte_tokenizer()
    text = "Größe 12? <tag> 3.5\n\tend"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True)
    assert chat == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer("<|im_end|>", add_special_tokens=False).input_ids == [tokenizer.eos_token_id] == [2]
    assert len(tokenizer) <= 512


@pytest.mark.parametrize(("field", "value"), [("vocabulary", 100), ("head_width", 3), ("layers", 0), ("gain", 0.0)])
def test_impossible_sizes_are_refused_by_name(field, value):
    with pytest.raises(ValidationError, match=field):
        RandomLlamaParams(**{field: value})
