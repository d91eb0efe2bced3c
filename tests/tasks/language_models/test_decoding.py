from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tasks.language_models.answers import final_number, score_answer
from tasks.language_models.cache import prefill
from tasks.language_models.decoding import decode


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
        return LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.3, bos_token_id=None, eos_token_id=None)).eval()


@pytest.fixture(scope="module")
def ids():
    return torch.randint(1, 50, (1, 20), generator=torch.Generator().manual_seed(1))


def test_greedy_decoding_is_that_of_transformers(model, ids):
    expected = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)[0, 20:].tolist()
    cache, _ = prefill(model, ids[:, :15])
    seen = []
    assert decode(cache, ids[:, 15:], 8, after=seen.append) == expected == seen
    assert cache.length == 20 + 7


def test_an_end_token_is_not_part_of_the_text(model, ids):
    cache, _ = prefill(model, ids[:, :15])
    text = decode(cache, ids[:, 15:], 8)
    cache.crop(15)
    stop = text[3]
    assert decode(cache, ids[:, 15:], 8, end=[stop]) == text[: text.index(stop)]


def test_sampling_follows_its_generator(model, ids):
    def sampled(seed):
        cache, _ = prefill(model, ids[:, :15])
        return decode(cache, ids[:, 15:], 8, temperature=2.0, generator=torch.Generator().manual_seed(seed))

    assert sampled(0) == sampled(0)
    assert sampled(0) != sampled(1)


def test_impossible_requests_are_refused(model, ids):
    cache, _ = prefill(model, ids[:, :15])
    with pytest.raises(ValueError, match="new_tokens must be at least 1"):
        decode(cache, ids[:, 15:], 0)
    with pytest.raises(ValueError, match=r"needs a generator above it, got 0\.5"):
        decode(cache, ids[:, 15:], 1, temperature=0.5)


def test_answers_are_scored_by_their_tasks_rule():
    assert score_answer("niah_single", "It is 1234.", ["1234"]) == 1.0
    assert score_answer("cwe", "apple, tree", ["apple", "pear"]) == 0.5
    assert score_answer("qa_2", "in london", ["Paris", "London"]) == 1.0
    assert score_answer("aime2024", r"12 and then \boxed{ 025 } so 7", ["25"]) == 1.0
    assert score_answer("aime2024", "the answer is 1,025", ["1025"]) == 1.0
    assert score_answer("aime2024", "no idea", ["3"]) == 0.0
    assert final_number("") is None
