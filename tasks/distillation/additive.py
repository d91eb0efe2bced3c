"""Additive predictors f(s, a) = v1 . phi1(s) + v2[a]: Bellman matching as a quadratic form (Theorem 4.4).

The maximum over actions then leaves the state, max_a f(s', a) = v1 . phi1(s') + max_a v2[a], so the TD error is linear in

    xi = (phi1(s), onehot(a), r, c phi1(s'), c),    q = 2 d + A + 2,

and everything in `tasks.distillation.quadratic` applies, with the regressors below. Their coordinates are tied (the same v1 acts on
both states), so fewer than q (q + 1) / 2 of them span all products; the second moment itself stays unidentified and held-out losses
are the measure. The greedy policy of an additive predictor is the same in every state: a theory's tool, never a controller.
"""

from __future__ import annotations

import numpy as np

from tasks.offline_rl.transitions import TdBatch, check_batch


def td_rows(batch: TdBatch, n_actions: int) -> np.ndarray:
    """The rows xi (n, 2 d + A + 2) of transitions, with phi1 the identity.

    Raises:
        ValueError: for actions outside 0..A-1, as `check_batch`.

    Example:
        >>> one = TdBatch(np.array([[2.0]]), np.array([1]), np.array([3.0]), np.array([[4.0]]), np.array([0.5]))
        >>> td_rows(one, 2).tolist()
        [[2.0, 0.0, 1.0, 3.0, 2.0, 0.5]]
    """
    check_batch(batch, n_actions, gamma=0.0)
    c = batch.continuation[:, None]
    return np.hstack([batch.obs, np.eye(n_actions)[batch.action], batch.reward[:, None], c * batch.next_obs, c])


def additive_regressors(k: int, dimension: int, n_actions: int, gamma: float, reward_scale: float, rng: np.random.Generator) -> np.ndarray:
    """K regressors (v1, v2, -lambda, -gamma v1, -gamma max v2), (k, q): r . xi is the TD error of the predictor.

    Args:
        k: number of predictors, >= 1.
        dimension: d.
        n_actions: A.
        gamma: discount, in [0, 1).
        reward_scale: lambda ~ N(0, reward_scale^2).
        rng: generator.

    Raises:
        ValueError: for k < 1 or gamma outside [0, 1).
    """
    if k < 1 or not 0.0 <= gamma < 1.0:
        raise ValueError(f"needs k >= 1 and gamma in [0, 1), got k = {k} and gamma = {gamma}")
    v1, v2 = rng.standard_normal((k, dimension)), rng.standard_normal((k, n_actions))
    lam = reward_scale * rng.standard_normal((k, 1))
    return np.hstack([v1, v2, -lam, -gamma * v1, -gamma * v2.max(axis=1, keepdims=True)])
