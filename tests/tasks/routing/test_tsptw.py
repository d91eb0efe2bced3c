from __future__ import annotations

import pytest
import torch
from routing_twins import seeded

from tasks.routing.exact import arrays_of, solve_exactly
from tasks.routing.tsptw import open_depot, tsptw


def test_a_due_time_of_the_depot_is_the_same_as_tightened_windows():
    """By enumeration with an explicit check of the return."""
    import itertools

    locs = torch.rand((8, 6, 2), generator=seeded(0), dtype=torch.float64)
    windows = torch.tensor([0.0, 9.0]).repeat(8, 6, 1).double()
    service = torch.full((8, 6), 0.1, dtype=torch.float64)
    windows[:, 0, 1] = 2.6  # about the length of a good tour with service
    batch = tsptw(locs, windows, service)
    outcomes = set()
    for b, arrays in enumerate(arrays_of(batch)):
        best = float("inf")
        for order in itertools.permutations(range(1, 6)):
            tour = (0, *order, 0)
            legs = [float(batch.distance[b, i, j]) for i, j in itertools.pairwise(tour)]
            if sum(legs) + 0.1 * 6 <= 2.6 + 1e-5:
                best = min(best, sum(legs))
        assert solve_exactly(arrays).cost == pytest.approx(best)
        outcomes.add(best < float("inf"))
    assert outcomes == {True, False}


def test_an_open_depot_never_binds():
    locs = torch.rand((4, 5, 2), generator=seeded(1), dtype=torch.float64)
    early = torch.rand((4, 5), generator=seeded(2), dtype=torch.float64)
    windows = open_depot(locs, early, early + 1)
    batch = tsptw(locs, windows)
    assert torch.allclose(batch.late[:, 1:], (early + 1)[:, 1:])
    assert (windows[:, 0, 0] == 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"windows": torch.tensor([[[0.0, 9.0], [5.0, 4.0]]])}, r"window of node 1 of instance 0 ends before it starts: \[5.0, 4.0\]"),
        ({"windows": torch.tensor([[[0.0, 9.0]]])}, r"windows must have shape \(1, 2, 2\)"),
        ({"windows": torch.tensor([[[0.0, 9.0], [-torch.inf, 4.0]]])}, "must start at a finite time"),
        ({"service": torch.tensor([[0.0, -1.0]])}, "service time of node 1 of instance 0 must be at least 0, got -1"),
        ({"distance": torch.zeros(1, 3, 3)}, "distance must have shape"),
    ],
)
def test_bad_input_is_refused(change, message):
    given = {"locs": torch.zeros(1, 2, 2), "windows": torch.tensor([[[0.0, 9.0], [0.0, 4.0]]])} | change
    with pytest.raises(ValueError, match=message):
        tsptw(**given)
