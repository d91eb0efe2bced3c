from __future__ import annotations

import pytest
from pydantic import ValidationError

from tasks.attention.application import GenerateParams, generate, prompt_ids, size
from tasks.attention.vattention import VAttentionConfig
from tasks.common.node import NullLog

TEXT = "The grass is green. The sky is blue. " * 12 + "What is green?"


@pytest.fixture
def prompt(tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text(TEXT)
    return path


def run(pipeline, prompt, tmp_path, **options):
    params = GenerateParams(model=str(pipeline[0] / "warmstart/model"), prompt_file=prompt, new_tokens=5, dtype="float32", **options)
    return generate(params, tmp_path / "answer.txt", NullLog())


def test_reading_everything_gives_the_dense_text(pipeline, prompt, tmp_path):
    found = run(pipeline, prompt, tmp_path, heavy=1.0)
    assert found["tokens_as_dense"] == 1.0
    assert found["density"] == 1.0
    assert found["observed_error"] < 1e-4
    assert found["text"] == found["dense_text"]
    assert (tmp_path / "answer.txt").is_file()


def test_a_summary_says_what_was_read_and_missed(pipeline, prompt, tmp_path):
    found = run(pipeline, prompt, tmp_path, heavy=8, sink=4, window=4, base=0.1, epsilon=0.3)
    assert 0 < found["density"] < 0.6
    assert 0 < found["observed_error"] <= found["observed_error_q95"] * 1.5
    assert found["sparse_tokens_per_s"] > 0
    assert found["dense_tokens_per_s"] > 0
    again = run(pipeline, prompt, tmp_path, heavy=8, sink=4, window=4, base=0.1, epsilon=0.3)
    assert {k: v for k, v in found.items() if "per_s" not in k} == {k: v for k, v in again.items() if "per_s" not in k}


@pytest.mark.parametrize("predictor", ["simhash", "pq"])
def test_other_predictors(pipeline, prompt, tmp_path, predictor):
    assert run(pipeline, prompt, tmp_path, predictor=predictor)["new_tokens"] >= 0


def test_sizes_are_shares_or_numbers():
    config = GenerateParams(model="m", prompt_file="p", heavy=32, base=0.02).config()
    assert config == VAttentionConfig(sink=16, window=16, heavy=32, base=0.02, epsilon=0.1, delta=0.1)
    assert isinstance(size(1.0), float)
    with pytest.raises(ValueError, match=r"whole number of keys, got 2\.5"):
        size(2.5)


def test_what_is_wrong_is_said(pipeline, prompt, tmp_path):
    with pytest.raises(ValueError, match="no more than --sparse-tail 4000"):
        run(pipeline, prompt, tmp_path, sparse_tail=4000)
    prompt.write_text(TEXT * 60)
    with pytest.raises(ValueError, match="beyond max_position_embeddings"):
        run(pipeline, prompt, tmp_path)
    prompt.write_text("  \n")
    with pytest.raises(ValueError, match="the prompt file is empty"):
        run(pipeline, prompt, tmp_path)
    with pytest.raises(FileNotFoundError, match="neither a folder nor a model id"):
        generate(GenerateParams(model="/nowhere", prompt_file=prompt), tmp_path / "x", NullLog())
    with pytest.raises(ValidationError, match="epsilon"):
        GenerateParams(model="m", prompt_file="p", epsilon=2)


def test_a_chat_form_is_needed_when_it_is_asked_for():
    class Plain:
        chat_template = None

        def __call__(self, text, **_):
            return type("Ids", (), {"input_ids": [ord(c) for c in text]})()

    assert prompt_ids(Plain(), "ab\n", "auto") == [97, 98]
    with pytest.raises(ValueError, match="no chat form"):
        prompt_ids(Plain(), "ab", "yes")
