import numpy as np
import pytest

from tasks.rl.bandit import (
    all_sets,
    best_score,
    expected_score,
    gradient_flow,
    marginal_advantages,
    mass_rates,
    mean_score,
    polychromic_score,
    sampled_ascent,
    softmax,
)
from tasks.rl.set_advantages import distinct_share

REWARD = np.array([1.0, 1.0, 0.0])
SCORES = {"polychromic": polychromic_score(REWARD), "mean": mean_score(REWARD), "best": best_score(REWARD)}


def policies():
    return [softmax(np.random.default_rng(s).normal(size=3)) for s in range(3)] + [np.array([0.9, 0.05, 0.05])]


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("policy", policies())
def test_the_gradient_is_n_pi_a_marg_as_finite_differences_say(name, policy):
    score, n, eps = SCORES[name], 3, 1e-6
    logits = np.log(policy)
    slope = [
        (expected_score(softmax(logits + eps * e), score, n) - expected_score(softmax(logits - eps * e), score, n)) / (2 * eps)
        for e in np.eye(3)
    ]
    advantage = marginal_advantages(policy, score, n)
    np.testing.assert_allclose(n * policy * advantage, slope, atol=1e-8)
    assert (policy * advantage).sum() == pytest.approx(0, abs=1e-12)


def test_pass_at_n_has_its_closed_form():
    for p, n in ((0.3, 4), (0.05, 3)):
        found = marginal_advantages(np.array([p, 1 - p]), best_score(np.array([1.0, 0.0])), n)
        np.testing.assert_allclose(found, [(1 - p) ** n, (1 - p) ** n - (1 - p) ** (n - 1)], atol=1e-12)
        assert found[1] <= 0 <= found[0]


@pytest.mark.parametrize("policy", policies())
def test_the_polychromic_advantage_splits_as_in_the_analysis(policy):
    """A_marg = (r_y / n + (n - 1) / n E r) E[d | y] - E r E d + Cov(mean r, d | y) - Cov(mean r, d)."""
    n, reward = 4, np.array([1.0, 0.4, 0.0])
    sets = all_sets(3, n)
    chance = np.prod(policy[sets], 1)
    mean, d = reward[sets].mean(1), distinct_share(sets)
    expected = (policy * reward).sum()
    covariance = (chance * mean * d).sum() - (chance * mean).sum() * (chance * d).sum()
    for y in range(3):
        own = sets[:, 0] == y
        p = chance[own] / chance[own].sum()
        given = (p * mean[own] * d[own]).sum() - (p * mean[own]).sum() * (p * d[own]).sum()
        value = (reward[y] / n + (n - 1) / n * expected) * (p * d[own]).sum() - expected * (chance * d).sum() + given - covariance
        assert marginal_advantages(policy, polychromic_score(reward), n)[y] == pytest.approx(value, abs=1e-12)


def test_log_mass_moves_as_its_formula_says():
    policy, score, n = np.array([0.9, 0.05, 0.05]), SCORES["polychromic"], 4
    path = gradient_flow(policy, score, n, time=1e-5, steps=1)
    np.testing.assert_allclose((np.log(path[1]) - np.log(path[0])) / 1e-5, mass_rates(policy, score, n), rtol=1e-3, atol=1e-6)


def test_the_objective_never_falls_along_the_flow():
    score = SCORES["polychromic"]
    values = [expected_score(p, score, 4) for p in gradient_flow(np.array([0.9, 0.05, 0.05]), score, 4, 5.0, 40)]
    assert (np.diff(values) > -1e-9).all()


def test_a_rare_rewarded_action_gains_with_sets_and_loses_without():
    start = np.array([0.9, 0.05, 0.05])
    assert mass_rates(start, SCORES["polychromic"], 4)[1] > 0 > mass_rates(start, SCORES["mean"], 1)[1]


def test_sampled_ascent_follows_the_flow_on_average():
    start, score = np.array([0.6, 0.2, 0.2]), SCORES["polychromic"]
    flow = gradient_flow(start, score, 3, 0.5, 20)[-1]
    ends = [sampled_ascent(start, score, 3, 0.025, 20, 200, np.random.default_rng(s))[-1] for s in range(30)]
    assert np.abs(np.mean(ends, 0) - flow).max() < 4 * np.std(ends, 0).max() / np.sqrt(30) + 0.01


def test_impossible_inputs_are_refused():
    with pytest.raises(ValueError, match="sum to 1"):
        marginal_advantages(np.array([0.5, 0.4]), best_score(np.ones(2)), 2)
    with pytest.raises(ValueError, match="million"):
        all_sets(10, 7)
    with pytest.raises(ValueError, match="at least 2"):
        sampled_ascent(np.array([0.5, 0.5]), best_score(np.ones(2)), 2, 0.1, 1, 1, np.random.default_rng(0))
