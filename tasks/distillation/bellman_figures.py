"""Figures of the offline-RL part. Tables are values over seeds by (arm, quantity, environment, size)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.common.plotting import COLOURS, figure
from tasks.common.statistics import standard_error
from tasks.distillation.bellman_matching import TransitionSet
from tasks.distillation.bellman_warmstart import BellmanStartParams
from tasks.offline_rl.transitions import TdBatch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Table = dict[tuple[str, str, str, int], np.ndarray]

LABELS = {
    "rand": "random subset",
    "stratified": "stratified subset",
    "syn_few": "distilled, few predictors",
    "syn_some": "distilled, some predictors",
    "syn_many": "distilled, many predictors",
    "syn_local": "distilled, kept local",
    "values_only": "values alone matched",
    "no_reward_scale": "without reward scales",
    "no_terminals": "without continuation flag",
}
COLOUR = dict(zip(LABELS, ("#999999", "#000000", *COLOURS[:6], "#7F3C8D"), strict=True))


def heldout_loss(table: Table, params: BellmanStartParams) -> Figure:
    """Relative error of the Bellman loss of fresh predictors against the number of rows, one panel per environment."""
    fig, axes = figure(3.1 * len(params.environments), 4.0, columns=len(params.environments), squeeze=False)
    for axis, environment in zip(axes[0], params.environments, strict=True):
        _by_size(axis, table, params, environment, "heldout_loss_error", [a for a in LABELS if a != "stratified"])
        axis.set(title=environment, xlabel="rows", xscale="log", yscale="log")
        axis.set_xticks(params.sizes, [str(s) for s in params.sizes])
        axis.minorticks_off()
    axes[0, 0].set_ylabel("relative error of held-out losses")
    _legend_below(fig, axes[0])
    return fig


def heldout_by_k(table: Table, params: BellmanStartParams, predictors: Mapping[str, int]) -> Figure:
    """Relative error of held-out losses against the number k of matched predictors, a line per number of rows; dashed: random rows."""
    arms = {arm: predictors[arm] for arm in ("syn_few", "syn_some", "syn_many") if arm in predictors}
    fig, axes = figure(3.1 * len(params.environments), 4.0, columns=len(params.environments), squeeze=False)
    for axis, environment in zip(axes[0], params.environments, strict=True):
        for colour, size in zip(COLOURS, params.sizes, strict=False):
            found = {k: table.get((arm, "heldout_loss_error", environment, size)) for arm, k in arms.items()}
            drawn = {k: values for k, values in found.items() if values is not None}
            means, bars = [v.mean() for v in drawn.values()], [_error(v) for v in drawn.values()]
            axis.errorbar(list(drawn), means, yerr=bars, marker="o", ms=4, capsize=2, color=colour, label=f"{size} rows")
            axis.axhline(table["rand", "heldout_loss_error", environment, size].mean(), color=colour, ls="--", lw=1)
        axis.set(title=environment, xlabel="k (dashed: random rows)", xscale="log", yscale="log")
        axis.set_xticks(sorted(arms.values()), [str(k) for k in sorted(arms.values())])
        axis.minorticks_off()
    axes[0, 0].set_ylabel("relative error of held-out losses")
    _legend_below(fig, axes[0])
    return fig


def returns(table: Table, params: BellmanStartParams) -> Figure:
    """Returns of fitted Q networks against the number of rows they were trained on, with the full set and the random policy."""
    fig, axes = figure(3.1 * len(params.environments), 4.0, columns=len(params.environments), squeeze=False)
    for axis, environment in zip(axes[0], params.environments, strict=True):
        arms = ("rand", "stratified", "syn_few", "syn_many", "syn_local")
        _by_size(axis, table, params, environment, "return", arms)
        axis.axhline(table["full", "return", environment, 0].mean(), color="k", ls=":", lw=1.2, label="all rows")
        axis.axhline(table["random_policy", "return", environment, 0].mean(), color="k", ls="--", lw=0.8, label="random policy")
        axis.set(title=environment, xlabel="rows", xscale="log")
        axis.set_xticks(params.sizes, [str(s) for s in params.sizes])
        axis.minorticks_off()
    axes[0, 0].set_ylabel("return (the environment's reward)")
    _legend_below(fig, axes[0])
    return fig


def levers(table: Table, params: BellmanStartParams) -> Figure:
    """Normalised return pooled over environments, every arm and learner at the middle size, with standard errors."""
    size = params.sizes[len(params.sizes) // 2]
    arms = sorted({a for a, q, e, s in table if (q, e, s) == ("normalised_return", "pooled", size)})
    quantities = sorted({q for a, q, e, s in table if q.startswith("normalised_return") and (e, s) == ("pooled", size)})
    arms.sort(key=lambda a: float(table[a, quantities[0], "pooled", size].mean()))
    fig, axis = figure(7.0, 1.2 + 0.36 * len(arms))
    for number, quantity in enumerate(quantities):
        values = [table[a, quantity, "pooled", size] for a in arms if (a, quantity, "pooled", size) in table]
        at = [i + 0.16 * number for i, a in enumerate(arms) if (a, quantity, "pooled", size) in table]
        label = "fitted Q iteration" if quantity == "normalised_return" else quantity.removeprefix("normalised_return_")
        bars = [_error(v) for v in values]
        axis.errorbar([v.mean() for v in values], at, xerr=bars, fmt="o", ms=5, capsize=2, color=COLOURS[number], label=label)
    axis.set_yticks(range(len(arms)), [LABELS.get(a, a.replace("_", " ")) for a in arms])
    axis.set(xlabel=f"normalised return, {size} rows (0 random policy, 1 all rows), mean and s.e.")
    fig.legend(loc="outside upper center", ncols=2)
    return fig


def states(batch: TdBatch, sets: list[TransitionSet], environment: str) -> Figure:
    """Training and distilled transitions in the plane of the training states' first two principal components."""
    count = max(len(sets), 1)
    fig, axes = figure(4.2 * count, 3.9, columns=count, squeeze=False)
    plane = np.linalg.svd(batch.obs - batch.obs.mean(0), full_matrices=False)[2][:2].T
    cloud = batch.obs @ plane
    for axis, one in zip(axes[0], sets, strict=False):
        ended = batch.continuation == 0
        axis.scatter(*cloud.T, s=2, color="#BBBBBB", label="training states", rasterized=True)
        axis.scatter(*cloud[ended].T, s=5, color=COLOURS[1], label="terminating", rasterized=True)
        start, end = one.batch.obs @ plane, one.batch.next_obs @ plane
        axis.quiver(*start.T, *(end - start).T, angles="xy", scale_units="xy", scale=1, width=0.003, color="#555555")
        points = axis.scatter(*start.T, c=one.batch.continuation, s=22, cmap="coolwarm_r", vmin=0, vmax=1, edgecolor="k", lw=0.4)
        axis.set(title=f"{environment}: {LABELS.get(one.arm, one.arm)}", xlabel="first component")
        fig.colorbar(points, ax=axis, label="continuation")
    axes[0, 0].set_ylabel("second component")
    axes[0, 0].legend(fontsize=8, markerscale=3)
    return fig


def _by_size(axis, table: Table, params: BellmanStartParams, environment: str, quantity: str, arms) -> None:  # type: ignore[no-untyped-def]
    drawn = [a for a in arms if any((a, quantity, environment, s) in table for s in params.sizes)]
    for number, arm in enumerate(drawn):
        found = {s: table[arm, quantity, environment, s] for s in params.sizes if (arm, quantity, environment, s) in table}
        x = np.array(list(found)) * (1 + 0.04 * (number - len(drawn) / 2))
        bars = [_error(v) for v in found.values()]
        means = [v.mean() for v in found.values()]
        axis.errorbar(x, means, yerr=bars, marker="o", ms=4, capsize=2, color=COLOUR[arm], label=LABELS[arm])


def _error(values: np.ndarray) -> float:
    return standard_error(values) if len(values) > 1 else 0.0


def _legend_below(fig: Figure, axes) -> None:  # type: ignore[no-untyped-def]
    known: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        known |= dict(zip(labels, handles, strict=True))
    fig.legend(list(known.values()), list(known), loc="outside lower center", ncols=4, fontsize=8)
