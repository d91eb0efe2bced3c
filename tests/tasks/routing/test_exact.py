from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from routing_twins import best_tour, feasible_tours, lists, mixed, seeded

from tasks.routing.exact import Arrays, DpTooLarge, arrays_of, feasible_next, latest_departures, solve_exactly
from tasks.routing.generators import random_tsptw


@pytest.mark.parametrize("nodes", [2, 5, 7, 8])
@pytest.mark.parametrize("kind", range(3))
def test_dynamic_programming_equals_trying_all_tours(nodes, kind):
    instances = mixed(11 + nodes, nodes)[kind]
    for b, arrays in enumerate(arrays_of(instances)):
        found, (length, _) = solve_exactly(arrays), best_tour(instances, b)
        assert found.cost == pytest.approx(length)
        if found.feasible:
            tour = torch.as_tensor(found.tour)[None, None]
            assert instances.take([b]).is_tour(tour).item()
            assert instances.take([b]).length(tour).item() == pytest.approx(found.cost)


def test_both_outcomes_occur():
    assert {solve_exactly(arrays).feasible for arrays in arrays_of(random_tsptw(20, 8, "medium", seeded(1)))} == {True, False}


def test_waiting_is_free_and_a_pareto_front_is_kept():
    """The short way to node 2 is too late for node 3's window after waiting; only the pair (clock, cost) tells."""
    line = np.array([0.0, 1.0, 2.0, 3.0])
    distance = np.abs(line[:, None] - line)
    early, late = np.array([0.0, 0.0, 5.0, 0.0]), np.array([99.0, 9.0, 9.0, 3.0])
    found = solve_exactly(Arrays(distance, distance, early, late))
    # Node 3 first (due at 3), then 2 (opens at 5), then 1: 3 + 1 + 1 + 1.
    assert found.tour.tolist() == [0, 3, 2, 1]
    assert found.cost == 6


@pytest.mark.parametrize("kind", range(3))
def test_the_exact_potential_set_equals_trying_all_completions(kind):
    instances = mixed(40, 7)[kind]
    for b, arrays in enumerate(arrays_of(instances)):
        latest = latest_departures(arrays)
        tours = [tour for _, tour in feasible_tours(instances, b)]
        early, _, steps = lists(instances, b)
        for prefix in ([0], [0, 3], [0, 3, 1], [0, 2, 4, 6]):
            clock = early[0]
            for i, j in itertools.pairwise(prefix):
                clock = max(clock + steps[i][j], early[j])
            wanted = {tour[len(prefix)] for tour in tours if list(tour[: len(prefix)]) == prefix}
            if not wanted and not any(list(tour[: len(prefix)]) == prefix for tour in tours):
                continue  # the prefix itself may be late, which the set after it does not look at
            assert set(feasible_next(arrays, prefix, clock, latest)) == wanted


def test_limits_of_size_are_named():
    arrays = next(arrays_of(random_tsptw(1, 20, "easy", seeded(0))))
    with pytest.raises(DpTooLarge, match="more than 50 labels"):
        solve_exactly(arrays, most_labels=50)
    big = Arrays(np.zeros((60, 60)), np.zeros((60, 60)), np.zeros(60), np.ones(60))
    with pytest.raises(ValueError, match="at most 56 nodes, got 60"):
        solve_exactly(big)
    with pytest.raises(ValueError, match="at most 16 nodes, got 20"):
        latest_departures(arrays)
