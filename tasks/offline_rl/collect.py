"""Offline data by running a behaviour policy: deterministic for a seed, one row per step, no row across two episodes."""

from __future__ import annotations

import numpy as np

from tasks.offline_rl.environments import ControlTask
from tasks.offline_rl.transitions import Transitions


def collect_transitions(task: ControlTask, steps: int, rng: np.random.Generator) -> Transitions:
    """Run the behaviour policy of a task until `steps` transitions are there.

    Episodes that reach the task's cut, the environment's time limit or the last step are marked truncated, unless they
    terminated in that very step.

    Args:
        task: environment and behaviour policy.
        steps: number N of transitions, >= 1.
        rng: source of the environment's seeds and of the random actions.

    Raises:
        ValueError: for steps < 1, or when the heuristic leaves the action space.

    Example:
        >>> from tasks.offline_rl.environments import control_task
        >>> data = collect_transitions(control_task("mountaincar"), 50, np.random.default_rng(0))
        >>> data.obs.shape, bool(data.truncated[-1])
        ((50, 2), True)
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    env = task.make()
    n_actions = int(env.action_space.n)
    rows: list[tuple[np.ndarray, int, float, np.ndarray, bool, bool, int]] = []
    episode = 0
    while len(rows) < steps:
        obs, _ = env.reset(seed=int(rng.integers(2**31)))
        share = task.random_share[episode % len(task.random_share)]
        length, over = 0, False
        while not over and len(rows) < steps:
            action = int(rng.integers(n_actions)) if rng.random() < share else task.heuristic(obs)
            if not 0 <= action < n_actions:
                raise ValueError(f"{task.env_id}: the heuristic chose action {action}, outside 0..{n_actions - 1}")
            following, reward, terminated, truncated, _ = env.step(action)
            length += 1
            cut = truncated or length == task.cut or len(rows) + 1 == steps
            rows.append((obs, action, float(reward), following, bool(terminated), bool(cut and not terminated), episode))
            obs, over = following, terminated or cut
        episode += 1
    env.close()
    obs_, action_, reward_, next_, terminated_, truncated_, episode_ = zip(*rows, strict=True)
    return Transitions(
        np.asarray(obs_, float),
        np.asarray(action_, np.int64),
        np.asarray(reward_, float),
        np.asarray(next_, float),
        np.asarray(terminated_, bool),
        np.asarray(truncated_, bool),
        np.asarray(episode_, np.int64),
    )
