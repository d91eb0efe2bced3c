"""BabyAI levels as they are: doors, objects that can be carried, and an instruction in words; one environment object per agent.

The world behind the large networks of the gpu profile. States are copied whole, so that vines can start anywhere.
"""

from __future__ import annotations

import copy
import io
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.gridworld.layouts import make_minigrid, reset

_TEXT = (
    "<none> go to the a pick up open put next and then after you red green blue purple yellow grey ball box key door object "
    "on your left right in front of behind"
)
WORDS = tuple(dict.fromkeys(_TEXT.split()))
LONGEST = 40
WIDTH = 7 * 7 * 3 + 1 + LONGEST
"""Numbers in an observation: 7 x 7 cells of three, the direction, the words."""


@dataclass
class Instructed:
    """N running environments and what they show (N, WIDTH)."""

    envs: list[Any]
    shown: np.ndarray

    def take(self, rows: np.ndarray) -> Instructed:
        """Some of them: the same objects, which go on moving."""
        return Instructed([self.envs[i] for i in rows], self.shown[rows])

    def __len__(self) -> int:
        return len(self.envs)


class InstructionWorlds:
    """Configurations of one BabyAI level; a configuration is a reset seed.

    Args:
        env_id: minigrid's name of a level whose environment has rooms and instructions.
        seeds: reset seeds.
        horizon: steps of an episode.

    Raises:
        NotImplementedError: for an environment without rooms: there is nothing to tell kinds of behaviour apart by.
    """

    actions = 7

    def __init__(self, env_id: str, seeds: np.ndarray, horizon: int = 100) -> None:
        self.env_id, self.seeds, self.horizon = env_id, np.asarray(seeds), horizon
        self._fresh: dict[int, Any] = {}
        if not hasattr(make_minigrid(env_id, horizon), "room_size"):
            raise NotImplementedError(f"{env_id} has no rooms, and rooms are the signature of a rollout here; take a BabyAI level")

    def reset(self, config: np.ndarray) -> Instructed:
        """Environments at the starts of configurations (N,); each is generated once and copied."""
        envs, shown = [], []
        for c in map(int, config):
            if c not in self._fresh:
                env = make_minigrid(self.env_id, 10 * self.horizon)  # time is kept by the rollout
                reset(env, int(self.seeds[c]))
                self._fresh[c] = env
            envs.append(copy.deepcopy(self._fresh[c]))
            shown.append(pack(envs[-1].gen_obs()))
        return Instructed(envs, np.array(shown, np.int16).reshape(-1, WIDTH))

    def observe(self, state: Instructed) -> np.ndarray:
        """Observations (N, WIDTH)."""
        return state.shown.copy()

    def place(self, state: Instructed) -> np.ndarray:
        """Rooms (N,)."""
        rooms = []
        for env in state.envs:
            pitch = env.room_size - 1
            column, row = (min(int(p) // pitch, most - 1) for p, most in zip(env.agent_pos, (env.num_cols, env.num_rows), strict=True))
            rooms.append(column + env.num_cols * row)
        return np.array(rooms, np.int64)

    def step(self, state: Instructed, action: np.ndarray) -> tuple[Instructed, np.ndarray]:
        """The same environments a step later, and whether (N,) they ended with success."""
        success = np.zeros(len(state), bool)
        for i, (env, a) in enumerate(zip(state.envs, action, strict=True)):
            observation, reward, terminated, _, _ = env.step(int(a))
            state.shown[i] = pack(observation)
            success[i] = terminated and reward > 0
        return state, success

    def save(self, state: Instructed, rows: np.ndarray) -> Instructed:
        """Independent copies."""
        return Instructed([copy.deepcopy(state.envs[i]) for i in rows], state.shown[rows])

    def put(self, state: Instructed, rows: np.ndarray, part: Instructed) -> Instructed:
        """States with some rows replaced; environments have moved in place already."""
        for i, env in zip(rows, part.envs, strict=True):
            state.envs[i] = env
        state.shown[rows] = part.shown
        return state


def pack(observation: dict[str, Any]) -> np.ndarray:
    """A dictionary observation as numbers (WIDTH,)."""
    parts = (np.asarray(observation["image"]).ravel(), [int(observation["direction"])], words_of(str(observation["mission"])))
    return np.concatenate(parts).astype(np.int16)


def words_of(mission: str) -> np.ndarray:
    """Numbers (LONGEST,) of the words of an instruction, filled up with 0.

    Raises:
        ValueError: for a word that BabyAI does not use, or an instruction that is too long.

    Example:
        >>> [WORDS[i] for i in words_of("go to the red ball")[:6]]
        ['go', 'to', 'the', 'red', 'ball', '<none>']
    """
    words = mission.replace(",", " ").split()
    if len(words) > LONGEST:
        raise ValueError(f"an instruction may have {LONGEST} words, got {len(words)}: {mission!r}")
    if unknown := [word for word in words if word not in WORDS]:
        raise ValueError(f"unknown words {unknown} in instruction {mission!r}")
    return np.array([WORDS.index(word) for word in words] + [0] * (LONGEST - len(words)), np.int16)


def bot_demonstrations(env_id: str, seeds: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Observations (B, WIDTH) and actions (B,) of BabyAI's bot in those configurations that it solves in time."""
    from minigrid.utils.baby_ai_bot import BabyAIBot

    observations, actions = [], []
    env = make_minigrid(env_id, 10 * horizon)
    for seed in seeds:
        shown = reset(env, int(seed))
        bot, done, reward = BabyAIBot(env), False, 0.0  # type: ignore[no-untyped-call]
        own: list[tuple[np.ndarray, int]] = []
        while not done and len(own) < horizon:
            with redirect_stdout(io.StringIO()):
                action = int(bot.replan())  # type: ignore[no-untyped-call]
            own.append((pack(shown), action))
            shown, reward, done, _, _ = env.step(action)
        if done and reward > 0:
            observations += [o for o, _ in own]
            actions += [a for _, a in own]
    return np.array(observations, np.int16).reshape(-1, WIDTH), np.array(actions, np.int64)


def minari_demonstrations(dataset: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Observations (B, WIDTH) and actions (B,) of the first whole episodes of a Minari data set, at least `steps` if it has them.

    Raises:
        AssetMissing: if the data set is not in the local Minari store.
    """
    from tasks.offline_rl.minari_data import load_minari

    observations, actions = [], []
    for episode in load_minari(dataset).iterate_episodes():
        shown = episode.observations
        for t, action in enumerate(episode.actions):
            observations.append(pack({name: shown[name][t] for name in ("image", "direction", "mission")}))
            actions.append(int(action))
        if len(actions) >= steps:
            break
    return np.array(observations, np.int16).reshape(-1, WIDTH), np.array(actions, np.int64)
