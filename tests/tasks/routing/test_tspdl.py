from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.routing.instances import InfeasibleInstance
from tasks.routing.tspdl import tspdl, unreachable_ports


@given(st.lists(st.integers(1, 5), min_size=4, max_size=4), st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_an_order_exists_exactly_if_sorting_by_limits_keeps_them(limits, demand):
    some = any(
        all(sum(demand[p] for p in order[: i + 1]) <= limits[order[i]] for i in range(4)) for order in itertools.permutations(range(4))
    )
    assert (unreachable_ports(torch.tensor([limits]).double(), torch.tensor([demand]).double()) == 0).item() == some


def test_the_load_on_arrival_includes_the_ports_own_demand():
    ports = tspdl(torch.zeros(1, 3, 2), torch.tensor([[3.0, 2.0, 3.0]]), torch.tensor([[0.0, 2.0, 1.0]]))
    assert torch.allclose(ports.clocks(torch.tensor([[[0, 2, 1]]])) * 3, torch.tensor([[[0.0, 1.0, 3.0]]]).double())
    assert ports.is_tour(torch.tensor([[[0, 1, 2], [0, 2, 1]]])).tolist() == [[True, False]]


def test_limits_that_admit_no_order_are_refused_with_the_violated_count():
    with pytest.raises(InfeasibleInstance, match="instance 1 admit no order: 1 ports"):
        tspdl(torch.zeros(2, 3, 2), torch.tensor([[2.0, 1.0, 2.0], [2.0, 1.0, 1.0]]))


@pytest.mark.parametrize("demand", [[[1.0, 1.0, 1.0]], [[0.0, -1.0, 1.0]], [[0.0, 0.0, 0.0]]])
def test_bad_demands_are_refused(demand):
    with pytest.raises(ValueError, match="demand must be"):
        tspdl(torch.zeros(1, 3, 2), torch.full((1, 3), 2.0), torch.tensor(demand))
