import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.low_rank.allocation import global_ranks
from tests.tasks.low_rank.tiny import positive


@given(rank=st.integers(1, 5), seed=st.integers(0, 20))
@settings(max_examples=15, deadline=None)
def test_the_budget_is_spent_exactly_and_every_head_keeps_its_best(rank: int, seed: int):
    importance = {layer: positive(3, 5, seed=seed + layer) * 10**layer for layer in range(2)}
    masks = global_ranks(importance, rank)
    assert sum(int(mask.sum()) for mask in masks.values()) == rank * 6
    for layer, mask in masks.items():
        assert bool(mask.gather(1, importance[layer].argmax(1, keepdim=True)).all())


def test_beyond_the_first_of_each_head_nothing_better_is_left_out():
    importance = {layer: positive(4, 6, seed=layer) for layer in range(3)}
    masks = global_ranks(importance, 3)
    best = {layer: torch.nn.functional.one_hot(value.argmax(1), 6).bool() for layer, value in importance.items()}
    chosen = torch.cat([importance[layer][masks[layer] & ~best[layer]] for layer in importance])
    left = torch.cat([importance[layer][~masks[layer]] for layer in importance])
    assert float(chosen.min()) >= float(left.max())


def test_equal_importances_by_rank_give_uniform_ranks():
    importance = {layer: torch.arange(6, 0, -1.0).expand(2, 6) for layer in range(2)}
    masks = global_ranks(importance, 2)
    assert all(mask.tolist() == [[True, True, False, False, False, False]] * 2 for mask in masks.values())


@pytest.mark.parametrize(("importance", "rank"), [(torch.tensor([[1.0, -1.0]]), 1), (torch.tensor([[1.0, 2.0]]), 3), (torch.ones(1, 2), 0)])
def test_impossible_budgets_and_importances_are_refused(importance: torch.Tensor, rank: int):
    with pytest.raises(ValueError, match=r"must"):
        global_ranks({0: importance}, rank)
