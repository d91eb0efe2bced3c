from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from diffusion_twins import MASK, STOP, Chain, attention_written_out, left_to_right, slow_length, small_model
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.masked_diffusion.decoding import Specials
from tasks.masked_diffusion.forced import ForcedDenoiser
from tasks.masked_diffusion.prefix_schedule import LspParams, adaptive_length, lsp_decode, passing, snap

MARGINS = st.lists(st.one_of(st.floats(0, 10), st.integers(0, 4).map(float), st.just(-math.inf)), min_size=1, max_size=20)
SHARES = st.tuples(st.sampled_from([0.05, 0.1, 0.25, 1 / 3, 0.5, 1.0]), st.sampled_from([0.25, 0.5, 0.75, 1.0])).filter(
    lambda s: s[0] <= s[1]
)


@settings(max_examples=300, deadline=None)
@given(MARGINS, SHARES, st.one_of(st.none(), st.floats(0, 8)))
def test_length_is_that_of_a_search_over_all_thresholds(margins, shares, floor):
    assert adaptive_length(np.array(margins), *shares, floor)[0] == slow_length(margins, *shares, floor)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 10), min_size=1, max_size=30), SHARES)
def test_the_literal_rule_stays_between_alpha_and_beta(margins, shares):
    n, (alpha, beta) = len(margins), shares
    length, _ = adaptive_length(np.array(margins), alpha, beta)
    low = max(1, math.ceil(round(alpha * n, 9)))
    assert low <= length <= max(low, math.floor(round(beta * n, 9)))


@settings(max_examples=100, deadline=None)
@given(MARGINS, SHARES, st.floats(0, 8), st.floats(0, 8))
def test_a_higher_floor_never_commits_more(margins, shares, a, b):
    low, high = sorted((a, b))
    assert adaptive_length(np.array(margins), *shares, high)[0] <= adaptive_length(np.array(margins), *shares, low)[0]


def test_golden_lengths():
    """n = 8, alpha n = 2: tau = min(9, 5) = 5; the run of margins >= 5 has length 4; beta n = 4 allows it, beta = 3/8 cuts it to 3."""
    margins = np.array([9.0, 5.0, 7.0, 5.0, 1.0, 8.0, 0.5, 3.0])
    assert adaptive_length(margins, 0.25, 0.5) == (4, 5.0)
    assert adaptive_length(margins, 0.25, 0.375) == (3, 5.0)
    assert adaptive_length(margins, 0.25, 0.5, 9.5) == (0, 9.5)
    assert adaptive_length(np.array([]), 0.25, 0.5) == (0, math.inf)


def test_minus_infinity_passes_no_threshold_not_even_the_literal_one():
    assert adaptive_length(np.array([3.0, -math.inf, 9.0, 9.0]), 0.5, 1.0)[0] == 1
    assert adaptive_length(np.array([-math.inf, 9.0]), 0.5, 1.0)[0] == 0
    assert passing(np.array([-math.inf]), -math.inf) == 0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=20), st.data(), st.integers(0, 8), st.integers(1, 3))
def test_snapping(tokens, data, window, minimum):
    length = data.draw(st.integers(0, len(tokens)))
    found = snap(tokens, length, {STOP}, window, minimum)
    ends = [j for j in range(1, length + 1) if tokens[j - 1] == STOP and length - j <= window]
    expected = length if length == len(tokens) or not ends else max(ends)
    assert found == min(max(expected, minimum), len(tokens))
    if minimum <= length:
        assert found <= length
        if found < len(tokens):
            assert snap(tokens, found, {STOP}, window, minimum) == found  # idempotent


def test_everything_at_once():
    """alpha = beta = 1, no window, no floor: one iteration commits all."""
    model, prompt = small_model(), [3, 4, 5]
    found = lsp_decode(model, prompt, 10, Specials(MASK), LspParams(alpha=1, beta=1, window=0, tau_min=None))
    assert found.counters.nfe == 1
    assert found.counters.token_forwards == 13
    assert len(found.tokens) == 10
    assert found.counters.cache_writes == 3  # the prompt; nothing is run after the last commit


def test_no_margin_is_enough_gives_left_to_right():
    model, prompt = small_model(seed=3), [3, 4, 5]
    params = LspParams(tau_min=1e30, minimum=1, window=0, cache="none")
    found = lsp_decode(model, prompt, 8, Specials(MASK), params)
    assert found.tokens == left_to_right(model, prompt, 8)
    assert found.counters.nfe == 8
    assert found.trace.committed.tolist() == list(range(8))


def test_an_empty_answer_costs_no_call():
    found = lsp_decode(small_model(), [3], 0, Specials(MASK))
    assert found.tokens == []
    assert found.counters.nfe == 0


@pytest.mark.parametrize(
    "params", [LspParams(), LspParams(beta=1.0), LspParams(tau_min=None), LspParams(stability=2), LspParams(keep_draft=True)]
)
def test_commits_are_atomic_contiguous_and_sum_to_the_answer(params):
    model = small_model(40, seed=5)
    found = lsp_decode(model, [3, 4], 24, Specials(MASK, None, frozenset({STOP})), params)
    committed = found.trace.committed
    assert (np.diff(committed) >= 0).all()  # from left to right
    assert found.counters.contiguous_runs == 1
    assert len(found.tokens) == 24
    sizes = np.bincount(committed)
    assert (sizes >= 1).all()
    assert sizes.sum() == 24
    assert found.trace.active == (24 - np.concatenate([[0], np.cumsum(sizes)[:-1]])).tolist()
    assert found.counters.token_forwards == 2 + 24 + sum(sizes[t] + n for t, n in enumerate(found.trace.active[1:]))
    assert found.trace.appends == [
        (0, 2),
        *((2 + int(a), 2 + int(b)) for a, b in zip(np.cumsum([0, *sizes[:-2]]), np.cumsum(sizes[:-1]), strict=True)),
    ]
    assert MASK not in found.tokens


def test_the_first_call_is_the_same_with_and_without_a_cache():
    model = small_model(40, seed=6)
    both = [
        lsp_decode(model, [3, 4], 24, Specials(MASK), LspParams(cache=cache, tau_min=None), keep_margins=True)
        for cache in ("prefix", "none")
    ]
    np.testing.assert_allclose(both[0].trace.margins[0], both[1].trace.margins[0], rtol=1e-5)
    assert both[1].counters.token_forwards == both[1].counters.nfe * 26
    assert both[1].counters.attn_pairs == both[1].counters.nfe * 26**2


def test_with_block_causal_attention_a_cache_changes_nothing():
    """Positions see only the prompt and positions of their own and earlier blocks; blocks are committed whole: nothing frozen is stale."""
    from torch.nn import functional

    from tasks.masked_diffusion import model as module

    model, block, prompt = small_model(40, seed=7), 4, 4
    positions_now: list[torch.Tensor] = []
    inner = model.forward

    class Blocked:
        lookback = 0
        new_cache = staticmethod(model.new_cache)

        def __call__(self, tokens, positions, cache):
            positions_now[:] = [positions]
            return inner(tokens, positions, cache)

    def masked(query, key, value, attn_mask=None):
        rows, columns = positions_now[0] // block, torch.arange(key.shape[2]) // block
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=columns[None] <= rows[:, None])

    fake = type("fake", (), {"scaled_dot_product_attention": staticmethod(masked), "gelu": staticmethod(functional.gelu)})
    original, module.functional = module.functional, fake
    try:
        params = [LspParams(tau_min=1e30, minimum=block, window=0, stability=0, cache=cache) for cache in ("prefix", "none")]
        found = [lsp_decode(Blocked(), [3] * prompt, 16, Specials(MASK), one) for one in params]
    finally:
        module.functional = original
    assert found[0].tokens == found[1].tokens
    assert found[0].counters.token_forwards < found[1].counters.token_forwards


@pytest.mark.parametrize("params", [LspParams(tau_min=None), LspParams(tau_min=0.3), LspParams(tau_min=None, keep_draft=True)])
def test_every_call_reads_the_states_that_were_frozen_with_their_tokens_as_inputs(params):
    """Logits and counters of all calls against attention written out over a list of frozen states."""
    model, calls = small_model(40, seed=8), []

    class Recorded:
        new_cache = staticmethod(model.new_cache)

        def __call__(self, tokens, positions, cache):
            logits = model(tokens, positions, cache)
            calls.append((tokens[0].clone(), positions, logits[0].clone()))
            return logits

    prompt, length = [3, 4, 5], 24
    found = lsp_decode(Recorded(), prompt, length, Specials(MASK, None, frozenset({STOP})), params)
    frozen: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in model.blocks]
    inputs = pairs = 0
    for number, (tokens, positions, logits) in enumerate(calls):
        start, frontier = len(frozen[0]), len(prompt) + int((found.trace.committed < number).sum())
        assert positions.tolist() == list(range(start, len(prompt) + length))
        assert tokens[: frontier - start].tolist() == [*prompt, *found.tokens][start:frontier]
        slow, states = attention_written_out(model, tokens, positions, frozen)
        torch.testing.assert_close(logits[:, 1:], slow[:, 1:], rtol=1e-4, atol=1e-5)
        for kept, new in zip(frozen, states, strict=True):
            kept += new[: frontier - start]
        inputs, pairs = inputs + len(positions), pairs + len(positions) * (len(prompt) + length)
    assert len(calls) == found.counters.nfe > 2
    assert (found.counters.token_forwards, found.counters.attn_pairs) == (inputs, pairs)
    assert found.counters.cache_writes == len(frozen[0])


def test_a_floor_stops_before_an_uncertain_position():
    found = lsp_decode(
        Chain(1, [3, 4, 5, 6, 7, 8], uncertain=3), [2], 6, Specials(MASK), LspParams(beta=1, cache="none", stability=0, window=0)
    )
    assert found.tokens == [3, 4, 5, 6, 7, 8]
    assert found.trace.committed.tolist() == [0, 0, 0, 1, 1, 1]


def test_instability_ends_the_run():
    """The prediction at place 2 changes once; with w = 1 the second call commits only what stands before it."""
    calls = []

    def denoiser(tokens, positions, cache):
        calls.append(len(calls))
        logits = torch.zeros(1, tokens.shape[1], 9)
        for row, position in enumerate(positions.tolist()):
            logits[0, row, 4 if position == 4 and len(calls) == 2 else 3] = 1.0 if position == 1 and len(calls) == 1 else 9.0
        return logits

    params = LspParams(alpha=0.5, beta=1.0, cache="none", window=0, tau_min=2.0)
    found = lsp_decode(denoiser, [2], 6, Specials(MASK), params)
    # call 1: place 0 is below the floor: the minimum of one; call 2: places 1 and 2 pass, 3 (position 4) has changed; call 3: back
    assert found.trace.committed.tolist()[:4] == [0, 1, 1, 2]
    calls.clear()
    loose = lsp_decode(denoiser, [2], 6, Specials(MASK), params.model_copy(update={"stability": 0}))
    assert loose.trace.committed.tolist() == [0, 1, 1, 1, 1, 1]


def test_nothing_is_committed_behind_the_first_end():
    answer = [3, 4, 1, 1, 1, 1, 1, 1]
    denoiser = ForcedDenoiser(1, answer, [9.0] * 8, vocabulary=9)
    found = lsp_decode(denoiser, [2], 8, Specials(MASK, 1), LspParams(tau_min=None, alpha=0.25, beta=0.34, window=0))
    assert found.tokens == [3, 4, 1]
    assert (found.trace.committed[3:] == -1).all()
    assert found.trace.thresholds[0][1] == 1  # n is 3, the place of the end: ceil(3 / 4)


def test_drafts_are_fed_and_still_give_the_right_answer():
    seen = []

    class Watched(ForcedDenoiser):
        def __call__(self, tokens, positions, cache, /):
            seen.append(tokens[0].tolist())
            return super().__call__(tokens, positions, cache)

    answer = [3, 4, 5, 6, 7, 8, 3, 4]
    found = lsp_decode(
        Watched(1, answer, [9.0] * 8, vocabulary=9), [2], 8, Specials(MASK), LspParams(keep_draft=True, cache="none", window=0)
    )
    assert found.tokens == answer
    assert seen[0][1:] == [MASK] * 8
    assert MASK in seen[1]
    assert MASK not in seen[2]  # from the third call on everything was the same twice


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"alpha": 0}, "greater than 0"),
        ({"alpha": 1.5}, "less than or equal to 1"),
        ({"beta": 0.2}, r"beta must lie in \[alpha, 1\] = \[0.25, 1\], got 0.2"),
        ({"window": -1}, "greater than or equal to 0"),
        ({"minimum": 0}, "greater than or equal to 1"),
        ({"tau_min": -1.0}, "tau_min must be at least 0"),
        ({"rule": "fixed", "tau_min": None}, "needs a tau_min"),
        ({"topology": "scattered"}, "scattered commits leave no single boundary"),
    ],
)
def test_impossible_switches_are_refused(bad, message):
    with pytest.raises(ValidationError, match=message):
        LspParams(**bad)


def test_functions_refuse_impossible_values():
    for alpha, beta in ((0.0, 1.0), (1.2, 1.0), (0.5, 0.4), (0.5, 1.1)):
        with pytest.raises(ValueError, match="must lie in"):
            adaptive_length(np.ones(3), alpha, beta)
    with pytest.raises(ValueError, match="window must be at least 0, got -1"):
        snap([1], 1, set(), -1)
    with pytest.raises(ValueError, match="minimum must be at least 1, got 0"):
        snap([1], 1, set(), 1, 0)
