"""Metrics and figures of the guarantees stage: one row per prompt, arm and cell; intervals over prompts."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tasks.attention.quality_report import SHORT
from tasks.common.node import Log, Metrics
from tasks.common.plotting import COLOURS, figure
from tasks.common.statistics import paired, summarise

QUANTITIES = {
    "bound": ("density", "err_mean", "viol_d", "viol_sdpa"),
    "epsilon": ("density", "err_mean", "derr_mean"),
    "delta": ("density", "viol_d"),
    "mode": ("density", "err_mean", "viol_d", "viol_sdpa"),
    "ablation": ("density", "err_mean", "err_q95", "dbias", "viol_d"),
    "budget": ("spearman_entropy", "spearman_spread"),
    "method": ("density", "err_mean", "err_q95"),
}
"""What becomes a metric, by group of cells; everything is in the stage's table."""
SWEEPS = {"sweep": "vattention", "sweep_heavy5": "vattention_heavy5", "unadaptive": "unadaptive"}
"""Arms of the sweep of epsilon, and what they are called in metrics."""
PAIRS = (
    ("vattention", "hybrid_fixed", "err_q95"),
    ("vattention", "hybrid_tuned", "err_q95"),
    ("vattention", "hybrid_tuned", "err_mean"),
    ("vattention_hash", "hashattention", "err_mean"),
)


def metrics_of(frame: pd.DataFrame) -> Metrics:
    """`<arm>.<quantity>.<cell>` of everything that was measured, and what the claims compare."""
    metrics: Metrics = {}
    for (group, arm, cell), rows in frame.groupby(["group", "arm", "cell"], sort=False):
        for quantity in QUANTITIES[str(group)]:
            metrics |= summarise(f"{arm}.{quantity}.{cell}", rows[quantity])
    for data, rows in frame[frame["arm"].isin(SWEEPS)].groupby("data", sort=False):
        for arm, name in SWEEPS.items():
            curves = [curve.sort_values("asked") for _, curve in rows[rows["arm"] == arm].groupby("seed", sort=False)]
            asked, errors = [c["asked"].to_numpy() for c in curves], [c["err_mean"].to_numpy() for c in curves]
            metrics |= summarise(f"{name}.spearman_eps.{data}", [rank_correlation(a, e) for a, e in zip(asked, errors, strict=True)])
            metrics |= summarise(f"{name}.pearson_eps.{data}", [correlation(a, e) for a, e in zip(asked, errors, strict=True)])
    for cell in [c for c in frame["cell"].unique() if (frame[frame["cell"] == c]["arm"] == "sdpa").any()]:
        for mode in ("sdpa", "no_sample"):
            metrics |= _paired(frame, mode, "denominator", "density", cell)
    for a, b, quantity in PAIRS:
        for cell in [c for c in frame["cell"].unique() if {a, b} <= set(frame[frame["cell"] == c]["arm"])]:
            metrics |= _paired(frame, a, b, quantity, cell)
    return metrics


def _paired(frame: pd.DataFrame, a: str, b: str, quantity: str, cell: str) -> Metrics:
    at = frame[frame["cell"] == cell].pivot(index="seed", columns="arm", values=quantity)
    return paired(f"{a}.{quantity}.{cell}-{b}.{quantity}.{cell}", at[a], at[b])


def rank_correlation(asked: np.ndarray, errors: np.ndarray) -> float:
    """Spearman's correlation, with equal errors ranked in the order of what was asked; 0 when all errors are equal.

    Two bounds that both leave every head at its base sample give the same sample, and their tie says nothing against the order.

    Example:
        >>> rank_correlation(np.array([1, 2, 3]), np.array([0.1, 0.2, 0.2])), rank_correlation(np.array([1, 2]), np.array([5.0, 5.0]))
        (1.0, 0.0)
    """
    if np.ptp(errors) == 0:
        return 0.0
    ranks = np.empty(len(errors))
    ranks[np.lexsort((asked, errors))] = np.arange(len(errors))
    return correlation(np.argsort(np.argsort(asked, kind="stable"), kind="stable"), ranks)


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's correlation, 0 when one of the two is constant."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(round(np.corrcoef(x, y)[0, 1], 12))


def figures(frame: pd.DataFrame, scatter: pd.DataFrame, log: Log) -> None:
    """`density`, `epsilon`, `coverage`, `modes` and `complementarity`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        log.figure("epsilon", _epsilon_figure(frame))
        log.figure("coverage", _coverage_figure(frame))
        log.figure("modes", _mode_figure(frame))
        cells = [c for c in frame["cell"].unique() if c.startswith("p")]
        if cells:
            log.figure("density", _density_figure(frame, cells))
        if len(scatter):
            log.figure("complementarity", _complementarity_figure(scatter))


def _density_figure(frame: pd.DataFrame, cells: Sequence[str]):  # type: ignore[no-untyped-def]
    fig, axes = figure(7.5, 4.2)
    table: Any = frame[frame["cell"].isin(cells)].groupby(["arm", "cell"])[["density", "err_mean"]].mean()
    shown = [arm for arm in SHORT if arm in table.index.get_level_values(0)]
    for i, arm in enumerate(shown):
        curve = table.loc[arm].sort_values("density")
        style = "o-" if arm.startswith("vattention") else "s--" if i < len(COLOURS) else "^:"
        axes.plot(curve["density"], curve["err_mean"], style, ms=4, lw=1.3, label=SHORT[arm], color=COLOURS[i % len(COLOURS)])
    axes.set(xscale="log", yscale="log", xlabel="density: share of keys read", ylabel="relative error of the output, mean")
    _ticks(axes, "x", (0.02, 0.05, 0.1, 0.2, 0.5))
    _ticks(axes, "y", (0.02, 0.05, 0.1, 0.2, 0.5, 1.0))
    fig.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return fig


def _epsilon_figure(frame: pd.DataFrame):  # type: ignore[no-untyped-def]
    sets = list(dict.fromkeys(frame[frame["arm"] == "sweep"]["data"]))
    fig, axes = figure(8.5, 3.6, 1, 2)
    labels = {"sweep": "32 heavy keys", "sweep_heavy5": "5 % heavy keys"}
    for panel, quantity, name in ((axes[0], "derr_mean", "denominator"), (axes[1], "err_mean", "output")):
        for d, data in enumerate(sets):
            for a, arm in enumerate(labels):
                rows = frame[(frame["arm"] == arm) & (frame["data"] == data)]
                curve = rows.groupby("asked")[quantity].mean()
                colour = COLOURS[2 * d + a]
                panel.plot(curve.index, curve, "o-" if a == 0 else "s--", ms=4, color=colour, label=f"{data} context, {labels[arm]}")
        asked = np.array(sorted(frame[frame["arm"] == "sweep"]["asked"].dropna().unique()))
        panel.plot(asked, asked, ":", color="black", lw=1, label="y = x")
        panel.set(xscale="log", yscale="log", xlabel="epsilon that is asked for", ylabel=f"mean relative error, {name}")
        _ticks(panel, "x", asked)
        _ticks(panel, "y", (0.01, 0.02, 0.05, 0.1, 0.2, 0.5))
    axes[1].legend(fontsize=7.5)
    return fig


def _ticks(axes: Any, which: str, values: Any) -> None:
    """Plain numbers on a logarithmic axis, those of them that lie in its range."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    shown = [float(v) for v in values if low <= v <= high]
    axis.set_ticks(shown, [f"{v:g}" for v in shown])
    axis.set_ticks([], minor=True)


def _coverage_figure(frame: pd.DataFrame):  # type: ignore[no-untyped-def]
    fig, axes = figure(6.2, 4.0)
    labels = {"small_base": "32 heavy keys, base 1 %", "large_base": "5 % heavy keys, base 5 %"}
    for d, data in enumerate(dict.fromkeys(frame[frame["arm"] == "small_base"]["data"])):
        for a, arm in enumerate(labels):
            rows = frame[(frame["arm"] == arm) & (frame["data"] == data)]
            curve = rows.groupby("asked")["viol_d"].agg(["mean", "sem"])
            colour, style = COLOURS[2 * d + a], "o-" if a == 0 else "s--"
            axes.errorbar(curve.index, curve["mean"], 2 * curve["sem"], fmt=style, ms=4, color=colour, label=f"{data}, {labels[arm]}")
    limits = np.array([0.0, 0.5])
    axes.plot(limits, limits, ":", color="black", lw=1, label="violations = delta")
    axes.set(xlabel="delta that is asked for (epsilon = 0.1)", ylabel="share of rows beyond epsilon")
    axes.legend(fontsize=8)
    return fig


def _mode_figure(frame: pd.DataFrame):  # type: ignore[no-untyped-def]
    modes = ("denominator", "numerator", "sdpa")
    rows = frame[frame["arm"].isin(modes)]
    sets = sorted(rows["data"].unique(), reverse=True)  # short, long
    fig, axes = figure(8.0, 3.0 * len(sets) + 0.3, len(sets), 2, sharey="col", squeeze=False)
    for panels, data in zip(axes, sets, strict=True):
        cells = list(dict.fromkeys(rows[rows["data"] == data]["cell"]))
        for panel, quantity, name in ((panels[0], "density", "share of keys read"), (panels[1], "viol_sdpa", "outputs beyond epsilon")):
            for i, mode in enumerate(modes):
                means = rows[(rows["arm"] == mode) & (rows["data"] == data)].groupby("cell", sort=False)[quantity].mean()
                at = np.arange(len(cells)) + 0.26 * (i - 1)
                panel.bar(at, means.loc[cells], 0.24, color=COLOURS[i], label=f"bound on the {_on(mode)}")
            panel.set_xticks(range(len(cells)), [f"epsilon 0.{c[1:3]}" for c in cells])
            panel.set_ylabel(name)
            panel.set_title(f"{data} prompts", fontsize=9)
        panels[1].axhline(0.1, ls=":", color="black", lw=1)
        panels[1].annotate("delta", (len(cells) - 0.6, 0.1), va="bottom", ha="right", fontsize=8)
    axes[0][0].legend(fontsize=8)
    return fig


def _on(mode: str) -> str:
    return "output" if mode == "sdpa" else mode


def _complementarity_figure(scatter: pd.DataFrame):  # type: ignore[no-untyped-def]
    fig, axes = figure(6.8, 4.0)
    edges = np.quantile(scatter["entropy_nats"], np.linspace(0, 1, 9))
    bins = np.clip(np.searchsorted(edges, scatter["entropy_nats"], side="right") - 1, 0, 7)
    middle = scatter.groupby(bins)["entropy_nats"].mean()
    for i, arm in enumerate(("oracle_topk", "random", "vattention")):
        axes.scatter(scatter["entropy_nats"], scatter[arm].clip(lower=1e-5), s=3, alpha=0.15, color=COLOURS[i], linewidths=0)
        axes.plot(middle, scatter.groupby(bins)[arm].mean(), "o-", ms=4, color=COLOURS[i], label=SHORT[arm])
    axes.set(yscale="log", xlabel="entropy of the row's softmax, nats (flat to the right)", ylabel="relative error of the output")
    axes.legend(fontsize=8)
    return fig
