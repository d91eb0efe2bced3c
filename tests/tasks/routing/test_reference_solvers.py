from __future__ import annotations

import stat

import numpy as np
import pytest
import torch
from routing_twins import best_tour, mixed, seeded

from tasks.routing.exact import arrays_of, solve_exactly
from tasks.routing.generators import random_tspdl, random_tsptw
from tasks.routing.reference_solvers import SolverMissing, checked, solve_with_lkh, solve_with_ortools, solve_with_pyvrp
from tasks.routing.tsptw import tsptw


def test_pyvrp_equals_dynamic_programming_on_twenty_hard_instances():
    batch = random_tsptw(20, 20, "hard", seeded(2025))
    for b, arrays in enumerate(arrays_of(batch)):
        found = solve_with_pyvrp(batch.take([b]), iterations=60)
        assert found.cost == pytest.approx(solve_exactly(arrays).cost, abs=2e-3)
        assert batch.take([b]).is_tour(torch.as_tensor(found.tour)[None, None]).item()


def test_pyvrp_finds_nothing_where_there_is_nothing():
    batch = mixed(1, 8, 12)[0]
    found = [solve_with_pyvrp(batch.take([b]), iterations=40).found for b in range(12)]
    assert found == [solve_exactly(arrays).feasible for arrays in arrays_of(batch)]
    assert set(found) == {True, False}


def test_service_takes_time():
    batch = tsptw([[[0, 0], [0, 1], [0, 2]]], [[[0, 99], [0, 99], [0, 2.5]]], [[0.0, 1.0, 0.0]])
    for solve in (solve_with_pyvrp, solve_with_ortools):
        assert solve(batch).tour.tolist() == [0, 2, 1]  # by way of node 1 it would be 3


def test_ortools_equals_trying_all_tours_on_both_problems():
    for batch in (random_tsptw(3, 7, "hard", seeded(4)), random_tspdl(3, 7, "hard", seeded(4))):
        for b in range(3):
            found = solve_with_ortools(batch.take([b]), solutions=30)
            assert found.cost == pytest.approx(best_tour(batch, b)[0], abs=1e-6)


def test_ortools_ends_also_where_its_search_stalls():
    # The fifth of the hard test set: after its first tour the search accepts nothing more and makes no branches.
    one = random_tsptw(320, 20, "hard", seeded(2025)).take(slice(4, 5))
    found = [solve_with_ortools(one, solutions=50, checks=500) for _ in range(2)]
    assert found[0].found
    assert np.array_equal(found[0].tour, found[1].tour)


def test_ortools_without_an_answer_claims_nothing():
    hopeless = tsptw([[[0, 0], [5, 0]]], [[[0, 99], [0, 1]]])
    assert not solve_with_ortools(hopeless).found


def test_a_tour_is_checked_on_unrounded_data():
    batch = mixed(1, 5)[1].take([0])
    assert not checked(batch, [0, 1, 2]).found
    best = best_tour(batch, 0)
    assert checked(batch, list(best[1])).cost == pytest.approx(best[0])


def test_lkh_is_asked_for_by_name_and_its_tour_is_checked(tmp_path):
    batch = random_tsptw(1, 6, "hard", seeded(2))
    with pytest.raises(SolverMissing, match="name the binary"):
        solve_with_lkh(batch, None)
    with pytest.raises(SolverMissing, match="absent"):
        solve_with_lkh(batch, tmp_path / "absent")
    length, tour = best_tour(batch, 0)
    turned = [node + 1 for node in (*tour[2:], *tour[:2])]
    script = tmp_path / "lkh"
    words = "\\n".join(map(str, [*turned, -1]))
    script.write_text(
        "#!/bin/sh\nout=$(sed -n 's/^TOUR_FILE = //p' \"$1\")\ngrep -q TIME_WINDOW_SECTION $(sed -n 's/^PROBLEM_FILE = //p' \"$1\")\n"
        f"printf 'TOUR_SECTION\\n{words}\\n' > \"$out\"\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    assert solve_with_lkh(batch, script).cost == pytest.approx(length)
    script.write_text("#!/bin/sh\nexit 0\n")
    assert not solve_with_lkh(batch, script).found


def test_one_instance_of_the_right_problem():
    with pytest.raises(ValueError, match="one instance at a time, got 2"):
        solve_with_ortools(random_tsptw(2, 5, "hard", seeded(0)))
    with pytest.raises(ValueError, match="instances of tsptw, got tspdl"):
        solve_with_pyvrp(random_tspdl(1, 5, "hard", seeded(0)))


def test_results_are_a_function_of_the_seed():
    batch = random_tsptw(1, 15, "medium", seeded(8))
    assert np.array_equal(solve_with_pyvrp(batch, 50, seed=3).tour, solve_with_pyvrp(batch, 50, seed=3).tour)
