from itertools import combinations, permutations

import numpy as np
import pytest

from tasks.creativity.triangles import TriangleTask, judge, make_task, training_strings, triangles_of, vertex_sets


@pytest.fixture(scope="module")
def task():
    return make_task(14, 8, 12, 0.25, np.random.default_rng(0))


def test_triangles_are_all_triples_of_joined_vertices(task):
    slow = [t for t in combinations(range(14), 3) if all(task.adjacency[i, j] for i, j in combinations(t, 2))]
    assert triangles_of(task.adjacency).tolist() == [list(t) for t in slow]
    both = np.concatenate([task.shown, task.held_out])
    assert sorted(map(tuple, both.tolist())) == slow
    assert len(task.held_out) == round(0.25 * len(slow))


def test_a_triple_is_valid_in_any_order_and_never_with_a_repeated_vertex(task):
    triple = task.shown[0]
    for order in permutations(range(3)):
        assert task.valid(triple[list(order)])
        assert task.was_shown(triple[list(order)])
    assert not task.valid(np.array([triple[0], triple[0], triple[1]]))
    assert not task.was_shown(task.held_out).any()


def test_vertex_sets_are_frozen_sets():
    triples = np.random.default_rng(0).integers(0, 5, (400, 3))
    numbers = vertex_sets(triples, 5)
    groups = {}
    for triple, number in zip(triples.tolist(), numbers.tolist(), strict=True):
        groups.setdefault(frozenset(triple), set()).add(number)
    assert all(len(found) == 1 for found in groups.values())
    assert len({next(iter(found)) for found in groups.values()}) == len(groups)


def test_a_small_graph_is_judged_by_hand():
    """Vertices 0..3 all joined: four triangles; 012 and 013 shown, 023 and 123 held out."""
    task = TriangleTask(~np.eye(4, dtype=bool), np.array([[0, 1, 2], [0, 1, 3]]), np.array([[0, 2, 3], [1, 2, 3]]))
    found = judge(task, np.array([[2, 1, 0], [0, 1, 2], [3, 2, 0], [1, 1, 2], [0, 1, 3]]))
    assert (found.validity, found.unique_valid, found.creativity, found.coverage) == (4 / 5, 3 / 5, 1 / 5, 1 / 2)


def test_strings_are_edges_and_shown_triangles_in_random_order(task):
    edges, triangles = training_strings(task, 501, np.random.default_rng(0))
    assert (len(edges), len(triangles)) == (250, 251)
    assert task.adjacency[edges[:, 0], edges[:, 1]].all()
    assert task.was_shown(triangles).all()
    assert 0.3 < (edges[:, 0] < edges[:, 1]).mean() < 0.7


@pytest.mark.parametrize(
    ("change", "message"),
    [({"vertices": 2}, "at least 3 vertices"), ({"held_out": 1.0}, r"\(0, 1\)"), ({"planted": 0, "edges": 1}, "plant more")],
)
def test_impossible_graphs_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        make_task(**({"vertices": 9, "planted": 4, "edges": 3, "held_out": 0.25} | change), rng=np.random.default_rng(0))


def test_no_samples_are_refused(task):
    with pytest.raises(ValueError, match="no samples"):
        judge(task, np.empty((0, 3), int))
