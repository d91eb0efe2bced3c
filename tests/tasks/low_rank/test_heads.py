import math

import pytest
import torch

from tasks.low_rank.heads import bounded_rank, head_rank, join_heads, matrix_rank, split_heads
from tests.tasks.low_rank.tiny import randn


def test_a_head_of_the_split_weight_gives_that_part_of_the_output():
    weight, x = randn(6 * 8, 20), randn(5, 20, seed=1)
    heads = split_heads(weight, 6)
    whole = x @ weight.T
    for j in range(6):
        torch.testing.assert_close(x @ heads[j], whole[:, 8 * j : 8 * j + 8])
    torch.testing.assert_close(join_heads(heads), weight)


def test_shuffling_heads_commutes_with_splitting():
    weight, order = randn(4 * 3, 7), torch.tensor([2, 0, 3, 1])
    rows = weight.reshape(4, 3, 7)[order].reshape(12, 7)
    torch.testing.assert_close(split_heads(rows, 4), split_heads(weight, 4)[order])


def test_a_weight_that_does_not_divide_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match=r"\(10, 4\) does not divide into 3 heads"):
        split_heads(torch.zeros(10, 4), 3)


def test_ranks_are_the_papers():
    assert head_rank(0.5, 4096, 128) == 62
    assert head_rank(0.9, 4096, 128) == 111
    assert head_rank(0.5, 576, 64) == 28  # 0.5 * 64 / (1 + 64/576) = 28.8
    assert matrix_rank(0.5, 576, 576) == 144
    assert matrix_rank(0.5, 576, 960) == 180


@pytest.mark.parametrize("kept", [0.3, 0.5, 0.62, 0.9, 1.0])
def test_the_ratio_is_reached_within_one_rank(kept: float):
    r = head_rank(kept, 576, 64)
    step = (576 + 64) / (576 * 64)
    assert kept - step < r * step <= kept + 1e-9


def test_full_rank_is_allowed_and_more_is_not():
    assert head_rank(1 + 64 / 576, 576, 64) == 64
    for kept in (0.0, -0.1, 1.2, math.nan):
        with pytest.raises(ValueError, match="must lie in"):
            head_rank(kept, 576, 64)


def test_a_rank_above_the_matrix_is_cut_with_a_warning():
    with pytest.warns(UserWarning, match="rank 9 is more"):
        assert bounded_rank(9, 20, 8) == 8
    assert bounded_rank(0, 20, 8) == 1
