from __future__ import annotations

import numpy as np
import pytest
from diffusion_twins import EOS, MASK, STOP, Chain, full_logits, left_to_right, slow_threshold, small_model
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tasks.masked_diffusion.arms import standard_arms
from tasks.masked_diffusion.decoding import Specials
from tasks.masked_diffusion.forced import ForcedDenoiser
from tasks.masked_diffusion.prefix_schedule import LspParams
from tasks.masked_diffusion.schedulers import (
    LeftToRightParams,
    ProphetParams,
    QuotaParams,
    Scheduler,
    ThresholdParams,
    blocks_of,
    cached,
    calls_of,
    decode,
    decode_together,
    quota_counts,
)

PROMPT, N = [3, 4, 5], 12
ARMS = standard_arms(LspParams(window=4), block=4)


@pytest.mark.parametrize("name", ARMS)
def test_an_oracle_is_decoded_rightly_by_every_scheduler(name):
    rng = np.random.default_rng(0)
    for trial in range(4):
        answer = rng.integers(2, 9, N).tolist()
        margins = [10.0] * N if trial == 0 else rng.exponential(3.0, N).tolist()
        found = decode(ForcedDenoiser(3, answer, margins, 9), PROMPT, N, Specials(MASK, None, frozenset({STOP})), ARMS[name])
        assert found.tokens == answer
        assert found.counters.nfe == found.trace.committed.max() + 1  # every call commits
        assert found.counters.flip_rate == 0.0


@pytest.mark.parametrize("name", ARMS)
def test_every_scheduler_stops_at_the_end(name):
    answer = [3, 4, 5, EOS, *[EOS] * 8]
    found = decode(ForcedDenoiser(3, answer, [9.0, 5.0, 4.0] * 4, 9), PROMPT, N, Specials(MASK, EOS, frozenset({STOP})), ARMS[name])
    assert found.tokens == [3, 4, 5, EOS]


@pytest.mark.parametrize("name", ARMS)
def test_uncached_work_is_calls_times_length(name):
    if getattr(ARMS[name], "cache", "none") == "none":
        counters = decode(small_model(), PROMPT, N, Specials(MASK), ARMS[name]).counters
        assert counters.token_forwards == counters.nfe * (len(PROMPT) + N)
        assert counters.attn_pairs == counters.nfe * (len(PROMPT) + N) ** 2
        assert counters.cache_writes == 0


@pytest.mark.parametrize("name", [name for name, scheduler in ARMS.items() if not cached(scheduler)])
def test_answers_side_by_side_are_those_one_by_one(name):
    """Some answers of this model end early (with token 8), so that answers drop out of the batch at different calls."""
    model, prompts = small_model(seed=8), np.random.default_rng(5).integers(2, 9, (9, 8)).tolist()
    specials = Specials(MASK, 8, frozenset({STOP}))
    together = decode_together(model, prompts, N, specials, ARMS[name])
    alone = [decode(model, prompt, N, specials, ARMS[name]) for prompt in prompts]
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    assert [one.counters for one in together] == [one.counters for one in alone]
    assert [one.trace.committed.tolist() for one in together] == [one.trace.committed.tolist() for one in alone]
    assert len({len(one.tokens) for one in alone}) > 1


def test_what_cannot_be_decoded_side_by_side_is_refused():
    with pytest.raises(ValueError, match="with a cache decodes one answer at a time"):
        decode_together(small_model(), [PROMPT], N, Specials(MASK), ThresholdParams(cache="prefix"))
    with pytest.raises(ValueError, match=r"one length and no cache, got \(prompt, answer\) lengths \[\(2, 12\), \(3, 12\)\]"):
        decode_together(small_model(), [PROMPT, PROMPT[:2]], N, Specials(MASK), QuotaParams())
    assert decode_together(small_model(), [], N, Specials(MASK), QuotaParams()) == []


@pytest.mark.parametrize("name", ARMS)
def test_an_empty_answer(name):
    found = decode(small_model(), PROMPT, 0, Specials(MASK), ARMS[name])
    assert found.tokens == []
    assert found.counters.nfe == 0


@given(st.integers(1, 50), st.integers(1, 20))
def test_quota_counts_add_up(tokens, calls):
    counts = quota_counts(tokens, calls)
    assert sum(counts) == tokens
    assert len(counts) == calls
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("speedup", [1, 2, 3, 4, 6])
def test_quota_takes_the_surest_tokens_in_t_calls(speedup):
    model = small_model(seed=2)
    found = decode(model, PROMPT, N, Specials(MASK), QuotaParams(speedup=speedup))
    assert found.counters.nfe == N // speedup
    assert np.bincount(found.trace.committed).tolist() == [speedup] * (N // speedup)
    logits = full_logits(model, [*PROMPT, *[MASK] * N])[3:]
    chances = np.exp(logits).max(1) / np.exp(logits).sum(1)
    assert set(np.flatnonzero(found.trace.committed == 0)) == set(np.argsort(-chances, kind="stable")[:speedup])


def test_a_remainder_is_spread_over_the_first_calls():
    found = decode(small_model(), PROMPT, 9, Specials(MASK), QuotaParams(speedup=9 / 4))
    assert np.bincount(found.trace.committed).tolist() == [3, 2, 2, 2]


@pytest.mark.parametrize("order", ["margin", "entropy", "random"])
def test_other_orders(order):
    model = small_model(seed=2)
    found = [decode(model, PROMPT, N, Specials(MASK), QuotaParams(speedup=2, order=order, seed=s)) for s in (0, 0, 1)]
    assert found[0].trace.committed.tolist() == found[1].trace.committed.tolist()
    assert (found[0].trace.committed.tolist() == found[2].trace.committed.tolist()) == (order != "random")
    if order != "random":
        logits = full_logits(model, [*PROMPT, *[MASK] * N])[3:]
        best = np.sort(logits, 1)
        chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        score = best[:, -1] - best[:, -2] if order == "margin" else (chances * np.log(np.where(chances > 0, chances, 1))).sum(1)
        assert set(np.flatnonzero(found[0].trace.committed == 0)) == set(np.argsort(-score, kind="stable")[:2])


def test_blocks_are_decoded_from_left_to_right():
    for scheduler in (QuotaParams(speedup=2, block=4), ThresholdParams(block=4), ThresholdParams(block=4, cache="prefix")):
        committed = decode(small_model(seed=3), PROMPT, N, Specials(MASK), scheduler).trace.committed.reshape(3, 4)
        assert (committed[:-1].max(1) < committed[1:].min(1)).all()


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 50), st.sampled_from([0.15, 0.2, 0.3, 0.9]), st.sampled_from([3, 4, 12]))
def test_threshold_is_its_definition(seed, threshold, block):
    model = small_model(seed=seed)
    found = decode(model, PROMPT, N, Specials(MASK), ThresholdParams(threshold=threshold, block=block))
    assert (found.tokens, found.counters.nfe) == slow_threshold(model, PROMPT, N, threshold, block)


def test_threshold_with_caches_counts_its_work():
    """Blocks of 4 in 12 behind a prompt of 3, one token per call: a full call and three smaller ones per block."""
    answer, sure = [3] * N, [0.1] * N
    prefix, dual = (
        decode(ForcedDenoiser(3, answer, sure, 9), PROMPT, N, Specials(MASK), ThresholdParams(block=4, cache=cache)).counters
        for cache in ("prefix", "dual")
    )
    assert prefix.nfe == dual.nfe == 12
    assert prefix.token_forwards == 3 * 15 + 3 * (12 + 8 + 4)
    assert prefix.cache_writes == 3 + 7 + 11  # the prefix is written anew when a block starts
    assert dual.token_forwards == 3 * 15 + 9 * 4
    assert dual.attn_pairs == 3 * 15**2 + 9 * 4 * 15
    assert dual.cache_writes == 3 * 15 + 9 * 4


def test_a_dual_cache_reads_the_suffix_as_it_was_left():
    """The first call of a block is exact; a later one differs from no cache, since rows behind the block are those of masks."""
    model = small_model(seed=4)
    found = {cache: decode(model, PROMPT, N, Specials(MASK), ThresholdParams(block=6, cache=cache)) for cache in ("none", "prefix", "dual")}
    first = {cache: np.flatnonzero(one.trace.committed == 0).tolist() for cache, one in found.items()}
    assert first["none"] == first["prefix"] == first["dual"]
    assert all(len(one.tokens) == N for one in found.values())


def test_threshold_commits_around_an_uncertain_position():
    found = decode(Chain(3, [3, 4, 5, 6, 7, 8], uncertain=3), PROMPT, 6, Specials(MASK), ThresholdParams())
    assert found.tokens == [3, 4, 5, 6, 7, 8]
    assert found.trace.committed.tolist() == [0, 0, 0, 1, 0, 0]
    assert found.counters.contiguous_runs == 2


def test_prophet_fills_everything_when_gaps_are_wide():
    answer = [3] * N
    wide = decode(ForcedDenoiser(3, answer, [8.0] * N, 9), PROMPT, N, Specials(MASK), ProphetParams())
    assert wide.counters.nfe == 1
    late = decode(ForcedDenoiser(3, answer, [3.0] * N, 9), PROMPT, N, Specials(MASK), ProphetParams())
    assert late.counters.nfe == 9  # two thirds of 12 calls, and the first of the last third
    mixed = [8.0] * (N - 1) + [0.5]
    assert decode(ForcedDenoiser(3, answer, mixed, 9), PROMPT, N, Specials(MASK), ProphetParams(gaps=(7.0, 7.0, 7.0))).counters.nfe == 1
    params = ProphetParams(gaps=(7.0, 7.0, 7.0), statistic="min")
    assert decode(ForcedDenoiser(3, answer, mixed, 9), PROMPT, N, Specials(MASK), params).counters.nfe == N


def test_left_to_right_is_greedy_decoding():
    model = small_model(seed=5)
    found = decode(model, PROMPT, N, Specials(MASK), LeftToRightParams(cache="none"))
    assert found.tokens == left_to_right(model, PROMPT, N)
    cached = decode(model, PROMPT, N, Specials(MASK), LeftToRightParams())
    assert cached.counters.nfe == N
    assert cached.counters.token_forwards == 15 + sum(1 + n for n in range(1, N))
    assert cached.tokens[0] == found.tokens[0]


def test_scattered_takes_as_many_as_the_prefix_rule_but_the_surest():
    answer, margins = [3] * 8, [5.0, 4.0, 1.0, 9.0, 8.0, 1.0, 7.0, 1.0]
    scattered = ARMS["scattered"].model_copy(update={"stability": 0, "tau_min": 3.0})
    found = decode(ForcedDenoiser(3, answer, margins, 9), PROMPT, 8, Specials(MASK), scattered)
    assert np.flatnonzero(found.trace.committed == 0).tolist() == [3, 4]  # tau = 4: two pass from the left; the surest are 3 and 4
    assert found.counters.contiguous_runs > 1


def test_lengths_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="must be divisible by the block, got 12 and 5"):
        blocks_of(12, 5)
    with pytest.raises(ValueError, match="must be a whole number of calls, got 12 / 5"):
        calls_of(12, 5)
    with pytest.raises(ValueError, match="6 calls are no multiple of 4 blocks"):
        calls_of(12, 2, 4)
    with pytest.raises(ValueError, match="divisible by the block"):
        decode(small_model(), PROMPT, N, Specials(MASK), ThresholdParams(block=5))
    with pytest.raises(ValueError, match="no multiple"):
        decode(small_model(), PROMPT, N, Specials(MASK), QuotaParams(speedup=2, block=3, order="margin").model_copy(update={"speedup": 4}))


def test_parameters_are_told_apart_by_kind_and_checked():
    reader = TypeAdapter(Scheduler)
    assert reader.validate_python({"kind": "threshold", "block": 4}) == ThresholdParams(block=4)
    for bad in ({"kind": "best"}, {"kind": "quota", "speedup": 0.5}, {"kind": "threshold", "threshold": 0}, {"kind": "quota", "block": 0}):
        with pytest.raises(ValidationError):
            reader.validate_python(bad)
