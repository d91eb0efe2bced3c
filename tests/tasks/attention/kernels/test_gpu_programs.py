"""How a cache is divided among programs."""

from __future__ import annotations

import sys

import pytest

from tasks.attention.kernels.gpu_programs import BLOCK, default_splits, division, import_triton, padded


@pytest.mark.parametrize("length", [1, 63, 64, 65, 1000, 13_107])
@pytest.mark.parametrize("splits", [1, 3, 16, 400])
def test_parts_cover_the_list_in_whole_blocks_and_none_is_empty(length, splits):
    parts, per_split = division(length, splits)
    assert per_split % BLOCK == 0
    assert (parts - 1) * per_split < length <= parts * per_split
    assert parts <= splits


def test_the_device_is_filled_but_no_part_is_smaller_than_a_block():
    assert default_splits(rows=8, length=3277, processors=132) == 52
    assert default_splits(rows=8, length=100_000, processors=132) == 66
    assert default_splits(rows=10_000, length=100_000, processors=132) == 1


@pytest.mark.parametrize("width", [1, 15, 16, 17, 64, 65])
def test_padding_is_the_least_power_of_two_from_sixteen_on(width):
    assert padded(width) >= max(width, 16)
    assert padded(width) & (padded(width) - 1) == 0
    assert padded(width) == 16 or padded(width) < 2 * width


def test_a_missing_triton_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ImportError, match="pip install triton"):
        import_triton()
