from __future__ import annotations

import pytest
import torch

from tasks.language_models.pretrained import check_length, load_model, load_tokenizer, position_limit


def test_a_model_comes_in_the_asked_dtype_without_gradients(folder):
    model, tokenizer = load_model(folder)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in model.parameters())
    assert not model.training
    assert tokenizer.padding_side == "left"


def test_bfloat16_weights_are_the_rounded_float32_ones(folder, model):
    other, _ = load_model(folder, dtype="bfloat16")
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a.to(torch.bfloat16), b)


@pytest.mark.parametrize(("name", "value"), [("dtype", "int8"), ("attention", "magic")])
def test_unknown_choices_are_refused_with_the_known_ones(folder, name, value):
    with pytest.raises(ValueError, match=f"{name} must be one of .*{value}"):
        load_model(folder, **{name: value})


def test_a_folder_without_a_model_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(FileNotFoundError, match=r"no config.json .*notes\.txt"):
        load_model(tmp_path)


@pytest.mark.parametrize("text", ["/no/such/folder", "./none", "none", "a/b/c"])
def test_what_is_neither_folder_nor_id_is_refused(text):
    with pytest.raises(FileNotFoundError, match="neither a folder nor a model id"):
        load_model(text)


def test_a_model_without_tokenizer_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)


def test_contexts_beyond_the_positions_are_refused(model):
    check_length(model, position_limit(model))
    with pytest.raises(ValueError, match="8193 tokens is beyond max_position_embeddings = 8192"):
        check_length(model, 8193)
