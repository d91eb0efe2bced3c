"""Figures of the preference-based policies: bars with seeds, curves, the grid, the maze, and what values promise against what happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.common.plotting import COLOURS, figure
from tasks.common.statistics import standard_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tasks.offline_rl.episodes import Episodes
    from tasks.offline_rl.learning_data import LearningData
    from tasks.offline_rl.point_maze import PointMaze
    from tasks.offline_rl.policies import Policies

LABELS = {
    "preforl": "PREFORL (both)",
    "preforl_a": "noisy actions only",
    "preforl_s": "borrowed actions only",
    "preforl_clip": "noise kept in the box",
    "preforl_warm": "from BC on successes",
    "uniform": "uniform negatives",
    "cpl": "CPL",
    "cpl_warm": "CPL after BC",
    "bc_plus": "BC on successes",
    "bc": "BC",
    "awr": "AWR",
    "iql": "IQL",
    "iql_mean": "IQL, no maximum",
    "td3bc": "TD3+BC",
    "rebrac": "ReBRAC",
    "cql": "CQL",
    "shuffled": "shuffled successes",
}


def label(arm: str) -> str:
    """Name of an arm for readers."""
    return f"{label(arm.removesuffix('_short'))}, short" if arm.endswith("_short") else LABELS.get(arm, arm.replace("_", " "))


def colour(arm: str) -> str:
    """Colour by family: the method, preferences, cloning, values, controls."""
    if arm.startswith("preforl"):
        return COLOURS[0]
    if arm.startswith("cpl") or arm == "uniform":
        return COLOURS[5]
    if arm.startswith("bc"):
        return COLOURS[2]
    return COLOURS[7] if arm in ("shuffled", "iql_mean") else COLOURS[1]


def success_bars(success: Mapping[str, np.ndarray]) -> Figure:
    """Success rate of every arm: mean with standard error, a dot per seed."""
    arms = sorted(success, key=lambda a: float(success[a].mean()))
    fig, axis = figure(7.2, 1.0 + 0.27 * len(arms))
    for row, arm in enumerate(arms):
        values = success[arm]
        axis.barh(row, values.mean(), xerr=_error(values), color=colour(arm), alpha=0.55, height=0.7, error_kw={"capsize": 2})
        axis.plot(values, np.full(len(values), row), "o", ms=3, color="k", alpha=0.6)
    axis.set_yticks(range(len(arms)), [label(a) for a in arms])
    axis.set(xlabel="success from test starts (dots: seeds)", xlim=(0, 1.02))
    return fig


def learning_curves(curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """Success on the validation starts against the number of updates, one line per arm."""
    fig, axis = figure(7.6, 4.4)
    shown = [a for a in LABELS if a in curves and a not in ("preforl_warm", "cpl_warm", "iql_mean")]
    styles: dict[str, int] = {}
    for arm in shown:
        updates, values = curves[arm]
        styles[colour(arm)] = styles.get(colour(arm), -1) + 1
        style = ("-", "--", ":", "-.", (0, (1, 1)))[styles[colour(arm)] % 5]
        axis.errorbar(
            updates, values.mean(1), yerr=[_error(v) for v in values], marker="o", ms=3, color=colour(arm), ls=style, label=label(arm)
        )
    axis.set(xlabel="updates", ylabel="success from validation starts", xscale="log", ylim=(0, 1.02))
    fig.legend(loc="outside right upper", fontsize=8)
    return fig


def success_by_time(points: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """Success against CPU seconds of training per seed; points are (seconds (C,), success (C, S))."""
    fig, axis = figure(7.6, 4.2)
    styles: dict[str, int] = {}
    for arm in sorted(points, key=lambda a: list(LABELS).index(a) if a in LABELS else 99):
        seconds, success = points[arm]
        styles[colour(arm)] = styles.get(colour(arm), -1) + 1
        marker = "osv^D*"[styles[colour(arm)] % 6]
        axis.errorbar(
            seconds, success.mean(1), yerr=[_error(v) for v in success], marker=marker, ms=4, lw=1, color=colour(arm), label=label(arm)
        )
    axis.set(xlabel="CPU seconds of training, one seed", ylabel="success from validation starts", xscale="log", ylim=(0, 1.02))
    fig.legend(loc="outside right upper", fontsize=8)
    return fig


def expected_against_achieved(values: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """What value-based learners expect at the starts of recorded successes against what their policies get from there."""
    fig, axis = figure(6.4, 4.6)
    every = np.concatenate([np.concatenate(pair) for pair in values.values()])
    ends = [float(every.min()) - 0.03, float(every.max()) + 0.03]
    axis.plot([0, ends[1]], [0, ends[1]], color="k", lw=0.8, ls=":")
    known = sorted({arm.removesuffix("_short") for arm in values})
    for arm, (expected, got) in values.items():
        short = arm.endswith("_short")
        shade = COLOURS[known.index(arm.removesuffix("_short")) % 8]
        fill = "none" if short else shade
        axis.scatter(got, expected, s=26, edgecolor=shade, facecolor=fill, label=label(arm))
    axis.axhline(0, color="k", lw=0.5)
    achieved = np.concatenate([a for _, a in values.values()])
    axis.set(xlabel="discounted return achieved", ylabel="value expected (dotted: as achieved)", ylim=ends)
    axis.set_xlim(-0.02, max(float(achieved.max()) * 1.15, 0.1))
    fig.legend(loc="outside right upper", fontsize=8)
    return fig


def by_data(success: Mapping[tuple[str, str], np.ndarray], datasets: Sequence[str]) -> Figure:
    """Success of the main arms on every data set that is no coverage set."""
    names = [n for n in datasets if not n.startswith("medium_n")]
    arms = [a for a in ("preforl", "preforl_a", "preforl_s", "uniform", "cpl", "bc_plus", "bc") if any((n, a) in success for n in names)]
    shades = (COLOURS[0], COLOURS[5], COLOURS[6], COLOURS[3], COLOURS[1], COLOURS[2], COLOURS[7])
    fig, axis = figure(7.6, 3.8)
    width = 0.8 / len(arms)
    for i, arm in enumerate(arms):
        found = [(j, success[n, arm]) for j, n in enumerate(names) if (n, arm) in success]
        at = [j + (i - len(arms) / 2 + 0.5) * width for j, _ in found]
        axis.bar(
            at, [v.mean() for _, v in found], width, yerr=[_error(v) for _, v in found], color=shades[i], label=label(arm), capsize=1.5
        )
    axis.set_xticks(range(len(names)), [n.replace("_", " ") for n in names])
    axis.set(ylabel="success from test starts", ylim=(0, 1.02))
    fig.legend(loc="outside upper center", ncols=4, fontsize=8)
    return fig


def coverage(success: Mapping[int, Mapping[str, np.ndarray]]) -> Figure:
    """Success against the number of successful demonstrations."""
    fig, axis = figure(6.4, 3.8)
    counts = sorted(success)
    for arm in ("preforl", "preforl_s", "preforl_a", "cpl", "bc_plus", "bc"):
        found = {n: success[n][arm] for n in counts if arm in success[n]}
        if found:
            style = {"preforl_s": "--", "preforl_a": ":", "bc": "--"}.get(arm, "-")
            bars = [_error(v) for v in found.values()]
            axis.errorbar(
                list(found), [v.mean() for v in found.values()], yerr=bars, marker="o", ls=style, color=colour(arm), label=label(arm)
            )
    axis.set(xlabel="successful trajectories in the data", ylabel="success from test starts", xscale="log", ylim=(0, 1.02))
    axis.set_xticks(counts, [str(n) for n in counts])
    axis.minorticks_off()
    axis.legend(fontsize=8)
    return fig


def grid(success: np.ndarray, biases: Sequence[float], sigmas: Sequence[float]) -> Figure:
    """Heat map of success (lambda, sigma), means over seeds."""
    fig, axis = figure(5.6, 3.8)
    image = axis.imshow(success, cmap="viridis", vmin=0, vmax=1, aspect="auto", origin="lower")
    for i, row in enumerate(success):
        for j, value in enumerate(row):
            axis.text(j, i, f"{value:.2f}", ha="center", va="center", color="w" if value < 0.6 else "k", fontsize=9)
    axis.set_xticks(range(len(sigmas)), [f"{s:g}" for s in sigmas])
    axis.set_yticks(range(len(biases)), [f"{b:g}" for b in biases])
    axis.set(xlabel="sigma (noise on actions)", ylabel="lambda (weight of negatives)")
    axis.grid(visible=False)
    fig.colorbar(image, ax=axis, label="success")
    return fig


def maze(task: PointMaze, data: Episodes, ready: LearningData, policy: Policies) -> Figure:
    """The maze with recorded tracks and the learned policy; beside it recorded actions of successes and what is borrowed for them."""
    fig, axes = figure(9.0, 4.6, columns=2)
    for axis in axes:
        for x, y in task.walls:
            axis.add_patch(_square(x, y))
        axis.set(xlim=_ends(task.walls[:, 0]), ylim=_ends(task.walls[:, 1]), aspect="equal")
        axis.grid(visible=False)
    for e in range(data.n_episodes):
        won = data.returns[e] > 0
        path = data.obs[data.starts[e] : data.starts[e] + data.lengths[e], :2]
        if won or e % 3 == 0:
            shade, width = (COLOURS[2], 0.8) if won else (COLOURS[7], 0.3)
            axes[0].plot(*path.T, color=shade, lw=width, zorder=2 if won else 1)
    goal = task.centre(task.spec.goal_cell or task.cells[-1])
    points = np.concatenate(
        [task.centres + shift for shift in np.array([[0, 0], [0.25, 0.25], [-0.25, -0.25], [0.25, -0.25], [-0.25, 0.25]])]
    )
    states = np.hstack([points, np.zeros((len(points), 2))])
    arrows = policy.act(task.observe(states, np.tile(goal, (len(points), 1)))[None])[0]
    axes[0].quiver(*points.T, *arrows.T, color=COLOURS[0], width=0.004, scale=18, zorder=3)
    axes[0].plot(*goal, "*", ms=14, color=COLOURS[4], mec="k", zorder=4)
    rows = ready.positive_rows[:: max(len(ready.positive_rows) // 90, 1)]
    where = ready.obs[rows] * ready.standardise.scale + ready.standardise.mean
    axes[1].quiver(*where[:, :2].T, *ready.action[rows].T, color=COLOURS[2], width=0.004, scale=18)
    if len(ready.negative):
        axes[1].quiver(*where[:, :2].T, *ready.action[ready.neighbour[rows]].T, color=COLOURS[1], width=0.004, scale=18)
    axes[0].set_title("successes green, failures grey,\npolicy at rest blue", fontsize=10)
    axes[1].set_title("actions of successes green,\nborrowed from the nearest failure orange", fontsize=10)
    axes[0].set(xticklabels=[], yticklabels=[])
    return fig


def _square(x: float, y: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, color="#DDDDDD", lw=0, zorder=0)


def _ends(values: np.ndarray) -> tuple[float, float]:
    return float(values.min()) - 0.5, float(values.max()) + 0.5


def _error(values: np.ndarray) -> float:
    return standard_error(values) if len(values) > 1 else 0.0
