"""The real minigrid behind the same interface as its batched twin, one environment object per agent, and the comparison of the two.

Policies act here on what minigrid itself shows: its observation is looked up among the twin's, and one that the twin does not know is
an error.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.gridworld.demonstrations import view_codes
from tasks.gridworld.layouts import make_level, reset, target_of
from tasks.gridworld.static_worlds import ACTIONS, StaticWorlds


@dataclass
class Running:
    """N running environments, with what each shows and what is to be reached in it."""

    envs: list[Any]
    shown: list[dict[str, Any]]
    targets: list[tuple[int, int | None]]

    def take(self, rows: np.ndarray) -> Running:
        """Some of them: the same objects, which go on moving."""
        return Running(*([column[i] for i in rows] for column in (self.envs, self.shown, self.targets)))

    def __len__(self) -> int:
        return len(self.envs)


class RealWorlds:
    """Configurations of a twin, run in minigrid.

    Environment objects are reset once for each configuration and then set back to its start: in these levels nothing else changes.

    Raises:
        NotImplementedError: by `save` and `put`; vines grow in the twin, or in `tasks.gridworld.instruction_worlds`.
    """

    actions = ACTIONS

    def __init__(self, twin: StaticWorlds) -> None:
        self.twin, self.horizon = twin, twin.horizon
        self._kept: dict[tuple[int, int], Any] = {}

    def reset(self, config: np.ndarray) -> Running:
        """Environments at the starts of configurations (N,)."""
        uses: Counter[int] = Counter()
        envs, shown, targets = [], [], []
        for c in map(int, config):
            key = (c, uses[c])
            uses[c] += 1
            if key not in self._kept:
                self._kept[key] = make_level(self.twin.layouts.level, max_steps=self.horizon)
                reset(self._kept[key], int(self.twin.layouts.seed[c]))
            env = self._kept[key]
            x, y, direction = map(int, self.twin.layouts.start[c])
            stand(env, x, y, direction)
            envs.append(env)
            shown.append(env.gen_obs())
            targets.append(target_of(env))
        return Running(envs, shown, targets)

    def observe(self, state: Running) -> np.ndarray:
        """Numbers (N,) of what the environments show, in the twin's count."""
        return self.twin.number_of(np.array([view_codes(o, t) for o, t in zip(state.shown, state.targets, strict=True)]))

    def place(self, state: Running) -> np.ndarray:
        """Rooms (N,)."""
        stands = np.array([[*env.agent_pos, env.agent_dir] for env in state.envs], np.int64).reshape(-1, 3)
        return np.asarray(self.twin.room[0, self.twin.row_of(stands[:, 0], stands[:, 1], stands[:, 2])])

    def step(self, state: Running, action: np.ndarray) -> tuple[Running, np.ndarray]:
        """The same environments a step later, and whether (N,) they ended with success."""
        success = np.zeros(len(state), bool)
        for i, (env, a) in enumerate(zip(state.envs, action, strict=True)):
            state.shown[i], reward, terminated, _, _ = env.step(int(a))
            success[i] = terminated and reward > 0
        return state, success

    def save(self, state: Running, rows: np.ndarray) -> Running:
        """Not offered."""
        raise NotImplementedError("states of real environments are not saved here: grow vines in the twin, which agrees with them")

    def put(self, state: Running, rows: np.ndarray, part: Running) -> Running:
        """Not offered."""
        raise NotImplementedError("states of real environments are not put together here: replay in the twin, which agrees with them")


def stand(env: Any, x: int, y: int, direction: int) -> None:
    """Put the agent of a real environment into a cell, at the beginning of the episode."""
    env.agent_pos, env.agent_dir, env.step_count = (x, y), direction, 0


def count_mismatches(twin: StaticWorlds, configs: np.ndarray) -> tuple[int, int]:
    """Compare every free state and every action of some configurations with minigrid.

    Checked are the view before and after the action, position, direction and success.

    Returns:
        how many (state, action) pairs were compared, and in how many of them anything differed.
    """
    compared = differing = 0
    real = RealWorlds(twin)
    for config in map(int, configs):
        running = real.reset(np.array([config]))
        (env,), (target,) = running.envs, running.targets
        standable = (twin.view[config] >= 0) & ~(twin.reached[config] if twin.layouts.level == "fourrooms" else False)  # the goal ends it
        rows = np.flatnonzero(standable)
        for row, (x, y, direction) in zip(rows, twin.coordinates(rows), strict=True):
            for action in range(ACTIONS):
                stand(env, int(x), int(y), int(direction))
                before = view_codes(env.gen_obs(), target) if action == 0 else twin.views[twin.view[config, row]]
                shown, reward, terminated, _, _ = env.step(action)
                after = twin.following[config, row, action]
                same = (
                    np.array_equal(before, twin.views[twin.view[config, row]])
                    and [*map(int, env.agent_pos), int(env.agent_dir)] == twin.coordinates(after).tolist()
                    and np.array_equal(view_codes(shown, target), twin.views[twin.view[config, after]])
                    and bool(terminated and reward > 0) == bool(twin.reached[config, after])
                )
                compared += 1
                differing += not same
    return compared, differing
