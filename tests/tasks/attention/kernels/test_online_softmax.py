from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from decode_cases import dense_masked, random_weights, step
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.attention.kernels.gather_decode import index_lists
from tasks.attention.kernels.online_softmax import EMPTY, Partial, merge, merge_parts, partial, split_decode


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=5), st.integers(0, 1000), st.floats(0.1, 60))
def test_parts_of_any_sizes_merge_to_the_whole(sizes, seed, spread):
    g = torch.Generator().manual_seed(seed)
    n = max(sum(sizes), 1)
    logits, values = torch.randn(n, generator=g) * spread, torch.randn(n, 3, generator=g)
    weights = (torch.rand(n, generator=g) < 0.6) * torch.rand(n, generator=g) * 4
    weights[0] = 1.0
    cuts = [0, *torch.tensor(sizes).cumsum(0).tolist(), n]
    parts = [partial(logits[a:b], weights[a:b], values[a:b]) for a, b in pairwise(cuts)]
    e = weights.double() * torch.exp((logits - logits.max()).double())
    expected = (e @ values.double()) / e.sum()
    if e.sum() > 1e-200:
        torch.testing.assert_close(merge(parts).output().double(), expected, atol=2e-5, rtol=2e-5)


def test_merging_does_not_depend_on_the_order():
    g = torch.Generator().manual_seed(0)
    parts = [
        partial(torch.randn(2, 9, generator=g) * 20, torch.rand(2, 9, generator=g), torch.randn(2, 9, 4, generator=g)) for _ in range(4)
    ]
    torch.testing.assert_close(merge(parts).output(), merge(parts[::-1]).output())
    torch.testing.assert_close(merge([merge(parts[:2]), merge(parts[2:])]).output(), merge(parts).output())


def test_a_part_that_reads_nothing_counts_nothing():
    logits, values = torch.tensor([1.0, 2.0]), torch.eye(2)
    some = partial(logits, torch.tensor([1.0, 1.0]), values)
    none = partial(logits, torch.zeros(2), values)
    assert float(none.shift) == pytest.approx(EMPTY)
    assert torch.equal(none.output(), torch.zeros(2))
    torch.testing.assert_close(merge([none, some]).output(), some.output())
    assert torch.isfinite(merge([none, none]).output()).all()


def test_huge_logits_do_not_overflow():
    found = partial(torch.tensor([900.0, 901.0]), torch.ones(2), torch.tensor([[0.0], [1.0]]))
    assert float(found.output()) == pytest.approx(1 / (1 + math.exp(-1)), rel=1e-5)


@pytest.mark.parametrize(("chunk", "splits"), [(16, 1), (16, 3), (64, 2), (8, 50)])
def test_the_split_algorithm_is_the_dense_masked_formula(chunk, splits):
    query, keys, values = step(value_width=20)
    weights = random_weights(6, 300)
    found = split_decode(query, keys, values, *index_lists(weights), chunk=chunk, splits=splits)
    torch.testing.assert_close(found, dense_masked(query, keys, values, weights), atol=1e-5, rtol=1e-5)


def test_no_parts_are_refused():
    with pytest.raises(ValueError, match="at least one part"):
        merge([])
    assert isinstance(merge([partial(torch.zeros(1), torch.ones(1), torch.ones(1, 1))]), Partial)


@pytest.mark.parametrize("nothing", [EMPTY, -math.inf])
def test_parts_that_read_nothing_do_not_change_a_merge(nothing):
    shift = torch.tensor([[3.0, nothing]])
    found = merge_parts(shift, torch.tensor([[2.0, 0.0]]), torch.tensor([[[4.0], [0.0]]]))
    assert found.tolist() == [[2.0]]
