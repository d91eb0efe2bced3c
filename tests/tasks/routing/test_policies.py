from __future__ import annotations

import torch
from routing_twins import mixed, seeded

from tasks.routing.lazymask import lazy_decode
from tasks.routing.policies import earliest_deadline, nearest, table, uniform
from tasks.routing.tspdl import tspdl


def test_earliest_deadline_is_optimal_for_draft_limits_and_breaks_ties_by_index():
    for seed in range(5):
        ports = mixed(seed, 9)[2]
        assert lazy_decode(ports, earliest_deadline(ports), 0).solved.all()
    equal = tspdl(torch.zeros(1, 4, 2), torch.full((1, 4), 3.0))
    assert lazy_decode(equal, earliest_deadline(equal), 0).tours.tolist() == [[[0, 1, 2, 3]]]


def test_nearest_takes_the_nearest_of_the_set():
    instances = mixed(2, 7)[1]
    found = lazy_decode(instances, nearest(instances), 50)
    for b in found.solved[:, 0].nonzero()[:, 0].tolist():
        for level in range(6):
            allowed = found.allowed[b, 0, level]
            away = instances.distance[b, found.current[b, 0, level]].masked_fill(~allowed, torch.inf)
            assert int(away.argmin()) == int(found.tours[b, 0, level + 1])


def test_uniform_has_no_preference_and_table_has_its_own():
    instances = mixed(4, 5)[1]
    preferred = torch.zeros((6, 5, 5)).index_fill(2, torch.tensor([4]), 1.0)
    found = lazy_decode(instances, table(preferred), 0, lookahead="none")
    assert (found.tours[..., 1] == 4).all()
    drawn = lazy_decode(instances, uniform(instances), 0, lookahead="none", samples=300, generator=seeded(0))
    share = torch.nn.functional.one_hot(drawn.tours[..., 1], 5).double().mean((0, 1))
    assert (share[1:] - 0.25).abs().max() < 0.05
