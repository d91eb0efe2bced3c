"""Segments: distribution and order, against drawing them one by one."""

import doctest
from collections import Counter
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.offline_rl import segments as module
from tasks.offline_rl.segments import sample_segments


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(module).failed == 0


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5), k=st.integers(1, 15), seed=st.integers(0, 99))
def test_segments_stay_in_one_trajectory_in_time_order(lengths, k, seed):
    length = torch.tensor(lengths)
    start = torch.cumsum(length, 0) - length + 7
    rows = sample_segments(start, length, 20, k, generator(seed))
    assert rows.shape == (20, k)
    owner = torch.searchsorted(start, rows, right=True) - 1
    assert bool((owner == owner[:, :1]).all())
    long = length[owner[:, 0]] >= k
    assert bool((rows[long].diff(dim=1) > 0).all())
    assert bool((rows.diff(dim=1) >= 0).all())
    for row, n, first in zip(rows[~long], length[owner[~long, 0]], start[owner[~long, 0]], strict=True):
        assert set(row.tolist()) == set(range(int(first), int(first + n)))


def test_every_subset_is_equally_likely():
    rows = sample_segments(torch.tensor([0]), torch.tensor([5]), 20_000, 2, generator())
    seen = Counter(tuple(r) for r in rows.tolist())
    assert set(seen) == set(combinations(range(5), 2))
    chi_square = sum((n - 2000) ** 2 / 2000 for n in seen.values())
    assert chi_square < 27.9  # 0.999 quantile with 9 degrees of freedom


def test_trajectories_are_equally_likely_whatever_their_length():
    rows = sample_segments(torch.tensor([0, 100]), torch.tensor([100, 5]), 4000, 3, generator())
    assert (rows[:, 0] >= 100).float().mean().item() == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize(
    ("start", "length", "count", "k", "message"),
    [
        ([0], [3], 1, 0, "k = 0"),
        ([0], [3], 0, 1, "count = 0"),
        ([], [], 1, 1, "at least one trajectory"),
        ([0], [0], 1, 1, "at least one step"),
    ],
)
def test_bad_requests_are_refused(start, length, count, k, message):
    with pytest.raises(ValueError, match=message):
        sample_segments(torch.tensor(start, dtype=torch.long), torch.tensor(length, dtype=torch.long), count, k, generator())
