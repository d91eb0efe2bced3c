"""Set objectives on a softmax bandit, exactly: what gradient ascent on them does to the probability of each action.

For pi = softmax(z) and a symmetric f of n actions, d E f / d z(y) = n pi(y) A_marg(y), where
A_marg(y) = E[f | one given member is y] - E f.
Hence d log pi(y) / dt = n (pi(y) A_marg(y) - sum_b pi(b)^2 A_marg(b)) under gradient flow. Everything is enumerated over the K^n
ordered sets, so n and K must be small.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from tasks.rl.set_advantages import distinct_share

SetScore = Callable[[np.ndarray], np.ndarray]
"""Sets of actions (B, n) -> scores (B,); must not depend on the order of a set."""


def polychromic_score(reward: np.ndarray) -> SetScore:
    """F is mean reward x share of distinct actions."""
    return lambda sets: reward[sets].mean(-1) * distinct_share(sets)


def mean_score(reward: np.ndarray) -> SetScore:
    """F is the mean reward: its expectation, hence its gradient, is that of a single reward."""
    return lambda sets: np.asarray(reward[sets].mean(-1))


def best_score(reward: np.ndarray) -> SetScore:
    """F is the largest reward of the set: pass@n for rewards 0 and 1."""
    return lambda sets: np.asarray(reward[sets].max(-1))


def expected_score(policy: np.ndarray, score: SetScore, n: int) -> float:
    """E f over n independent draws from a policy (K,)."""
    sets = all_sets(len(policy), n)
    return float((np.prod(policy[sets], 1) * score(sets)).sum())


def marginal_advantages(policy: np.ndarray, score: SetScore, n: int) -> np.ndarray:
    """A_marg (K,): how much a set gains on average by having the action as one of its members.

    Args:
        policy: probabilities (K,), summing to 1.
        score: of sets.
        n: size of a set.

    Raises:
        ValueError: for a policy that is no distribution, or n < 1.

    Example:
        >>> p = 0.25  # one right action among two, f = pass@3
        >>> found = marginal_advantages(np.array([p, 1 - p]), best_score(np.array([1.0, 0.0])), 3)
        >>> np.allclose(found, [(1 - p) ** 3, (1 - p) ** 3 - (1 - p) ** 2])
        True
    """
    if not (np.isclose(policy.sum(), 1) and (policy >= 0).all()):
        raise ValueError(f"policy must hold probabilities that sum to 1, got {policy}")
    others = all_sets(len(policy), n - 1)
    chance = np.prod(policy[others], 1)
    given = [(chance * score(np.column_stack([np.full(len(others), y), others]))).sum() for y in range(len(policy))]
    return np.array(given) - expected_score(policy, score, n)


def mass_rates(policy: np.ndarray, score: SetScore, n: int) -> np.ndarray:
    """D log pi(y) / dt (K,) under gradient flow on E f."""
    advantage = marginal_advantages(policy, score, n)
    return np.asarray(n * (policy * advantage - (policy**2 * advantage).sum()))


def gradient_flow(policy: np.ndarray, score: SetScore, n: int, time: float, steps: int) -> np.ndarray:
    """Policies (steps + 1, K) along gradient flow on E f, by Heun's method.

    Args:
        policy: at time 0, all probabilities positive.
        score: of sets.
        n: size of a set.
        time: until when.
        steps: equal steps.
    """
    logits, dt = np.log(policy), time / steps
    path = [np.asarray(policy, float)]
    for _ in range(steps):
        first = _slope(logits, score, n)
        logits = logits + 0.5 * dt * (first + _slope(logits + dt * first, score, n))
        path.append(softmax(logits))
    return np.array(path)


def sampled_ascent(
    policy: np.ndarray, score: SetScore, n: int, rate: float, steps: int, batch: int, rng: np.random.Generator
) -> np.ndarray:
    """Policies (steps + 1, K) of ascent with sampled sets: the set-shared advantage f - mean f on the score function of every member.

    Args:
        policy: at the start.
        score: of sets.
        n: size of a set.
        rate: step size; rate * steps is the time of `gradient_flow`.
        steps: how many.
        batch: sets drawn per step, at least 2 (their mean is the baseline, and it is left-one-out corrected).
        rng: of the draws.

    Raises:
        ValueError: for batch < 2.
    """
    if batch < 2:
        raise ValueError(f"batch must be at least 2, got {batch}")
    logits = np.log(policy)
    path = [np.asarray(policy, float)]
    for _ in range(steps):
        sets = (rng.random((batch, n))[..., None] > np.cumsum(path[-1])[:-1]).sum(-1)
        scores = score(sets)
        advantage = (scores - scores.mean()) * batch / (batch - 1)
        members = (sets[..., None] == np.arange(len(policy))).sum(1)  # (batch, K)
        logits = logits + rate * (advantage[:, None] * (members - n * path[-1])).mean(0)
        path.append(softmax(logits))
    return np.array(path)


def all_sets(actions: int, n: int) -> np.ndarray:
    """All ordered sets (K^n, n); one empty set for n = 0.

    Raises:
        ValueError: for n < 0, or more than a million sets.
    """
    if n < 0 or actions**n > 1_000_000:
        raise ValueError(f"needs 0 <= n and at most a million sets, got {actions} actions and n = {n}")
    return np.array(list(product(range(actions), repeat=n)), np.int64).reshape(actions**n, n)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities (K,) of logits (K,)."""
    e = np.exp(logits - logits.max())
    return np.asarray(e / e.sum())


def _slope(logits: np.ndarray, score: SetScore, n: int) -> np.ndarray:
    policy = softmax(logits)
    return np.asarray(n * policy * marginal_advantages(policy, score, n))
