"""Rollouts of continuous-action policies in any gymnasium environment, with fixed seeds: the general, slow way.

Mazes have a faster one (`tasks.offline_rl.point_maze`); this one serves every other environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.common.assets import AssetMissing

INSTALL = "pip install 'iclr2026-flows[offline-rl]'"


@dataclass(frozen=True)
class Rollouts:
    """What P policies did in E episodes.

    Attributes:
        returns: sums of the environment's own reward, (P, E).
        success: the environment said `success` in some step, or the episode terminated with a positive reward, (P, E) bool.
        steps: (P, E) int.
    """

    returns: np.ndarray
    success: np.ndarray
    steps: np.ndarray


def make_environment(env_id: str, **options: Any) -> Any:
    """A gymnasium environment, those of gymnasium-robotics included.

    Raises:
        AssetMissing: if what it needs is not installed.
    """
    import gymnasium

    try:
        register(env_id)
        return gymnasium.make(env_id, disable_env_checker=True, **options)
    except ImportError as error:
        raise AssetMissing(env_id, INSTALL, f"cannot be made ({error})") from None


def register(env_id: str) -> None:
    """Make gymnasium know the environments of gymnasium-robotics, if this is one of them."""
    if not env_id.startswith(("PointMaze", "AntMaze", "Fetch", "Adroit", "FrankaKitchen", "HandReach")):
        return
    import contextlib
    import io

    import gymnasium

    # On import it prints a notice about Adroit's rewards, which the documentation of this paper repeats.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        import gymnasium_robotics

        gymnasium.register_envs(gymnasium_robotics)


def rollout(
    make: Callable[[], Any],
    act: Callable[[np.ndarray], np.ndarray],
    flatten: Callable[[Any], np.ndarray],
    n_policies: int,
    reset_seeds: Sequence[int],
    *,
    stop_at_success: bool = False,
) -> Rollouts:
    """Run P policies over E episodes; episode e starts from `reset_seeds[e]` for every policy.

    Args:
        make: makes a fresh environment with a time limit.
        act: states (P, d) -> actions (P, a) in the environment's box.
        flatten: observation -> state (d,).
        n_policies: P.
        reset_seeds: E seeds.
        stop_at_success: end an episode at its first success, as the sparse data sets do.

    Raises:
        ValueError: without policies or seeds.
    """
    if n_policies < 1 or len(reset_seeds) < 1:
        raise ValueError(f"needs at least one policy and one reset seed, got {n_policies} and {len(reset_seeds)}")
    environments = [make() for _ in range(n_policies)]
    shape = (n_policies, len(reset_seeds))
    returns, success, steps = np.zeros(shape), np.zeros(shape, bool), np.zeros(shape, int)
    for e, seed in enumerate(reset_seeds):
        states = np.array([flatten(env.reset(seed=int(seed))[0]) for env in environments])
        active = list(range(n_policies))
        while active:
            actions, running = act(states), []
            for p in active:
                action = np.asarray(actions[p], environments[p].action_space.dtype)
                observation, reward, terminated, truncated, info = environments[p].step(action)
                states[p] = flatten(observation)
                returns[p, e] += float(reward)
                steps[p, e] += 1
                achieved = bool(info.get("success", info.get("is_success", terminated and reward > 0)))
                success[p, e] |= achieved
                if not (terminated or truncated or (achieved and stop_at_success)):
                    running.append(p)
            active = running
    for env in environments:
        env.close()
    return Rollouts(returns, success, steps)
