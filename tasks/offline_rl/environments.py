"""Classic-control tasks as offline-RL data sources: discount, behaviour policy and learning reward of each.

The behaviour policy mixes a hand-written heuristic with uniformly random actions, in a proportion that rotates over episodes.
The learning reward only shapes what is learned; returns are always reported in the environment's own reward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.offline_rl.transitions import Transitions

Heuristic = Callable[[np.ndarray], int]


@dataclass(frozen=True)
class ControlTask:
    """One environment and how offline data of it is made.

    Attributes:
        env_id: gymnasium's name.
        gamma: discount, in [0, 1).
        random_share: probability of a uniformly random action, by episode in rotation.
        heuristic: state (d,) -> action, taken otherwise.
        step_reward: learning reward of a step that does not terminate.
        terminal_reward: learning reward of one that does.
        cut: steps after which the collector cuts an episode; None leaves it to the environment.
    """

    env_id: str
    gamma: float
    random_share: tuple[float, ...]
    heuristic: Heuristic
    step_reward: float
    terminal_reward: float
    cut: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.gamma < 1.0:
            raise ValueError(f"{self.env_id}: gamma must lie in [0, 1), got {self.gamma}")
        if not self.random_share or not all(0.0 <= p <= 1.0 for p in self.random_share):
            raise ValueError(f"{self.env_id}: random_share must hold probabilities, got {self.random_share}")

    def make(self) -> Any:
        """A fresh environment with the time limit of its specification."""
        import gymnasium

        return gymnasium.make(self.env_id, disable_env_checker=True)

    def learning_reward(self, data: Transitions) -> np.ndarray:
        """Reward (N,) that learners of this task use."""
        return np.where(data.terminated, self.terminal_reward, self.step_reward)


def balance_pole(obs: np.ndarray) -> int:
    """CartPole: push to where the pole falls, a little to where the cart drifts."""
    x, x_dot, theta, theta_dot = obs
    return int(theta + 0.5 * theta_dot + 0.05 * x + 0.1 * x_dot > 0)


def swing_acrobot(obs: np.ndarray) -> int:
    """Acrobot: torque with the turning of the second joint."""
    return 2 if obs[5] > 0 else 0


def rock_car(obs: np.ndarray) -> int:
    """MountainCar: push in the direction of the velocity."""
    return 2 if obs[1] > 0 else 0


TASKS: dict[str, ControlTask] = {
    "cartpole": ControlTask("CartPole-v1", 0.95, (1.0, 1.0, 0.5), balance_pole, 0.0, -1.0, cut=200),
    "acrobot": ControlTask("Acrobot-v1", 0.97, (0.6, 0.3, 1.0), swing_acrobot, -0.1, 0.0),
    "mountaincar": ControlTask("MountainCar-v0", 0.98, (0.6, 0.3, 0.1), rock_car, -0.1, 0.0),
}


def control_task(name: str) -> ControlTask:
    """The task of this name.

    Raises:
        KeyError: for an unknown one, with the list.

    Example:
        >>> control_task("cartpole").gamma
        0.95
    """
    if name not in TASKS:
        raise KeyError(f"unknown environment {name!r}; known: {', '.join(sorted(TASKS))}")
    return TASKS[name]
