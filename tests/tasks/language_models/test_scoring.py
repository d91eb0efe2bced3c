from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.language_models.scoring import forced_score, kl_to_reference, perplexity, sequence_nats, token_nats


def logits_of(seed: int, rows: int = 5, words: int = 11) -> torch.Tensor:
    return torch.randn(rows, words, generator=torch.Generator().manual_seed(seed)) * 2


def test_token_nats_are_minus_the_logarithm_of_the_probability():
    logits, targets = logits_of(0), torch.tensor([0, 3, 10, 2, 2])
    by_hand = [-math.log(float(row.softmax(-1)[t])) for row, t in zip(logits, targets, strict=True)]
    torch.testing.assert_close(token_nats(logits, targets), torch.tensor(by_hand), atol=1e-5, rtol=1e-5)


def test_exact_match_needs_every_position():
    logits = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
    right = forced_score(logits, torch.tensor([1, 2]))
    half = forced_score(logits, torch.tensor([1, 0]))
    assert (right.exact, right.matches, right.tokens) == (True, 1.0, 2)
    assert (half.exact, half.matches) == (False, 0.5)
    assert half.nats > right.nats


def test_a_teacher_forced_match_is_what_greedy_decoding_writes(model):
    ids = torch.tensor([[5, 17, 100, 44]])
    greedy = ids
    for _ in range(4):
        with torch.inference_mode():
            greedy = torch.cat([greedy, model(greedy).logits[:, -1:].argmax(-1)], 1)
    with torch.inference_mode():
        logits = model(greedy).logits[0, 3:-1]
    assert forced_score(logits, greedy[0, 4:]).exact
    assert not forced_score(logits, (greedy[0, 4:] + 1) % 300).exact


@given(st.integers(0, 10_000), st.floats(-50, 50))
def test_divergence_is_not_negative_and_blind_to_a_shift(seed, shift):
    p, q = logits_of(seed), logits_of(seed + 1)
    value = kl_to_reference(p, q)
    assert value >= 0
    assert kl_to_reference(p + shift, q - shift) == pytest.approx(value, abs=1e-4, rel=1e-3)
    assert kl_to_reference(p, p + shift) == pytest.approx(0, abs=1e-5)


def test_divergence_of_two_known_distributions():
    """Uniform over two against (0.9, 0.1): 0.5 ln(0.5/0.9) + 0.5 ln(0.5/0.1) = 0.5 ln(25/9)."""
    p, q = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.9, 0.1]]).log()
    assert kl_to_reference(p, q) == pytest.approx(0.5 * math.log(25 / 9), rel=1e-5)
    both = torch.cat([p, p]), torch.cat([q, p])
    assert kl_to_reference(*both) == pytest.approx(0.25 * math.log(25 / 9), rel=1e-5)
    assert kl_to_reference(*both, torch.tensor([False, True])) == pytest.approx(0, abs=1e-7)


def test_perplexity_does_not_depend_on_how_sequences_are_batched(model):
    draw = torch.Generator().manual_seed(1)
    sequences = [torch.randint(3, 300, (n,), generator=draw) for n in (12, 20, 12, 12)]
    by_hand = []
    for ids in sequences:
        with torch.inference_mode():
            logp = model(ids[None]).logits[0, :-1].log_softmax(-1)
        by_hand.append(-float(logp[torch.arange(len(ids) - 1), ids[1:]].double().sum()))
    found = sequence_nats(model, sequences, batch=2)
    assert [n for _, n in found] == [11, 19, 11, 11]
    assert [v for v, _ in found] == pytest.approx(by_hand, rel=1e-5)
    assert perplexity(model, sequences) == pytest.approx(math.exp(sum(by_hand) / 52), rel=1e-5)


def test_bad_input_is_refused(model):
    with pytest.raises(ValueError, match="at least 2 tokens"):
        perplexity(model, [torch.tensor([1])])
    with pytest.raises(ValueError, match="at least 2 tokens"):
        perplexity(model, [])
    with pytest.raises(ValueError, match="one shape"):
        kl_to_reference(logits_of(0), logits_of(0, rows=4))
    with pytest.raises(ValueError, match="no position"):
        kl_to_reference(logits_of(0), logits_of(1), torch.zeros(5, dtype=torch.bool))
    with pytest.raises(ValueError, match="must agree"):
        token_nats(logits_of(0), torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="at least one token"):
        forced_score(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
