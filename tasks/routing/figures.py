"""Figures of the paper's page, from the tables of the evaluate stage."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tasks.common.plotting import COLOURS, figure
from tasks.routing.lazymask import SOLVED
from tasks.routing.traces import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {
    "lmask": "LMask",
    "pip": "trained as PIP, with backtracking",
    "norie": "LMask without RIE",
    "rho0": "LMask without penalty",
    "nearest": "nearest node + LazyMask",
    "deadline": "earliest deadline + LazyMask",
    "random": "random order + LazyMask",
    "lmask_ssl": "LMask, one-step sets (SSL)",
    "lmask_local": "LMask, local sets",
    "pomo": "POMO with penalty, no sets",
}
SHOWN = ("lmask", "pip", "nearest", "random", "lmask_ssl")
COLOUR = dict(zip(LABELS, (*COLOURS, "#7a5195", "#555555"), strict=True))
MARKS = dict(zip(LABELS, "osvD^<>XPp", strict=True))
TITLES = {
    "medium": "TSPTW medium",
    "hard": "TSPTW hard",
    "dl": "TSPDL hard",
    "dl12": "TSPDL hard, 12 nodes",
    "medium100": "TSPTW medium, 100 nodes",
    "hard100": "TSPTW hard, 100 nodes",
}


def infeasibility_by_budget(rows: pd.DataFrame, budgets: Sequence[int]) -> Figure:
    """Share of infeasible solutions against the budget of backtracks, a panel per set; PIP is the start of its curve."""
    return _by_budget(rows, budgets, "infeasible solutions", lambda part, budget: 1.0 - _within(part, budget).mean(), log=True)


def gap_by_budget(rows: pd.DataFrame, budgets: Sequence[int]) -> Figure:
    """Mean gap to the optimum of the solutions found, against the budget."""

    def gap(part: pd.DataFrame, budget: int) -> float:
        solved = part[_within(part, budget) & np.isfinite(part["cost"])]
        return 100 * float((solved["length"] / solved["cost"] - 1).mean()) if len(solved) else np.nan

    return _by_budget(rows, budgets, "gap to optimum (%)", gap, log=False)


def _by_budget(rows: pd.DataFrame, budgets: Sequence[int], label: str, measure: Any, log: bool) -> Figure:
    names = _sets(rows)
    drawn, axes = figure(3.4 * len(names) + 0.4, 3.9, 1, len(names), squeeze=False)
    place = np.arange(len(budgets))
    for ax, name in zip(axes[0], names, strict=True):
        here = rows[rows["set"] == name]
        for run in SHOWN:
            mine = here[here["run"] == run]
            if mine.empty:
                continue
            used = [i for i, budget in enumerate(budgets) if budget <= mine["budget"].iloc[0]]
            curves = np.array([[measure(part, budgets[i]) for i in used] for _, part in mine.groupby("seed")])
            curves = np.maximum(curves, 1e-4) if log else curves
            ax.plot(place[used], curves.mean(0), marker=MARKS[run], markersize=4, color=COLOUR[run], label=LABELS[run])
            ax.fill_between(place[used], curves.min(0), curves.max(0), color=COLOUR[run], alpha=0.15, linewidth=0)
        if log:
            ax.set_yscale("log")
            ax.set_ylim(0.8e-4, 1.3)
            ax.set_yticks([1e-4, 1e-3, 1e-2, 1e-1, 1], ["0", "0.1 %", "1 %", "10 %", "100 %"])
        ax.set_xticks(place, [str(budget) for budget in budgets])
        ax.set_title(TITLES.get(name, name))
        ax.set_xlabel("backtracks allowed, R")
    axes[0][0].set_ylabel(label)
    handles, labels = axes[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=3)
    return drawn


def backtrack_histogram(rows: pd.DataFrame) -> Figure:
    """How many backtracks instances take, up to the budget, a panel per set."""
    names = _sets(rows)
    drawn, axes = figure(3.4 * len(names) + 0.4, 3.5, 1, len(names), squeeze=False)
    edges = np.array([0, 1, 2, 4, 8, 16, 32, 64, 128, 201])
    for ax, name in zip(axes[0], names, strict=True):
        here = rows[(rows["set"] == name) & (rows["image"] == 0)]
        for i, run in enumerate(run for run in ("lmask", "nearest", "lmask_ssl") if run in set(here["run"])):
            counts, _ = np.histogram(here[here["run"] == run]["backtracks"], edges)
            ax.bar(np.arange(len(counts)) + (i - 1) * 0.28, counts / counts.sum(), 0.27, color=COLOUR[run], label=LABELS[run])
        labels = [f"{a}" if b - a == 1 else f"{a}–{b - 1}" for a, b in itertools.pairwise(edges)]
        ax.set_xticks(range(len(labels)), labels, rotation=60, fontsize=8)
        ax.set_title(TITLES.get(name, name))
        ax.set_xlabel("backtracks")
    axes[0][0].set_ylabel("share of instances")
    handles, labels = axes[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=3)
    return drawn


def trade_off(rows: pd.DataFrame, references: pd.DataFrame) -> Figure:
    """Every arm at its full budget: infeasible solutions against the gap of the others; hollow marks decode without backtracking."""
    names = _sets(rows)
    drawn, axes = figure(3.4 * len(names) + 0.4, 4.3, 1, len(names), squeeze=False)
    for ax, name in zip(axes[0], names, strict=True):
        here = rows[rows["set"] == name]
        for run in LABELS:
            mine = here[here["run"] == run]
            for budget in (0, int(mine["budget"].max())) if len(mine) else ():
                solved = _within(mine, budget)
                gap = mine["length"][solved] / mine["cost"][solved] - 1
                if not solved.any() or (run == "pomo" and budget > 0):
                    continue
                face = "none" if budget == 0 else COLOUR[run]
                y = max(1 - float(solved.mean()), 1e-4)
                label = LABELS[run] if budget or run == "pomo" else None
                ax.plot(100 * gap.mean(), y, MARKS[run], color=COLOUR[run], markerfacecolor=face, label=label)
        for solver, part in references[references["set"] == name].groupby("solver"):
            solved = np.isfinite(part["gap"])
            label = {"pyvrp": "PyVRP", "ortools": "OR-Tools"}[str(solver)]
            ax.plot(
                100 * part["gap"][solved].mean(),
                max(1 - solved.mean(), 1e-4),
                "*",
                color="black" if solver == "pyvrp" else "gray",
                label=label,
            )
        ax.set_yscale("log")
        ax.set_ylim(0.8e-4, 1.5)
        ax.set_yticks([1e-4, 1e-3, 1e-2, 1e-1, 1], ["0", "0.1 %", "1 %", "10 %", "100 %"])
        ax.set_xlabel("gap to optimum (%)")
        ax.set_title(TITLES.get(name, name))
    axes[0][0].set_ylabel("infeasible solutions")
    found: dict[str, Any] = {}
    for ax in axes[0]:
        found |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    drawn.legend(found.values(), found.keys(), loc="outside lower center", ncols=3, fontsize=8)
    return drawn


def tightness(table: pd.DataFrame) -> Figure:
    """Mean number of nodes in each set by depth: the exact one below, its over-estimates above, the one-step set all or nothing."""
    drawn, ax = figure(5.6, 3.6)
    means = table.groupby("depth")[["exact", "tsl", "ssl", "local"]].mean()
    shown = {"local": "reached in time", "ssl": "one-step set (SSL)", "tsl": "two-step set (TSL)", "exact": "exact potential set S"}
    for (kind, label), colour in zip(shown.items(), (COLOURS[7], COLOURS[5], COLOURS[0], COLOURS[6]), strict=True):
        ax.plot(means.index, means[kind], marker="o", markersize=4, color=colour, label=label)
    ax.set_xlabel("customers visited")
    ax.set_ylabel("nodes in the set, mean")
    ax.set_ylim(bottom=0)
    ax.legend()
    return drawn


def search(trace: Trace) -> Figure:
    """One search: windows as bars in the order of the tour, times of service as dots, branches that were popped again in grey."""
    tour = trace.tour
    early, late = trace.instance.early[0].numpy(), trace.instance.late[0].numpy()
    order = {int(node): i for i, node in enumerate(tour)}
    clocks = trace.instance.clocks(_as_tours(tour))[0, 0].numpy()
    drawn, axes = figure(9.2, 4.4, 1, 2, width_ratios=(1.5, 1))
    horizon = float(late[tour[1:]].max()) * 1.03
    for i, node in enumerate(tour[1:], 1):
        axes[0].barh(i, min(late[node], horizon) - early[node], left=early[node], height=0.62, color=COLOURS[5], alpha=0.45)
    kept = {(int(tour[i - 1]), int(tour[i])) for i in range(1, len(tour))}
    places = trace.instance.locs[0].numpy()
    for _, node, clock, before in trace.pushes:
        i = order[int(node)]
        if (int(before), int(node)) not in kept:
            axes[0].plot([clock], [i], "x", color=COLOURS[7], markersize=6)
            axes[1].plot(*places[[int(before), int(node)]].T, color=COLOURS[7], linewidth=1, linestyle="--", zorder=1)
    axes[0].plot(clocks, np.arange(len(tour)), color=COLOURS[0], marker="o", markersize=4, linewidth=1)
    axes[0].set_yticks(range(len(tour)), [str(node) for node in tour], fontsize=7)
    axes[0].set_xlabel("time (bar: window, dot: service, cross: tried and taken back)")
    axes[0].set_ylabel("node, in order of the tour")
    axes[0].invert_yaxis()
    _draw_tour(axes[1], places, tour)
    axes[1].set_title(f"{trace.backtracks} backtracks")
    return drawn


def _draw_tour(ax: Any, places: np.ndarray, tour: np.ndarray) -> None:
    closed = places[np.append(tour, tour[0])]
    ax.plot(*closed.T, color=COLOURS[0], linewidth=1.3, zorder=2)
    ax.scatter(*places[1:].T, s=18, color=COLOURS[0], zorder=3)
    ax.scatter(*places[:1].T, s=60, marker="s", color=COLOURS[1], zorder=3)
    for node, (x, y) in enumerate(places):
        ax.annotate(str(node), (x, y), textcoords="offset points", xytext=(3, 3), fontsize=7)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_aspect("equal")


def tours(drawings: Sequence[tuple[str, np.ndarray, np.ndarray, np.ndarray]]) -> Figure:
    """Solved instances beside each other, at most eight: (title, places (N, 2), tour, another tour or an empty one, dotted)."""
    shown = list(drawings)[:8]
    columns = min(len(shown), 4)
    drawn, axes = figure(3.1 * columns, 3.3 * -(-len(shown) // columns), -(-len(shown) // columns), columns, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    for ax, (title, places, tour, other) in zip(axes.flat, shown, strict=False):
        ax.set_axis_on()
        if len(other):
            ax.plot(*places[np.append(other, other[0])].T, color=COLOURS[4], linewidth=3, alpha=0.6, zorder=1)
        if len(tour):
            _draw_tour(ax, places, tour)
        else:
            ax.scatter(*places.T, s=18, color=COLOURS[7])
        ax.set_title(title, fontsize=8)
    return drawn


def _sets(rows: pd.DataFrame) -> list[str]:
    found = [str(name) for name in rows["set"].unique()]
    return sorted(found, key=lambda name: list(TITLES).index(name) if name in TITLES else len(TITLES))


def _within(part: pd.DataFrame, budget: int) -> pd.Series:
    return (part["status"] == SOLVED) & (part["backtracks"] <= budget)


def _as_tours(tour: np.ndarray) -> Any:
    import torch

    return torch.as_tensor(tour)[None, None]
