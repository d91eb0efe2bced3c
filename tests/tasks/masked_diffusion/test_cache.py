from __future__ import annotations

import pytest
import torch

from tasks.masked_diffusion.cache import Shape, StateCache


def states(first: int, count: int) -> torch.Tensor:
    return torch.arange(first, first + count, dtype=torch.float32).view(1, 1, count, 1)


def test_rows_are_positions_and_active_ones_are_overwritten():
    cache = StateCache(Shape(1, 1, 1), 5)
    cache.begin(0, 5)
    cache.extend(0, states(0, 5), states(0, 5))
    cache.freeze(2)
    cache.begin(2, 3)
    keys, values = cache.extend(0, states(12, 3), states(22, 3))
    assert keys.flatten().tolist() == [0, 1, 12, 13, 14]
    assert values.flatten().tolist() == [0, 1, 22, 23, 24]
    cache.freeze(4)
    assert (cache.frozen, cache.written, cache.appends) == (4, 4, [(0, 2), (2, 4)])


def test_a_dual_cache_reads_rows_behind_its_inputs():
    cache = StateCache(Shape(1, 1, 1), 4)
    cache.begin(0, 4)
    cache.extend(0, states(0, 4), states(0, 4))
    cache.freeze(1)
    cache.begin(1, 2, visible=4)
    assert cache.extend(0, states(7, 2), states(7, 2))[0].flatten().tolist() == [0, 7, 8, 3]
    cache.keep_all()
    assert cache.written == 3
    assert cache.frozen == 1


def test_freezing_again_counts_again():
    cache = StateCache(Shape(0, 1, 1), 4)
    cache.begin(0, 4)
    cache.freeze(2)
    cache.begin(0, 4)
    cache.freeze(3)
    assert cache.written == 5


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="capacity must be at least 1 position, got 0"):
        StateCache(Shape(1, 1, 1), 0)
    cache = StateCache(Shape(1, 1, 1), 4)
    with pytest.raises(ValueError, match="would skip states, only 0 are frozen"):
        cache.begin(1, 2)
    with pytest.raises(ValueError, match="do not fit into a cache of 4"):
        cache.begin(0, 5)
    with pytest.raises(ValueError, match="do not fit"):
        cache.begin(0, 3, visible=2)
    cache.begin(0, 2)
    with pytest.raises(ValueError, match="cannot freeze 3 rows, the last call ended at 2"):
        cache.freeze(3)
