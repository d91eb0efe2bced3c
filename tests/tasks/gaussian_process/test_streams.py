from __future__ import annotations

import pytest
import torch

from tasks.gaussian_process.streams import SeedStreams


def test_a_seeds_draws_do_not_depend_on_its_neighbours():
    together, alone = SeedStreams([3, 8, 5]), SeedStreams([8])
    for _ in range(2):
        assert torch.equal(together.normal(4, 2)[1], alone.normal(4, 2)[0])
        assert torch.equal(together.uniform(3)[1], alone.uniform(3)[0])
        assert torch.equal(together.rows(9, 4)[1], alone.rows(9, 4)[0])


def test_purposes_and_seeds_differ():
    a, b = SeedStreams([0, 1], purpose=0).normal(50), SeedStreams([0, 1], purpose=1).normal(50)
    assert abs(torch.corrcoef(torch.cat([a, b])).triu(1)).max() < 0.5
    assert not torch.equal(a[0], a[1])


def test_rows_are_drawn_without_replacement():
    rows = SeedStreams([0, 1]).rows(10, 10)
    assert rows.sort(1).values.tolist() == [list(range(10))] * 2
    assert SeedStreams([0]).rows(5, 99).shape == (1, 5)


def test_no_seeds_are_refused():
    with pytest.raises(ValueError, match="at least one seed"):
        SeedStreams([])


def test_a_copy_goes_on_as_the_original_and_does_not_move_it():
    streams = SeedStreams([3, 4])
    streams.normal(2)
    other = streams.copy()
    expected = other.normal(5)
    assert torch.equal(streams.normal(5), expected)
    assert not torch.equal(streams.normal(5), expected)
