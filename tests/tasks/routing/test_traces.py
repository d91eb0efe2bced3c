from __future__ import annotations

import pytest
from routing_twins import mixed

from tasks.routing.lazymask import lazy_decode
from tasks.routing.policies import nearest
from tasks.routing.traces import search_trace


def test_pushes_less_pops_are_the_tour():
    instances = mixed(3, 10, 30)[0]
    trace = search_trace(instances, nearest, most_backtracks=12)
    assert 0 < trace.backtracks <= 12
    assert len(trace.pushes) == 9 + trace.backtracks
    stack = {0: 0}
    for level, node, _, before in trace.pushes:
        assert stack[int(level) - 1] == before
        stack[int(level)] = int(node)
    assert [stack[level] for level in range(10)] == trace.tour.tolist()
    found = lazy_decode(instances, nearest(instances), 200)
    assert trace.backtracks == int(found.backtracks[found.within(12)].max())


def test_nothing_solved_within_the_limit_is_an_error():
    instances = mixed(3, 9, 6)[2]
    solved = lazy_decode(instances, nearest(instances), 200)
    hard = instances.take((solved.backtracks > 0)[:, 0])
    with pytest.raises(ValueError, match="solved within 0 backtracks; allow more"):
        search_trace(hard, nearest, most_backtracks=0)
