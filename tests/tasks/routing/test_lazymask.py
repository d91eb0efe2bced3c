from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_twins import feasible_tours, mixed, seeded, slow_lazy_decode

from tasks.routing.attention_model import AttentionModel
from tasks.routing.exact import arrays_of, solve_exactly
from tasks.routing.imitation import replay
from tasks.routing.lazymask import BUDGET, INFEASIBLE, Step, choose, lazy_decode
from tasks.routing.policies import nearest, table, uniform
from tasks.routing.tsptw import tsptw


def preferences(instances, seed=0):
    return table(torch.rand((len(instances), instances.nodes, instances.nodes), generator=seeded(seed), dtype=torch.float64))


def sees_everything(instances, seed=0):
    """A policy whose scores depend on all that a step shows, with arithmetic that does not depend on the batch."""
    base = torch.rand((len(instances), instances.nodes, instances.nodes), generator=seeded(seed), dtype=torch.float64)

    def score(step: Step):
        state = step.refined + 3 * step.exhausted + 5 * step.relaxed + 0.01 * step.clock
        return torch.sin(10 * base[step.rows[:, None], step.current] + state[..., None])

    return score


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 2), st.sampled_from([0, 1, 3, 50]), st.sampled_from(["tsl", "ssl", "local"]), st.booleans())
def test_a_batch_decodes_bit_for_bit_as_one_by_one(seed, kind, budget, lookahead, training):
    instances = mixed(seed, 8, 5)[kind]
    policy = sees_everything(instances, seed)
    found = lazy_decode(instances, policy, budget, lookahead=lookahead, training=training)
    for b in range(len(instances)):
        tour, status, used, calls = slow_lazy_decode(instances, b, policy, budget, lookahead, training)
        padded = tour + [-1] * (instances.nodes - len(tour))
        assert found.tours[b, 0].tolist() == padded
        assert (int(found.backtracks[b, 0]), int(found.calls[b, 0])) == (used, calls)
        if not training:
            assert int(found.status[b, 0]) == status
        elif len(tour) == instances.nodes:
            assert bool(found.solved[b, 0]) == bool(instances.take([b]).is_tour(torch.tensor([[tour]])))
        one = instances.take([b])
        again = lazy_decode(one, lambda s, b=b: policy(s._replace(rows=s.rows + b)), budget, lookahead=lookahead, training=training)
        for name in ("tours", "clock", "allowed", "refined", "exhausted", "relaxed"):
            assert torch.equal(getattr(again, name)[0], getattr(found, name)[b])


def test_a_network_decodes_a_batch_as_one_by_one_in_float64():
    for instances in mixed(21, 9, 6):
        model = AttentionModel(instances.problem, 16, 2, 1, 32, generator=seeded(1)).double().eval()
        whole = lazy_decode(instances, model.scorer(instances), 5)
        for b in range(len(instances)):
            one = instances.take([b])
            alone = lazy_decode(one, model.scorer(one), 5)
            assert torch.equal(alone.tours[0], whole.tours[b])
            assert torch.equal(one.clocks(alone.tours.clamp(min=0))[0], instances.clocks(whole.tours.clamp(min=0))[b])


def test_permuting_the_batch_permutes_the_answers():
    instances = mixed(30, 10, 8)[0]
    order = torch.randperm(8, generator=seeded(1))
    model = AttentionModel("tsptw", 16, 2, 1, 32, generator=seeded(1)).double().eval()
    for make in (nearest, model.scorer):
        a = lazy_decode(instances, make(instances), 20)
        b = lazy_decode(instances.take(order), make(instances.take(order)), 20)
        assert torch.equal(a.tours[order], b.tours)
        assert torch.equal(a.backtracks[order], b.backtracks)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 9), st.sampled_from(["tsl", "ssl", "local"]))
def test_without_limit_a_tour_is_found_exactly_if_one_exists(seed, nodes, lookahead):
    for instances in mixed(seed, nodes, 3):
        found = lazy_decode(instances, preferences(instances, seed), 10**9, lookahead=lookahead)
        feasible = [solve_exactly(arrays).feasible for arrays in arrays_of(instances)]
        assert found.solved[:, 0].tolist() == feasible
        assert instances.is_tour(found.tours)[found.solved].all()
        assert ((found.status == INFEASIBLE)[:, 0] == ~torch.tensor(feasible)).all()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 12))
def test_infeasible_is_never_said_of_an_instance_with_a_tour(seed, budget):
    instances = mixed(seed, 8, 6)[0]
    found = lazy_decode(instances, preferences(instances, seed), budget)
    for b, arrays in enumerate(arrays_of(instances)):
        if found.status[b, 0] == INFEASIBLE:
            assert not solve_exactly(arrays).feasible
    assert (found.backtracks <= budget).all()


def test_uniform_sampling_reaches_every_feasible_tour():
    instances = mixed(3, 6, 6)[1]
    for b in range(3):
        one = instances.take([b])
        known = {tour for _, tour in feasible_tours(instances, b)}
        found = lazy_decode(one, uniform(one), 10**6, samples=600, generator=seeded(b))
        assert {tuple(tour) for tour in found.tours[0].tolist()} == known


def test_a_golden_case_by_hand():
    """From 0 node 1 is nearest; after 1 both 2 (due 2) and 3 (due 3) cannot be served, so 1 is taken back and 2 comes first.

    Places on a line: 0 at 0, 1 at 1, 2 at -1, 3 at -2. With two-step sets 1 is never allowed; with local sets it is tried once.
    """
    line = tsptw([[[0, 0], [1, 0], [-1, 0], [-2, 0]]], [[[0, 99], [0, 9], [0, 2], [0, 3]]])
    two = lazy_decode(line, nearest(line), 10)
    assert two.tours.tolist() == [[[0, 2, 3, 1]]]
    assert (int(two.backtracks), int(two.calls)) == (0, 3)
    local = lazy_decode(line, nearest(line), 10, lookahead="local")
    assert local.tours.tolist() == [[[0, 2, 3, 1]]]
    # 0-1 runs empty at once (2 is at distance 2, due 2: reached at 3), so one backtrack; at 2, node 1 (2 away) or 3 (1 away): 3, then 1.
    assert (int(local.backtracks), int(local.calls)) == (1, 4)
    assert local.refined[0, 0].tolist() == [1, 0, 0]
    assert local.allowed[0, 0, 0].tolist() == [False, False, True, True]
    assert int(lazy_decode(line, nearest(line), 0, lookahead="local").status) == BUDGET


def test_a_node_without_any_way_is_proved_at_the_root_also_without_budget():
    hopeless = tsptw([[[0, 0], [5, 0]]], [[[0, 99], [0, 1]]])
    assert int(lazy_decode(hopeless, nearest(hopeless), 0).status) == INFEASIBLE
    relaxed = lazy_decode(hopeless, nearest(hopeless), 0, training=True)
    assert relaxed.tours.tolist() == [[[0, 1]]]
    assert (int(relaxed.status), bool(relaxed.relaxed[0, 0, 0])) == (BUDGET, True)


def test_no_budget_in_test_mode_is_masked_decoding_that_stops_and_in_training_that_of_pip():
    instances = mixed(50, 9, 12)[0]
    policy = preferences(instances)
    stopped, relaxed = lazy_decode(instances, policy, 0), lazy_decode(instances, policy, 0, training=True)
    assert torch.equal(stopped.solved, relaxed.solved)
    assert torch.equal(stopped.tours[stopped.solved], relaxed.tours[relaxed.solved])
    assert (relaxed.tours.sort(-1).values == torch.arange(9)).all()
    assert (stopped.backtracks == 0).all()
    assert 0 < int(stopped.solved.sum()) < 12


def test_without_windows_it_is_plain_decoding():
    free = tsptw(torch.rand((3, 7, 2), generator=seeded(0)), torch.tensor([0.0, torch.inf]).expand(3, 7, 2))
    runs = [lazy_decode(free, nearest(free), 5, lookahead=kind) for kind in ("none", "local", "ssl", "tsl")]
    for found in runs:
        assert found.solved.all()
        assert (found.backtracks == 0).all()
        assert torch.equal(found.tours, runs[0].tours)
    assert (runs[3].allowed.sum(-1) == torch.arange(6, 0, -1)).all()


def test_more_budget_never_solves_less_and_one_run_answers_for_smaller_budgets():
    instances = mixed(77, 12, 60)[0]
    policy = sees_everything(instances)
    largest = lazy_decode(instances, policy, 40, show_budget=False)
    before = torch.zeros_like(largest.solved)
    for budget in (0, 1, 2, 5, 10, 40):
        found = lazy_decode(instances, policy, budget, show_budget=False)
        assert (found.solved | ~before).all()
        assert torch.equal(found.solved, largest.within(budget))
        before = found.solved
    assert 0 < int(largest.within(0).sum()) < int(largest.solved.sum())


def test_pruning_happens_only_where_the_node_was_chosen_and_deeper_levels_start_afresh():
    instances = mixed(5, 7, 30)[0]
    pushes = []
    found = lazy_decode(instances, preferences(instances), 10**6, lookahead="local", pushes=pushes)
    tried = {}
    for rows, levels, nodes, _ in pushes:
        for row, level, node in zip(rows.tolist(), levels.tolist(), nodes.tolist(), strict=True):
            tried.setdefault((row, level), []).append(node)
            for deeper in range(level + 1, instances.nodes):
                tried.pop((row, deeper), None)
    checked = 0
    for b in found.solved[:, 0].nonzero()[:, 0].tolist():
        record = replay(instances.take([b]), found.tours[b : b + 1], "local")
        pruned = record.allowed[0, 0] & ~found.allowed[b, 0]
        assert not (found.allowed[b, 0] & ~record.allowed[0, 0]).any()
        for level in range(instances.nodes - 1):
            gone = set(pruned[level].nonzero()[:, 0].tolist())
            assert gone == set(tried[b, level + 1][:-1])
            assert int(found.refined[b, 0, level]) == len(gone)
            checked += len(gone)
    assert checked > 0


def test_samples_of_one_instance_do_not_mix_with_another():
    instances = mixed(8, 8, 5)[1]
    found = lazy_decode(instances, uniform(instances), 100, samples=7, generator=seeded(1), training=True)
    assert found.tours.shape == (5, 7, 8)
    again = instances.clocks(found.tours)
    assert torch.allclose(again[..., :-1], found.clock)
    assert torch.equal(found.solved, instances.is_tour(found.tours))


def test_the_policy_is_never_asked_about_an_empty_set():
    instances = mixed(60, 9, 20)[0]

    def watchful(step: Step):
        assert step.allowed.any(-1).all()
        return nearest(instances)(step)

    lazy_decode(instances, watchful, 10, samples=2)


def test_choices_follow_the_scores():
    scores = torch.tensor([[0.0, 1.0, 2.0]]).repeat(4000, 1)
    allowed = torch.tensor([[True, False, True]]).repeat(4000, 1)
    drawn = choose(scores, allowed, seeded(0))
    assert set(drawn.tolist()) == {0, 2}
    share = torch.tensor([0.0, 2.0]).softmax(0)[1].item()
    assert (drawn == 2).double().mean().item() == pytest.approx(share, abs=4 * (share * (1 - share) / 4000) ** 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"budget": -1}, "budget must be at least 0, got -1"), ({"budget": 1, "samples": 0}, "samples must be at least 1, got 0")],
)
def test_bad_options_are_refused(options, message):
    instances = mixed(1, 5)[1]
    with pytest.raises(ValueError, match=message):
        lazy_decode(instances, nearest(instances), **options)


def test_a_score_that_is_not_a_number_is_refused():
    with pytest.raises(FloatingPointError, match="not a number"):
        choose(torch.tensor([[torch.nan, 1.0]]), torch.tensor([[True, True]]), None)
    assert choose(torch.tensor([[torch.nan, 1.0]]), torch.tensor([[False, True]]), None).tolist() == [1]
