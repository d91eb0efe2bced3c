"""Reacher of gymnasium as a sparse task: a two-joint arm, another body than the mazes' ball, reached within 2 cm of the target.

A state is (q1, q2, target x, target y, and their velocities). The observation is the environment's, except that the environment reads
the tip at the integrator's last stage. The arm's kinematics are in closed form, so that many episodes run in one native call per step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tasks.offline_rl.batch_rollout import simulate
from tasks.offline_rl.episodes import Episodes
from tasks.offline_rl.maze_controllers import Behaviour, as_episodes, kinds_of
from tasks.offline_rl.rollout_continuous import make_environment

LINKS = (0.1, 0.11)
REACHED = 0.02
FRAMES = 2
HORIZON = 50

BEHAVIOURS = {"expert": Behaviour(0.15, None, 1.0), "wrong_goal": Behaviour(0.65, 20, 0.0), "drifter": Behaviour(0.2, None, 0.0, 0.15)}


class Reacher:
    """The arm, simulated for any number of episodes at once.

    Raises:
        AssetMissing: if mujoco is not installed.

    Example:
        >>> arm = Reacher()
        >>> states, goals = arm.starts(2, np.random.default_rng(0))
        >>> arm.observe(states, goals).shape
        (2, 10)
    """

    horizon = HORIZON

    def __init__(self) -> None:
        import mujoco

        self._env = make_environment("Reacher-v5")
        self.model = self._env.unwrapped.model
        self._scratch = mujoco.MjData(self.model)

    def starts(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """First states (count, 8) and targets (count, 2), from the environment's own laws."""
        joints = rng.uniform(-0.1, 0.1, (count, 2))
        goals = self.new_goals(count, rng)
        velocity = np.hstack([rng.uniform(-0.005, 0.005, (count, 2)), np.zeros((count, 2))])
        return np.hstack([joints, goals, velocity]), goals

    def new_goals(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Targets (count, 2), uniform in the disc of radius 0.2."""
        radius, angle = 0.2 * np.sqrt(rng.random(count)), rng.uniform(0, 2 * np.pi, count)
        return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)

    def step(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """States (n, 8) one time step after torques (n, 2)."""
        return simulate(self.model, self._scratch, states, np.clip(actions, -1, 1), FRAMES)

    def tip(self, states: np.ndarray) -> np.ndarray:
        """Where the arm ends, (..., 2)."""
        first, both = states[..., 0], states[..., 0] + states[..., 1]
        x = LINKS[0] * np.cos(first) + LINKS[1] * np.cos(both)
        return np.stack([x, LINKS[0] * np.sin(first) + LINKS[1] * np.sin(both)], -1)

    def observe(self, states: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """Cos and sin of the joints, target, joint velocities, tip - target: (..., 10)."""
        q = states[..., :2]
        return np.concatenate([np.cos(q), np.sin(q), goals, states[..., 4:6], self.tip(states) - goals], -1)

    def reached(self, states: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """Whether the tip is within 2 cm of the target, (...,)."""
        return np.asarray(np.linalg.norm(self.tip(states) - goals, axis=-1) <= REACHED)


def joints_for(target: np.ndarray) -> np.ndarray:
    """Joint angles (n, 2) that put the tip on targets (n, 2), elbow bent to the left; the nearest reachable radius if there are none.

    Example:
        >>> np.abs(joints_for(np.array([[0.21, 0.0]]))).round(6).tolist()
        [[0.0, 0.0]]
    """
    radius = np.clip(np.linalg.norm(target, axis=1), LINKS[1] - LINKS[0], sum(LINKS))
    elbow = np.arccos(np.clip((radius**2 - LINKS[0] ** 2 - LINKS[1] ** 2) / (2 * LINKS[0] * LINKS[1]), -1, 1))
    shoulder = np.arctan2(target[:, 1], target[:, 0]) - np.arctan2(LINKS[1] * np.sin(elbow), LINKS[0] + LINKS[1] * np.cos(elbow))
    return np.stack([shoulder, elbow], 1)


def collect_reacher(
    behaviours: Mapping[str, Behaviour], count: int, rng: np.random.Generator, arm: Reacher | None = None
) -> tuple[Episodes, np.ndarray]:
    """Run scripted arms: proportional-derivative control of the joints to a target, the real one or a wrong one, with noise.

    Args:
        behaviours: kinds and their shares.
        count: episodes.
        rng: starts, targets and noise.
        arm: a simulator to use.

    Returns:
        the episodes and the kind of each, (count,) str.
    """
    arm = arm or Reacher()
    kinds = kinds_of(behaviours, count)
    states, goals = arm.starts(count, rng)
    target, drift = goals.copy(), np.zeros((count, 2))
    drifting = np.array([behaviours[k].theta is not None for k in kinds])
    obs, actions, after, active, ends = [], [], [], np.ones(count, bool), np.full(count, HORIZON)
    for t in range(HORIZON):
        noise = rng.normal(size=(count, 2))
        for kind, behaviour in behaviours.items():
            who = kinds == kind
            if t == 0 or (behaviour.every and t % behaviour.every == 0):
                wrong, to_goal = arm.new_goals(count, rng), rng.random(count) < behaviour.to_goal
                target[who] = np.where(to_goal[:, None], goals, wrong)[who]
        drift += -0.15 * drift + 0.2 * noise
        turn = (joints_for(target) - states[:, :2] + np.pi) % (2 * np.pi) - np.pi
        torque = 0.5 * turn - 0.1 * states[:, 4:6]
        action = np.clip(np.where(drifting[:, None], drift, torque + 0.2 * noise), -1, 1)
        following = states.copy()
        following[active] = arm.step(states[active], action[active])
        obs.append(arm.observe(states, goals))
        actions.append(action)
        after.append(arm.observe(following, goals))
        arrived = active & arm.reached(following, goals)
        ends[arrived] = t + 1
        active &= ~arrived
        states = following
        if not active.any():
            break
    about = {"environment": "Reacher-v5", "horizon": HORIZON, "reached_within": REACHED}
    return as_episodes(np.stack(obs, 1), np.stack(actions, 1), np.stack(after, 1), ends, ~active, about), kinds
