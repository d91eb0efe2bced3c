from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusion_twins import EOS, MASK, full_logits, small_model

from tasks.masked_diffusion.decoding import Ask, Decoding, Specials, counters_of
from tasks.masked_diffusion.forced import ForcedDenoiser
from tasks.masked_diffusion.schedulers import LeftToRightParams, ThresholdParams, decode


def scripted(predictions):
    """A denoiser that predicts the n-th list of tokens in its n-th call, all with margin 1."""
    calls = iter(predictions)

    def denoiser(tokens, positions, cache):
        given = next(calls)
        logits = torch.zeros(1, tokens.shape[1], 9)
        for row, position in enumerate(positions.tolist()):
            if position >= 1:
                logits[0, row, given[position - 1]] = 1.0
        return logits

    return denoiser


def test_predictions_are_the_top_two_without_the_mask():
    model = small_model(8)
    decoding = Decoding(model, [3, 4], 5, Specials(MASK))
    found = decoding.predict()
    logits = full_logits(model, [3, 4, *[MASK] * 5])[2:]
    best = np.sort(logits, 1)
    assert found.first == 0
    assert found.tokens.tolist() == logits.argmax(1).tolist()
    np.testing.assert_allclose(found.margins, best[:, -1] - best[:, -2], rtol=1e-4)
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(found.confidence(), chances.max(1), rtol=1e-5)
    logs = np.log(np.where(chances > 0, chances, 1))
    np.testing.assert_allclose(found.negative_entropy(), (chances * logs).sum(1), rtol=1e-5)


def test_margins_are_taken_in_float32_from_bfloat16_logits():
    def denoiser(tokens, positions, cache):
        return torch.tensor([[[0.0, 1.0, 3.0], [0.0, 1.0, 3.0]]], dtype=torch.bfloat16)

    found = Decoding(denoiser, [1], 1, Specials(MASK)).predict()
    assert found.margins.dtype == np.float32
    assert found.margins.tolist() == [2.0]


def test_flip_rate_by_hand():
    """Places 1, 2 are compared in call 2: one of them flips. In call 3 place 2 alone is masked: it flips. 2 of 3."""
    decoding = Decoding(scripted([[3, 3, 3], [3, 4, 3], [3, 4, 5]]), [2], 3, Specials(MASK))
    for place in range(3):
        found = decoding.predict()
        decoding.commit([place], found.tokens[[place]])
    result = decoding.result()
    assert result.counters.flip_rate == pytest.approx(2 / 3)
    assert result.trace.flips[1:] == [0.5, 1.0]
    assert result.tokens == [3, 4, 5]


def test_runs_by_hand():
    decoding = Decoding(ForcedDenoiser(1, [3] * 6, [1.0] * 6, 9), [2], 6, Specials(MASK))
    for places in ([1], [3], [5], [2], [0, 4]):
        decoding.commit(places, [3] * len(places))
    assert decoding.result().counters.contiguous_runs == 3  # 1, 3, 5
    assert decoding.result().counters.commit_mean == pytest.approx(6 / 5)
    assert decoding.result().trace.committed.tolist() == [4, 0, 3, 1, 4, 2]


def test_work_by_hand():
    model = small_model(8)
    decoding = Decoding(model, [3, 4], 6, Specials(MASK), cached=True)
    decoding.predict()  # 8 inputs, 8 keys
    decoding.cache.freeze(2)
    decoding.predict(Ask(2))  # 6 inputs, 8 keys
    counters = decoding.result().counters
    assert (counters.nfe, counters.token_forwards, counters.attn_pairs, counters.cache_writes) == (2, 14, 8 * 8 + 6 * 8, 2)


def test_committed_tokens_and_the_mask_cannot_be_committed():
    decoding = Decoding(small_model(8), [3], 4, Specials(MASK))
    decoding.commit([1], [5])
    with pytest.raises(ValueError, match=r"positions \[1\] are committed already"):
        decoding.commit([0, 1], [5, 5])
    with pytest.raises(ValueError, match="the mask cannot be committed"):
        decoding.commit([0], [MASK])
    with pytest.raises(ValueError, match="nothing to commit"):
        decoding.commit([], [])


def test_done_is_up_to_the_first_end():
    decoding = Decoding(small_model(8), [3], 4, Specials(MASK, EOS))
    decoding.commit([2], [EOS])
    assert not decoding.done
    decoding.commit([0, 1], [5, 6])
    assert decoding.done
    assert decoding.result().tokens == [5, 6, EOS]
    assert decoding.result().trace.committed.tolist() == [1, 1, 0, -1]


def test_a_denoiser_that_looks_back_gets_one_position_more():
    """A shifted model on a cache: the first masked position's prediction lives at the committed one before it."""
    starts = []

    class Shifted(ForcedDenoiser):
        lookback = 1

        def __call__(self, tokens, positions, cache, /):
            starts.append((int(positions[0]), len(positions)))
            logits = super().__call__(tokens, positions, cache)
            logits[:, 0] = torch.randn(9)  # may be anything
            return logits

    answer = [3, 4, 5, 6, 7, 8]
    found = decode(Shifted(2, answer, [9.0] * 6, 9), [2, 2], 6, Specials(MASK), ThresholdParams(block=3, threshold=0.5, cache="prefix"))
    assert found.tokens == answer
    found = decode(Shifted(2, answer, [9.0, 0.1] * 3, 9), [2, 2], 6, Specials(MASK), ThresholdParams(block=3, threshold=0.9, cache="dual"))
    assert found.tokens == answer
    assert (1, 4) in starts
    found = decode(Shifted(2, answer, [9.0] * 6, 9), [2, 2], 6, Specials(MASK), LeftToRightParams())
    assert found.tokens == answer


def test_means_of_counters():
    found = [decode(ForcedDenoiser(1, [3] * n, [9.0] * n, 9), [2], n, Specials(MASK), LeftToRightParams()) for n in (2, 4)]
    assert counters_of(found)["nfe"] == 3.0


def test_what_cannot_be_decoded_is_refused():
    model = small_model(8)
    with pytest.raises(ValueError, match="the prompt is empty"):
        Decoding(model, [], 4, Specials(MASK))
    with pytest.raises(ValueError, match="length must be at least 0, got -1"):
        Decoding(model, [3], -1, Specials(MASK))
    with pytest.raises(ValueError, match=r"function has no new_cache\(capacity\)"):
        Decoding(scripted([]), [3], 2, Specials(MASK), cached=True)
    with pytest.raises(ValueError, match="mask_id must be a token id, got None"):
        Specials(None)
