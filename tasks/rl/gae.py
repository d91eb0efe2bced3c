"""Generalised advantage estimation (Schulman et al., 2016) on padded, time-major rollouts."""

from __future__ import annotations

import numpy as np


def advantages_and_returns(
    reward: np.ndarray,
    value: np.ndarray,
    alive: np.ndarray,
    gamma: float = 1.0,
    lam: float = 0.95,
    last_value: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages A_t = sum_k (gamma lam)^k delta_{t+k} with delta_t = r_t + gamma V_{t+1} - V_t, and the critic's targets A_t + V_t.

    Args:
        reward: (T, N).
        value: V(s_t) (T, N).
        alive: whether step t was taken (T, N), true up to each trajectory's end.
        gamma: discount in [0, 1].
        lam: 0 gives the TD error, 1 the Monte-Carlo return minus the value.
        last_value: V (N,) of the state after the last step. 0 says that nothing can be earned any more, be it that the task ended or
            that the finite horizon did; give the critic's value where a rollout was merely cut.

    Returns:
        advantages and returns (T, N), 0 where no step was taken.

    Raises:
        ValueError: for gamma or lam outside [0, 1], or shapes that differ.

    Example:
        >>> a, r = advantages_and_returns(np.array([[0.0], [1.0]]), np.zeros((2, 1)), np.ones((2, 1), bool), lam=1.0)
        >>> a[:, 0].tolist()
        [1.0, 1.0]
    """
    for name, number in (("gamma", gamma), ("lam", lam)):
        if not 0.0 <= number <= 1.0:
            raise ValueError(f"{name} must lie in [0, 1], got {number}")
    if not reward.shape == value.shape == alive.shape:
        raise ValueError(f"reward, value and alive need one shape (T, N), got {reward.shape}, {value.shape}, {alive.shape}")
    advantage = np.zeros(reward.shape)
    running = np.zeros(reward.shape[1])
    following = np.broadcast_to(np.asarray(last_value, float), running.shape)
    for t in reversed(range(len(reward))):
        error = reward[t] + gamma * following - value[t]
        running = np.where(alive[t], error + gamma * lam * running, running)
        advantage[t] = np.where(alive[t], running, 0.0)
        following = np.where(alive[t], value[t], following)
    return advantage, np.where(alive, advantage + value, 0.0)
