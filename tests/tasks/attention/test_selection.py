from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from attention_cases import generator
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.attention.selection import (
    deterministic_set,
    draw_counts,
    random_order,
    sample_weights,
    sink_mask,
    size_of,
    top_mask,
    window_mask,
)


def fixed_by_hand(valid: list[bool], scores: list[float], sink: int, window: int, heavy: int) -> set[int]:
    keys = [i for i, ok in enumerate(valid) if ok]
    ends = set(keys[:sink]) | set(keys[max(len(keys) - window, 0) :])
    rest = sorted((i for i in keys if i not in ends), key=lambda i: -scores[i])
    return ends | set(rest[:heavy])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 14), st.integers(0, 5), st.integers(0, 5), st.integers(0, 8), st.integers(0, 10**6))
def test_deterministic_set_equals_the_one_found_by_hand(n, sink, window, heavy, seed):
    g = generator(seed)
    valid = torch.rand(3, n, generator=g) < 0.7
    valid[:, -1] = True
    scores = torch.randn(2, 3, n, generator=g)
    found = deterministic_set(valid, scores, sink, window, heavy)
    for h, r in itertools.product(range(2), range(3)):
        by_hand = fixed_by_hand(valid[r].tolist(), scores[h, r].tolist(), sink, window, heavy)
        assert set(found[h, r].nonzero().flatten().tolist()) == by_hand


def test_overlapping_ends_count_once():
    valid = torch.ones(1, 10, dtype=torch.bool)
    assert deterministic_set(valid, torch.zeros(1, 10), 6, 7, 0).sum() == 10
    assert deterministic_set(valid, torch.zeros(1, 10), 6, 7, 5).sum() == 10


def test_sinks_start_at_the_first_valid_key():
    valid = torch.tensor([[False, False, True, True, True, True]])
    assert sink_mask(valid, torch.tensor([2]))[0].tolist() == [False, False, True, True, False, False]
    assert window_mask(valid, torch.tensor([1]))[0].tolist() == [False] * 5 + [True]


def test_shares_are_of_the_valid_keys_and_rounded_up():
    assert size_of(0.1, torch.tensor([30, 31, 0])).tolist() == [3, 4, 0]
    assert size_of(1.0, torch.tensor([30])).tolist() == [30]
    assert size_of(1, torch.tensor([30])).tolist() == [1]


def test_top_takes_only_candidates():
    scores = torch.tensor([[5.0, 4.0, 3.0, 2.0]])
    chosen = top_mask(scores, torch.tensor([[False, True, True, True]]), torch.tensor([2]))
    assert chosen[0].tolist() == [False, True, True, False]
    assert not top_mask(scores, torch.ones(1, 4, dtype=torch.bool), torch.tensor([0])).any()


def test_counts_may_differ_from_row_to_row():
    scores = torch.arange(8.0).repeat(2, 1)
    chosen = top_mask(scores, torch.ones(2, 8, dtype=torch.bool), torch.tensor([1, 5]))
    assert chosen.sum(-1).tolist() == [1, 5]
    assert chosen[1, 3:].all()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(0, 10**6))
def test_an_order_numbers_the_residual_from_one(n, seed):
    residual = torch.rand(2, 4, n, generator=generator(seed)) < 0.6
    places = random_order(residual, generator(seed + 1))
    for h, r in itertools.product(range(2), range(4)):
        inside = residual[h, r]
        assert sorted(places[h, r][inside].tolist()) == list(range(1, int(inside.sum()) + 1))
        assert (places[h, r][~inside] > n).all()


def test_every_ordered_pair_is_equally_likely_in_every_row():
    residual = torch.tensor([True, False, True, True, True]).expand(6000, 3, 5)
    places = random_order(residual, generator(3))
    for row in range(3):
        first = (places[:, row] == 1).long().argmax(-1)
        second = (places[:, row] == 2).long().argmax(-1)
        seen = Counter(zip(first.tolist(), second.tolist(), strict=True))
        assert len(seen) == 12
        expected = 6000 / 12
        statistic = sum((count - expected) ** 2 / expected for count in seen.values())
        assert statistic < 31.3  # chi-square with 11 degrees of freedom exceeds it with probability 0.001


def test_rows_of_a_head_read_different_keys():
    places = random_order(torch.ones(1, 50, 400, dtype=torch.bool), generator(0))
    shared = [(places[0, i] <= 40) & (places[0, j] <= 40) for i, j in itertools.combinations(range(50), 2)]
    assert torch.stack(shared).sum(-1).float().mean() == pytest.approx(4.0, abs=1.0)  # 40 * 40 / 400, as if independent


def test_draws_with_replacement_are_uniform_on_the_residual():
    residual = torch.tensor([[True, False, True, True, False]]).expand(3000, 5)
    counts = draw_counts(residual, torch.full((3000,), 4), generator(1))
    assert (counts.sum(-1) == 4).all()
    assert counts[~residual].sum() == 0
    assert counts.float().mean(0)[[0, 2, 3]].numpy() == pytest.approx([4 / 3] * 3, abs=0.06)
    assert counts.max() > 1


def test_weights_of_a_sample_sum_to_the_residual():
    residual = torch.ones(4, 30, dtype=torch.bool)
    residual[:, :5] = False
    b = torch.tensor([1, 7, 20, 25])
    chosen = random_order(residual, generator(0)) <= b[:, None]
    weights = sample_weights(~residual, chosen, residual.sum(-1), b)
    assert weights.sum(-1).numpy() == pytest.approx([30.0] * 4, rel=1e-5)
    assert (weights > 0).sum(-1).tolist() == [6, 12, 25, 30]
