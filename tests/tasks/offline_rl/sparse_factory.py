"""Small data sets for tests of learners on sparse-reward episodes."""

import numpy as np

from tasks.offline_rl.episodes import Episodes


def episodes(lengths, wins, *, d=3, a=2, seed=0, box=1.0):
    """Random episodes of the given lengths; `wins` tells which end with success."""
    rng = np.random.default_rng(seed)
    blocks = [rng.normal(size=(n + 1, d)) for n in lengths]
    last = np.concatenate([np.arange(n) == n - 1 for n in lengths])
    won = np.repeat(np.asarray(wins, bool), lengths) & last
    return Episodes(
        np.concatenate([b[:-1] for b in blocks]),
        rng.uniform(-box, box, (sum(lengths), a)),
        won.astype(float),
        np.concatenate([b[1:] for b in blocks]),
        terminated=won,
        truncated=last & ~won,
        success=won,
        episode=np.repeat(np.arange(len(lengths)), lengths),
        low=np.full(a, -box),
        high=np.full(a, box),
    )


def chain(n_states=5, repeats=60, seed=0):
    """A chain of states 0..n-1 with every action in every state: action > 0 steps right, else left; success at the right end.

    Every transition is an episode of its own (cut, unless it reaches the end), so that all state-action pairs are covered alike.
    """
    rng = np.random.default_rng(seed)
    state = np.tile(np.arange(n_states - 1), repeats)
    action = rng.uniform(-1, 1, (len(state), 1))
    following = np.clip(state + np.where(action[:, 0] > 0, 1, -1), 0, n_states - 1)
    won = following == n_states - 1
    code = lambda s: np.eye(n_states)[s]  # noqa: E731
    return Episodes(
        code(state),
        action,
        won.astype(float),
        code(following),
        terminated=won,
        truncated=~won,
        success=won,
        episode=np.arange(len(state)),
        low=-np.ones(1),
        high=np.ones(1),
    )


def optimal_values(n_states=5, gamma=0.9):
    """V* of the chain's states but the last, by value iteration over the table."""
    value = np.zeros(n_states)
    for _ in range(200):
        for s in range(n_states - 1):
            right, left = s + 1, max(s - 1, 0)
            value[s] = max(float(right == n_states - 1) + gamma * value[right] * (right < n_states - 1), gamma * value[left])
    return value[:-1]
