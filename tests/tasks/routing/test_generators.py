from __future__ import annotations

import pytest
import torch
from routing_twins import seeded

from tasks.routing.exact import arrays_of, solve_exactly
from tasks.routing.generators import CONSTRAINED, HORIZON, random_tspdl, random_tsptw


def test_hard_windows_always_have_a_tour_and_are_at_most_one_wide():
    batch = random_tsptw(40, 10, "hard", seeded(0))
    assert all(solve_exactly(arrays).feasible for arrays in arrays_of(batch))
    assert ((batch.late - batch.early)[:, 1:] <= 1 + 1e-9).all()


@pytest.mark.parametrize(("hardness", "low", "high"), [("easy", 0.5, 0.75), ("medium", 0.1, 0.2)])
def test_widths_and_starts_are_shares_of_the_horizon(hardness, low, high):
    batch = random_tsptw(200, 12, hardness, seeded(1))
    horizon = HORIZON * 12 / 100
    width = (batch.late - batch.early)[:, 1:]
    assert (width >= low * horizon - 0.01).all()
    assert (width <= high * horizon + 0.01).all()
    assert batch.early[:, 1:].max() < horizon
    assert batch.early[:, 1:].mean().item() == pytest.approx(horizon / 2, rel=0.05)


def test_some_small_medium_instances_have_no_tour():
    found = [solve_exactly(arrays).feasible for arrays in arrays_of(random_tsptw(200, 20, "medium", seeded(2025)))]
    assert 0.75 < sum(found) / len(found) < 0.92  # 83 % of 400 by exact search


@pytest.mark.parametrize("hardness", ["easy", "medium", "hard"])
@pytest.mark.parametrize("clamp", [False, True])
def test_draft_limits_are_feasible_and_constrain_the_right_share(hardness, clamp):
    batch = random_tspdl(30, 20, hardness, seeded(3), clamp)
    limits = (batch.late[:, 1:] * 19).round()
    assert (limits.sort(1).values >= torch.arange(1, 20)).all()
    constrained = (limits < 19).sum(1)
    if not clamp:
        assert (constrained == int(CONSTRAINED[hardness] * 20)).all()


def test_tiny_draft_limits_do_not_loop_forever():
    """With 3 to 10 nodes and nine tenths constrained, every port would be, and none could be the last."""
    assert len(random_tspdl(3, 6, "hard", seeded(0))) == 3


def test_a_seed_makes_the_same_batch():
    for make in (random_tsptw, random_tspdl):
        a, b, c = (make(3, 8, "medium", seeded(s)) for s in (5, 5, 6))
        assert torch.equal(a.late, b.late)
        assert not torch.equal(a.locs, c.locs)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (random_tsptw, (1, 1, "hard"), "N >= 2, got N = 1"),
        (random_tsptw, (0, 5, "hard"), "count must be at least 1"),
        (random_tsptw, (1, 5, "fiendish"), "unknown hardness 'fiendish'; known: easy, medium, hard"),
        (random_tspdl, (1, 2, "hard"), "N >= 3, got N = 2"),
    ],
)
def test_bad_sizes_and_names_are_refused(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(*arguments, seeded(0))
