import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.rl.set_advantages import distinct_share, draw_sets, set_advantages, set_scores

GROUPS = st.integers(1, 4).flatmap(
    lambda g: st.integers(2, 8).flatmap(
        lambda n: st.tuples(
            st.lists(st.lists(st.floats(0, 1), min_size=n, max_size=n), min_size=g, max_size=g),
            st.lists(st.lists(st.integers(0, 3), min_size=n, max_size=n), min_size=g, max_size=g),
            st.integers(1, n),
            st.integers(1, 5),
        )
    )
)


def slow(returns, kinds, members, objective="polychromic", bonus=0.5):
    """Sets as Python loops over frozen sets."""
    scores = np.zeros(members.shape[:2])
    for g, m in np.ndindex(scores.shape):
        own = members[g, m]
        distinct = len({kinds[g][i] for i in own})
        d = distinct / len(own) if distinct > 1 else 0.0
        mean = sum(returns[g][i] for i in own) / len(own)
        scores[g, m] = {"polychromic": mean * d, "mean": mean, "additive": mean + bonus * d}[objective]
    centred = scores - scores.mean(1, keepdims=True)
    scale = centred.std()
    advantage, weight = np.zeros(np.shape(returns)), np.zeros(np.shape(returns))
    for g, i in np.ndindex(advantage.shape):
        mine = [centred[g, m] for m in range(members.shape[1]) if i in members[g, m]]
        weight[g, i] = len(mine)
        advantage[g, i] = np.mean(mine) / scale if mine and scale > 1e-12 else 0.0
    return scores, advantage, weight


@settings(deadline=None, max_examples=60)
@given(GROUPS, st.sampled_from(["polychromic", "mean", "additive"]))
def test_it_equals_loops_over_sets(case, objective):
    returns, kinds, n, m = case
    members = draw_sets(len(returns), len(returns[0]), n, m, np.random.default_rng(0))
    found = set_advantages(returns, kinds, np.random.default_rng(1), objective=objective, members=members)
    scores, advantage, weight = slow(returns, kinds, members, objective)
    np.testing.assert_allclose(found.score, scores, atol=1e-12)
    np.testing.assert_allclose(found.weight, weight)
    np.testing.assert_allclose(found.advantage, advantage, atol=1e-6)


@settings(deadline=None, max_examples=60)
@given(GROUPS)
def test_sets_of_a_state_sum_to_zero_and_scores_are_bounded(case):
    returns, kinds, n, m = case
    found = set_advantages(returns, kinds, np.random.default_rng(0), set_size=n, sets=m)
    np.testing.assert_allclose((found.advantage * found.weight).sum(1), 0, atol=1e-6)
    assert (found.score >= 0).all()
    assert (found.score <= np.max(returns, 1, keepdims=True) + 1e-12).all()
    np.testing.assert_array_equal(found.weight.sum(1), m * n)


def test_scores_do_not_depend_on_the_order_of_a_set():
    returns, kinds = np.array([[0.1, 0.9, 0.4, 0.0]]), np.array([[1, 2, 1, 3]])
    scores = {float(set_scores(returns, kinds, np.array([[order]]))[0, 0]) for order in itertools.permutations(range(4))}
    assert max(scores) - min(scores) < 1e-12


def test_no_signal_without_diversity_without_return_or_between_identical_sets():
    rng = np.random.default_rng(0)
    same = set_advantages(np.ones((1, 8)), np.zeros((1, 8), int), rng)
    poor = set_advantages(np.zeros((1, 8)), np.arange(8)[None], rng)
    twins = set_advantages([[0.2, 0.8]], [[0, 1]], rng, set_size=2, members=np.array([[[0, 1], [1, 0]]]))
    for found in (same, poor, twins):
        assert not found.advantage.any()
        assert found.scale == 0
        assert found.silent_share == 1.0
    assert same.score.max() == poor.score.max() == 0


def test_sets_of_one_without_diversity_are_reinforce_with_a_baseline():
    """n = 1, d := 1: summed over sets, the gradient weight of rollout i is R_i - mean R when each is in one set."""
    returns = np.array([[0.0, 0.5, 1.0, 0.1]])
    members = np.arange(4)[None, :, None]
    found = set_advantages(returns, np.zeros((1, 4), int), np.random.default_rng(0), objective="mean", members=members, standardise=False)
    np.testing.assert_allclose(found.advantage * found.weight, returns - returns.mean())


def test_a_rollout_without_return_is_reinforced_when_its_sets_score_well():
    found = set_advantages([[1.0, 1.0, 0.0]], [["a", "a", "b"]], np.random.default_rng(0), members=np.array([[[0, 1], [0, 2]]]))
    assert found.advantage[0, 2] > 0 > found.advantage[0, 1]


def test_single_gives_every_rollout_its_own_advantage_with_the_weight_of_the_sets():
    returns = np.array([[0.0, 1.0, 0.5, 0.5]])
    found = set_advantages(returns, np.zeros((1, 4), int), np.random.default_rng(0), objective="single", set_size=2, sets=4)
    np.testing.assert_allclose(found.advantage, (returns - 0.5) / np.std(returns))
    assert (found.weight == 2).all()


def test_diversity_has_its_closed_values():
    kinds = np.array([[0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 2, 3]])
    assert distinct_share(kinds).tolist() == [0, 0.5, 1]
    np.testing.assert_allclose(distinct_share(kinds, "excess"), [0, 1 / 3, 1])


def test_every_rollout_is_drawn_equally_often():
    drawn = draw_sets(2000, 8, 3, 4, np.random.default_rng(0))
    assert all(len(set(map(int, own))) == 3 for own in drawn[:50].reshape(-1, 3))
    share = np.bincount(drawn.ravel(), minlength=8) / drawn.size
    assert np.abs(share - 1 / 8).max() < 0.01


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"returns": [[0.5, 1.2]]}, r"returns must lie in \[0, 1\]"),
        ({"returns": [[0.5, -0.1]]}, r"returns must lie in \[0, 1\]"),
        ({"set_size": 3}, r"set_size must lie in 1..2 .*got 3"),
        ({"sets": 0}, "sets must be at least 1, got 0"),
        ({"objective": "max"}, "unknown objective 'max'"),
        ({"diversity": "entropy"}, "unknown diversity 'entropy'"),
        ({"signatures": [[1, 2, 3]]}, "one shape"),
    ],
)
def test_what_makes_no_sense_is_refused(change, message):
    given_ = {"returns": [[0.0, 1.0]], "signatures": [[0, 1]], "set_size": 2, "sets": 2} | change
    with pytest.raises(ValueError, match=message):
        set_advantages(given_.pop("returns"), given_.pop("signatures"), np.random.default_rng(0), **given_)
