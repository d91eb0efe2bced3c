from __future__ import annotations

import pytest
import torch
from routing_twins import feasible_tours, mixed

from tasks.routing.instances import check_locs, check_nodes, join


@pytest.mark.parametrize("kind", range(3))
def test_length_clocks_and_feasibility_against_all_tours(kind):
    instances = mixed(3, 6)[kind]
    for b in range(len(instances)):
        known = feasible_tours(instances, b)
        if not known:
            continue
        tours = torch.tensor([tour for _, tour in known])[None]
        one = instances.take([b])
        assert one.is_tour(tours).all()
        assert torch.allclose(one.length(tours)[0], torch.tensor([length for length, _ in known], dtype=torch.float64))
        assert (one.clocks(tours)[0].gather(1, tours[0].argsort(1)) <= one.deadline[0]).all()


def test_a_late_visit_is_in_excess_and_no_tour():
    from tasks.routing.tsptw import tsptw

    late = tsptw([[[0, 0], [3, 4], [0, 1]]], [[[0, 99], [0, 4], [20, 30]]])
    tours = torch.tensor([[[0, 1, 2], [0, 2, 1]]])
    # To node 1 directly: 5 instead of 4; after waiting for node 2 until 20 it is 20 + sqrt(18) - 4 late.
    assert late.excess(tours)[0].tolist() == [[0, 1, 0], [0, 0, pytest.approx(16 + 18**0.5)]]
    assert late.is_tour(tours).tolist() == [[False, False]]
    assert late.is_tour(torch.tensor([[[0, 2, 2], [2, 0, 1]]])).tolist() == [[False, False]]


def test_features_are_in_units_of_the_clock_and_finite_without_windows():
    from tasks.routing.tsptw import tsptw

    instances = mixed(1, 7)[1]
    seen = instances.features()
    assert torch.equal(seen[..., :2], instances.locs)
    assert torch.allclose(seen[..., 3] * instances.scale[:, None], instances.late)
    free = tsptw(torch.rand(1, 4, 2), torch.tensor([0.0, torch.inf]).expand(1, 4, 2))
    assert torch.isfinite(free.features()).all()


def test_taking_and_joining_gives_the_batch_back():
    instances = mixed(5, 6)[2]
    again = join([instances.take(slice(0, 2)), instances.take(slice(2, None))])
    assert torch.equal(again.steps, instances.steps)
    assert len(again) == len(instances)
    assert again.to("cpu").problem == "tspdl"


@pytest.mark.parametrize(
    ("locs", "message"),
    [
        (torch.zeros(2, 2), r"shape \(B, N, 2\)"),
        (torch.zeros(1, 1, 2), "N >= 2, got N = 1"),
        (torch.tensor([[[0.0, 0.0], [torch.nan, 1.0]]]), "node 1 of instance 0 are not finite"),
    ],
)
def test_bad_coordinates_are_refused(locs, message):
    with pytest.raises(ValueError, match=message):
        check_locs(locs)


def test_numbers_that_do_not_fit_the_nodes_are_refused():
    with pytest.raises(ValueError, match=r"windows must have shape \(1, 3, 2\) to fit locs, got \(1, 2, 2\)"):
        check_nodes("windows", torch.zeros(1, 2, 2), torch.zeros(1, 3, 2), 2)
    with pytest.raises(ValueError, match="limits of node 2 is not a number"):
        check_nodes("limits", torch.tensor([[1.0, 1.0, torch.nan]]), torch.zeros(1, 3, 2))
