from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_twins import mixed, seeded, slow_set

from tasks.routing import lookahead
from tasks.routing.exact import arrays_of, feasible_next, latest_departures
from tasks.routing.lookahead import CandidateSets
from tasks.routing.tsptw import tsptw

KINDS = ("none", "local", "ssl", "tsl")


def prefixes(instances, b, generator, count=8):
    """Random partial tours with the clock at their end, late ones included."""
    early, steps = instances.early[b], instances.steps[b]
    for _ in range(count):
        order = [0, *(torch.randperm(instances.nodes - 1, generator=generator) + 1).tolist()]
        prefix = order[: int(torch.randint(1, instances.nodes, (1,), generator=generator))]
        clock = float(early[0])
        for i, j in itertools.pairwise(prefix):
            clock = max(clock + float(steps[i, j]), float(early[j]))
        yield prefix, clock


def sets_after(instances, b, prefix, clock):
    unvisited = torch.ones((1, 1, instances.nodes), dtype=torch.bool)
    unvisited[0, 0, prefix] = False
    state = (torch.tensor([b]), torch.tensor([[prefix[-1]]]), torch.tensor([[clock]], dtype=torch.float64), unvisited)
    return {kind: set(CandidateSets(instances, kind)(*state)[0, 0].nonzero()[:, 0].tolist()) for kind in KINDS}


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 8), st.integers(0, 2))
def test_sets_equal_their_definition_and_are_nested_around_the_exact_one(seed, nodes, kind):
    instances = mixed(seed, nodes, 2)[kind]
    for b, arrays in enumerate(arrays_of(instances)):
        latest = latest_departures(arrays)
        for prefix, clock in prefixes(instances, b, seeded(seed)):
            found = sets_after(instances, b, prefix, clock)
            unvisited = [k for k in range(1, nodes) if k not in prefix]
            for name in KINDS:
                assert found[name] == slow_set(instances, b, name, prefix[-1], clock, unvisited)
            exact = set(feasible_next(arrays, prefix, clock, latest))
            assert exact <= found["tsl"] <= found["local"] <= found["none"]
            assert exact <= found["ssl"]
            assert found["ssl"] in (set(), found["none"])


def test_with_one_node_left_two_steps_are_local_feasibility():
    for instances in mixed(7, 5):
        for b in range(len(instances)):
            for last in range(1, 5):
                prefix = [0, *(k for k in range(1, 5) if k != last)]
                found = sets_after(instances, b, prefix, 1.0)
                assert found["tsl"] == found["local"]


def test_without_windows_every_set_is_everything():
    free = tsptw(torch.rand((2, 6, 2), generator=seeded(0)), torch.tensor([0.0, torch.inf]).expand(2, 6, 2))
    found = sets_after(free, 1, [0, 2], 3.0)
    assert all(found[kind] == {1, 3, 4, 5} for kind in KINDS)


def test_a_window_that_the_depot_closes_before_it_opens_is_a_dead_end_at_once():
    # Node 2 opens at 5 and is 2 away from a depot that closes at 5.5; node 1 could be served first.
    void = tsptw([[[0, 0], [1, 0], [2, 0]]], [[[0, 5.5], [0, 9], [5, 9]]])
    found = sets_after(void, 0, [0], 0.0)
    assert found["local"] == {1}
    assert found["tsl"] == found["ssl"] == set()


def test_chunks_change_nothing(monkeypatch):
    instances = mixed(9, 7)[1]
    generator = seeded(1)
    rows, current = torch.arange(6), torch.randint(1, 7, (6, 4), generator=generator)
    unvisited = torch.rand((6, 4, 7), generator=generator) < 0.6
    unvisited[..., 0] = False
    clock = torch.rand((6, 4), generator=generator, dtype=torch.float64)
    whole = CandidateSets(instances, "tsl")(rows, current, clock, unvisited)
    monkeypatch.setattr(lookahead, "MOST_ELEMENTS", 300)
    assert torch.equal(CandidateSets(instances, "tsl")(rows, current, clock, unvisited), whole)


def test_an_unknown_look_ahead_is_refused():
    with pytest.raises(ValueError, match="unknown look-ahead 'three'; known: none, local, ssl, tsl"):
        CandidateSets(mixed(1, 4)[0], "three")
