"""Figures of fine-tuned policies: pass@k, learning curves, success by configuration, and the ways they take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.common.formats import read_parquet
from tasks.common.node import Inputs, Log
from tasks.common.plotting import COLOURS, figure
from tasks.gridworld.policies import load_policy, load_worlds, make_policy
from tasks.gridworld.static_worlds import StaticWorlds
from tasks.gridworld.views import EMPTY, TARGET, WALL
from tasks.rl.attempts import attempt
from tasks.rl.pass_at_k import pass_at_k
from tasks.rl.rollouts import Trajectories

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tasks.gridworld.compared import CompareParams, Judged

LABELS = {
    "pretrained": "pretrained",
    "ppo": "PPO",
    "ppo_small": "PPO, small batch",
    "ppo_entropy": "PPO + entropy",
    "ppo_ucb": "PPO + UCB",
    "reinforce": "REINFORCE",
    "poly": "polychromic PPO",
    "poly_w20": "polychromic PPO, W = 20",
    "poly_ucb": "polychromic PPO + UCB",
    "set_mean": "sets, d = 1",
    "set_additive": "sets, R + d / 2",
    "vine_single": "vines, no sets",
}


def draw_all(
    params: CompareParams, inputs: Inputs, folders: Mapping[str, Path], judged: Mapping[tuple[str, int], Judged], log: Log
) -> None:
    """All figures of one level."""
    level = params.level
    log.figure(f"pass_at_k_{level}", draw_pass_at_k(judged, params.tries["train"]))
    log.figure(f"configurations_{level}", draw_configurations(judged, params.tries["train"], params.everywhere))
    curves = [read_parquet(inputs.file(name, "learning.parquet")) for name in inputs if name.startswith("train")]
    log.figure(f"learning_{level}", draw_learning(curves, params.everywhere))
    prepared = next(inputs[name] for name in inputs if name.startswith("prepare"))
    worlds = load_worlds(prepared / "train.npz", params.horizon)
    config = next((c for c in range(len(worlds.layouts)) if _far(worlds, c)), 0)
    ways = {}
    for arm in params.everywhere:
        weights = folders[arm] / ("0.safetensors" if arm == "pretrained" else f"{arm}.0.safetensors")
        policy = load_policy(weights, make_policy(worlds, params.hidden, 0))
        uniforms = np.random.default_rng([params.seed, 5]).random((params.horizon, 20))
        ways[arm] = attempt(worlds, policy.behaviour, np.full(20, config), uniforms)
    log.figure(f"ways_{level}", draw_ways(worlds, config, ways))


def draw_pass_at_k(judged: Mapping[tuple[str, int], Judged], count: int) -> Figure:
    """pass@k against k (log), and 1 - pass@k on a log scale, where what is lost shows; means over seeds, bands: one standard deviation."""
    drawn, axes = figure(10.5, 4.2, 1, 2)
    ks = np.unique(np.geomspace(1, count, 25).astype(int))
    floor = 1e-3
    for i, arm in enumerate(dict.fromkeys(arm for arm, _ in judged)):
        solved = [one.successes["train"] for (name, _), one in judged.items() if name == arm]
        curve = np.array([[pass_at_k(c, count, int(k)).mean() for k in ks] for c in solved])
        style: dict[str, Any] = {"color": COLOURS[i % len(COLOURS)], "ls": "-" if i < len(COLOURS) else "--"}
        axes[0].plot(ks, curve.mean(0), label=LABELS.get(arm, arm), **style)
        axes[1].plot(ks, np.maximum(1 - curve.mean(0), floor), **style)
        if arm in ("pretrained", "ppo", "poly", "reinforce") and len(solved) > 1:
            spread = curve.std(0, ddof=1)
            axes[0].fill_between(ks, curve.mean(0) - spread, curve.mean(0) + spread, color=style["color"], alpha=0.15, lw=0)
    axes[0].set(ylabel="pass@k, training configurations", ylim=(None, 1.005))
    axes[1].set(ylabel="not solved in k attempts", yscale="log", ylim=(floor * 0.9, None))
    for panel in axes:
        panel.set(xscale="log", xlabel="attempts k")
        panel.set_xticks([1, 2, 5, 10, 20, 50, 100][: int(np.searchsorted([1, 2, 5, 10, 20, 50, 100], count, "right"))])
        panel.xaxis.set_major_formatter("{x:g}")
    axes[0].legend(fontsize=8)
    return drawn


def draw_configurations(judged: Mapping[tuple[str, int], Judged], count: int, arms: tuple[str, ...]) -> Figure:
    """Success in every configuration and seed, sorted: what was lost stands at the left."""
    drawn, axes = figure(7.0, 3.6)
    for i, arm in enumerate(arms):
        solved = np.concatenate([one.successes["train"] for (name, _), one in judged.items() if name == arm]) / count
        axes.step(np.arange(len(solved)) / len(solved), np.sort(solved), label=LABELS.get(arm, arm), color=COLOURS[i], where="post")
    axes.set(xlabel="share of configurations, hardest first", ylabel="success of an attempt", xlim=(0, 1), ylim=(-0.02, 1.02))
    axes.legend(fontsize=8)
    return drawn


def draw_learning(curves: list[Any], arms: tuple[str, ...]) -> Figure:
    """Success, entropy and diversity of the policy against environment steps; means over seeds."""
    names = {"success": "success of an attempt", "entropy_nats": "policy entropy (nats)", "diversity4": "distinct room sets in 4 attempts"}
    drawn, axes = figure(9.0, 3.2, 1, 3)
    for curve in curves:
        for arm in [a for a in arms if a in set(curve["arm"])]:
            for panel, name in zip(axes, names, strict=True):
                own = curve[(curve["arm"] == arm) & (curve["name"] == name)].assign(look=lambda f: f.groupby("seed").cumcount())
                mean = own.groupby("look")[["env_steps", "value"]].mean()
                panel.plot(mean["env_steps"] / 1e6, mean["value"], color=COLOURS[arms.index(arm)], label=LABELS.get(arm, arm))
    for panel, label in zip(axes, names.values(), strict=True):
        panel.set(xlabel="million environment steps", title=label)
        panel.title.set_fontsize(9.5)
    axes[0].legend(fontsize=7.5)
    return drawn


def draw_ways(worlds: StaticWorlds, config: int, ways: Mapping[str, Trajectories]) -> Figure:
    """Twenty attempts at one configuration by each policy; a colour for each set of rooms."""
    drawn, axes = figure(2.4 * len(ways), 2.9, 1, len(ways), squeeze=False)
    cells = worlds.layouts.cells[config]
    kinds = list(dict.fromkeys(int(k) for found in ways.values() for k in found.places))
    jitter = np.random.default_rng(0).uniform(-0.3, 0.3, (64, 2))
    for panel, (arm, found) in zip(axes[0], ways.items(), strict=True):
        panel.imshow(np.where(cells == EMPTY, 1.0, np.where(cells == WALL, 0.35, 0.8)).T, cmap="gray", vmin=0, vmax=1)
        panel.plot(*np.argwhere(cells == TARGET)[0], marker="*", ms=11, color="#E69F00", ls="")
        panel.plot(*worlds.layouts.start[config][:2], marker="o", ms=5, color="black", ls="")
        for i in range(len(found.config)):
            state = worlds.reset(np.array([config]))
            path = [worlds.coordinates(state.row)[0, :2]]
            for action in found.action[: int(found.length[i]), i]:
                state, _ = worlds.step(state, np.array([action]))
                path.append(worlds.coordinates(state.row)[0, :2])
            colour = COLOURS[kinds.index(int(found.places[i])) % len(COLOURS)]
            panel.plot(*(np.array(path) + jitter[i]).T, color=colour, lw=0.9, alpha=0.8)
        solved, sets = int(found.success.sum()), len(set(map(int, found.places)))
        panel.set(title=f"{LABELS.get(arm, arm)}\n{solved} of {len(found.config)} arrive, {sets} room sets", xticks=[], yticks=[])
        panel.title.set_fontsize(8)
        panel.grid(visible=False)
    return drawn


def _far(worlds: StaticWorlds, config: int) -> bool:
    """Whether start and target lie in different rooms."""
    x, y = np.argwhere(worlds.layouts.cells[config] == TARGET)[0]
    rooms = worlds.room[config]
    return bool(rooms[worlds.reset(np.array([config])).row[0]] != rooms[worlds.row_of(x, y, np.array(0))])
