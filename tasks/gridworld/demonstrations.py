"""Demonstrations: shortest paths in a batched twin, or the bot that comes with BabyAI."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.gridworld.layouts import Layouts, codes_of, make_level, reset, target_of
from tasks.gridworld.static_worlds import ACTIONS, Places, StaticWorlds

UNREACHABLE = np.iinfo(np.int32).max // 2


@dataclass(frozen=True)
class Demonstrations:
    """B steps of an expert.

    Attributes:
        view: observations as codes (B, 50).
        action: (B,).
        layout: configuration of the step (B,).
        given_up: configurations without a demonstration.
    """

    view: np.ndarray
    action: np.ndarray
    layout: np.ndarray
    given_up: int


def distances(worlds: StaticWorlds) -> np.ndarray:
    """Fewest actions (L, S) from every state to success, `UNREACHABLE` where there is no way."""
    layout = np.arange(len(worlds.following))[:, None, None]
    done = worlds.reached[layout, worlds.following]  # (L, S, 3): this action succeeds
    distance = np.where(done.any(-1), 1, UNREACHABLE)
    while True:
        onwards = distance[layout, worlds.following]
        better = np.minimum(distance, onwards.min(-1) + 1)
        if (better == distance).all():
            return distance
        distance = better


def shortest_paths(worlds: StaticWorlds, rng: np.random.Generator) -> Demonstrations:
    """One shortest way from the start of every configuration, ties broken at random.

    Example:
        >>> from tasks.gridworld.layouts import read_layouts
        >>> worlds = StaticWorlds(read_layouts("fourrooms", [1000]))
        >>> found = shortest_paths(worlds, np.random.default_rng(0))
        >>> len(found.action) == int(distances(worlds)[0, worlds.reset(np.array([0])).row[0]])
        True
    """
    distance = distances(worlds)
    state = worlds.reset(np.arange(len(worlds.layouts)))
    left = distance[state.config, state.row]
    solvable = left <= worlds.horizon
    state, left = state.take(np.flatnonzero(solvable)), left[solvable]
    views, actions, layouts = [], [], []
    while len(left):
        following = worlds.following[state.config, state.row]  # (N, 3)
        ends = worlds.reached[state.config[:, None], following]
        after = np.where(ends, 0, distance[state.config[:, None], following])
        ties = np.where(after == left[:, None] - 1, rng.random((len(left), ACTIONS)), -1.0)
        action = ties.argmax(-1)
        views.append(worlds.views[worlds.observe(state)])
        actions.append(action)
        layouts.append(state.config)
        state = Places(state.config, following[np.arange(len(left)), action])
        left = left - 1
        state, left = state.take(np.flatnonzero(left > 0)), left[left > 0]
    order = np.argsort(np.concatenate(layouts), kind="stable")
    view, action, layout = (np.concatenate(a)[order] for a in (views, actions, layouts))
    return Demonstrations(view, action, layout, given_up=int((~solvable).sum()))


def bot_paths(layouts: Layouts, horizon: int) -> Demonstrations:
    """What BabyAI's bot does; configurations where it needs more than turning and walking, or too long, are left out.

    The bot sees what the agent sees and remembers it, so that its ways are not the shortest.

    Raises:
        ValueError: for a level that has no instructions.
    """
    if layouts.level == "fourrooms":
        raise ValueError("the bot follows instructions, and 'fourrooms' has none; take shortest_paths")
    from minigrid.utils.baby_ai_bot import BabyAIBot

    env = make_level(layouts.level, max_steps=horizon)
    views, actions, origin, given_up = [], [], [], 0
    for number, seed in enumerate(layouts.seed):
        observation = reset(env, int(seed))
        target, bot, done = target_of(env), BabyAIBot(env), False  # type: ignore[no-untyped-call]
        own: list[tuple[np.ndarray, int]] = []
        while not done and len(own) < horizon:
            with redirect_stdout(io.StringIO()):
                action = int(bot.replan())  # type: ignore[no-untyped-call]
            if action >= ACTIONS:
                break
            own.append((view_codes(observation, target), action))
            observation, reward, done, _, _ = env.step(action)
        if done and reward > 0:
            views += [view for view, _ in own]
            actions += [action for _, action in own]
            origin += [number] * len(own)
        else:
            given_up += 1
    return Demonstrations(np.array(views, np.uint8).reshape(-1, 50), np.array(actions, np.int64), np.array(origin, np.int64), given_up)


def view_codes(observation: dict[str, Any], target: tuple[int, int | None]) -> np.ndarray:
    """A real observation as codes (50,): 49 cells and the direction."""
    return np.append(codes_of(observation["image"], target).ravel(), np.uint8(observation["direction"]))
