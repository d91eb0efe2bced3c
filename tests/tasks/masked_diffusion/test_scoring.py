from __future__ import annotations

import pytest
from diffusion_twins import EOS, MASK, small_model

from tasks.masked_diffusion.decoding import Specials
from tasks.masked_diffusion.forced import ForcedDenoiser
from tasks.masked_diffusion.schedulers import QuotaParams, ThresholdParams, decode
from tasks.masked_diffusion.scoring import SCORED, before_end, decode_all, row_of, table_of, token_accuracy


def test_answers_are_compared_before_the_end():
    assert before_end([3, 4, EOS, 5], EOS) == [3, 4]
    assert before_end([3, 4], EOS) == [3, 4]
    assert before_end([3, EOS], None) == [3, EOS]


@pytest.mark.parametrize(
    ("tokens", "answer", "share"),
    [([3, 4], [3, 4], 1), ([3, 5], [3, 4], 0.5), ([3], [3, 4], 0.5), ([3, 4, 5, 6], [3, 4], 0.5), ([], [], 1)],
)
def test_token_accuracy(tokens, answer, share):
    assert token_accuracy(tokens, answer) == share


def test_a_row_per_answer():
    denoiser, answer = ForcedDenoiser(1, [3, 4, EOS, EOS], [9.0] * 4, 9), [3, 4, EOS, EOS]
    found = decode_all(denoiser, [[2], [2]], [answer, [3, 5, EOS, EOS]], Specials(MASK, EOS), QuotaParams())
    table = table_of(found, [answer, [3, 5, EOS, EOS]], EOS)
    assert list(table.columns) == list(SCORED)
    assert table.em.tolist() == [1.0, 0.0]
    assert table.tok_acc.tolist() == [1.0, 0.5]
    one = decode(denoiser, [2], 4, Specials(MASK, EOS), QuotaParams())
    assert row_of(one, answer, EOS)["runs"] == one.counters.contiguous_runs


@pytest.mark.parametrize("scheduler", [QuotaParams(speedup=2), ThresholdParams(cache="prefix")])
def test_decoding_together_gives_the_same_rows(scheduler):
    prompts, answers = [[3, 4], [5, 3], [4, 4]], [[3, 4, 5, 3]] * 3
    tables = [
        table_of(decode_all(small_model(), prompts, answers, Specials(MASK), scheduler, together=together), answers, EOS)
        for together in (False, True)
    ]
    assert tables[0].equals(tables[1])


def test_answers_of_different_lengths_cannot_be_decoded_together():
    with pytest.raises(ValueError, match=r"answers decoded together have one length, got \[1, 2\]"):
        decode_all(small_model(), [[3], [3]], [[3], [3, 4]], Specials(MASK), QuotaParams(), together=True)
