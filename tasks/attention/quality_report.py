"""Metrics and figures of the quality stage: means over a seed's prompts, intervals over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tasks.common.node import Log, Metrics
from tasks.common.plotting import COLOURS, figure
from tasks.common.statistics import paired, standard_error, summarise

QUANTITIES = ("density", "err_mean", "err_q95", "derr_mean", "dbias", "kl", "nll")
RATIOS = {
    "err_over_topk": ("err_mean", "oracle_topk"),
    "kl_over_topk": ("kl", "oracle_topk"),
    "density_over_topk": ("density", "oracle_topk"),
    "err_over_hybrid": ("err_mean", "hybrid_fixed"),
    "q95_over_hybrid": ("err_q95", "hybrid_fixed"),
}
"""Quantity of an arm divided by that of another one, seed by seed."""
COMPARED = ("vattention", "vattention_hash", "random", "hybrid_fixed", "sink_window", "oracle_topk", "oracle_topp")
FACTOR = 10
"""How many times vAttention's divergence `kl_beyond_10x_vattention` subtracts."""
SHORT = {
    "vattention": "vAttention (oracle)",
    "vattention_hash": "vAttention (hash)",
    "hashattention": "HashAttention top-k",
    "oracle_topk": "oracle top-k",
    "oracle_topp": "oracle top-p",
    "hybrid_fixed": "hybrid, half and half",
    "hybrid_tuned": "hybrid, tuned split",
    "random": "uniform sample",
    "sink_window": "sink + window",
    "magicpig": "MagicPIG",
    "dense": "dense",
}
"""Names of the arms in figures, best known first."""


def metrics_of(frame: pd.DataFrame, accuracy_tasks: Sequence[str], data: str = "quality") -> Metrics:
    """All metrics from one row per prompt and arm.

    Args:
        frame: columns seed, prompt, task, arm, `QUANTITIES` and em.
        accuracy_tasks: tasks whose exact match counts.
        data: last part of the metrics' names.
    """
    by_seed: Any = frame.groupby(["arm", "seed"])[list(QUANTITIES)].mean()
    arms = list(dict.fromkeys(frame["arm"]))
    metrics: Metrics = {}
    for arm in arms:
        for quantity in QUANTITIES:
            metrics |= summarise(f"{arm}.{quantity}.{data}", by_seed.loc[arm, quantity])
    for name, (quantity, base) in RATIOS.items():
        for arm in (a for a in COMPARED if a in arms):
            metrics |= summarise(f"{arm}.{name}.{data}", by_seed.loc[arm, quantity] / by_seed.loc[base, quantity])
    for arm in (a for a in COMPARED if a in arms):
        # A difference, not a ratio: single seeds have divergences near zero, whose quotients say little.
        excess = by_seed.loc[arm, "kl"] - FACTOR * by_seed.loc["vattention", "kl"]
        metrics |= summarise(f"{arm}.kl_beyond_10x_vattention.{data}", excess)
    for a, b in (("vattention_hash", "hashattention"), ("vattention", "hybrid_fixed"), ("vattention", "oracle_topp")):
        if {a, b} <= set(arms):
            for quantity in ("kl", "err_mean"):
                ours, theirs = by_seed.loc[a, quantity], by_seed.loc[b, quantity]
                metrics |= paired(f"{a}.{quantity}.{data}-{b}.{quantity}.{data}", ours, theirs)
    return metrics | _accuracy(frame[frame["task"].isin(accuracy_tasks)], arms, data)


def _accuracy(frame: pd.DataFrame, arms: Sequence[str], data: str) -> Metrics:
    """Exact match, and its differences to dense and to sink + window."""
    if frame.empty:
        return {}
    by_seed: Any = frame.groupby(["arm", "seed"])["em"].mean()
    wide: Any = frame.pivot(index=["seed", "prompt"], columns="arm", values="em")
    metrics: Metrics = {}
    for arm in arms:
        metrics |= summarise(f"{arm}.em.{data}", by_seed.loc[arm])
        if arm in COMPARED:
            for other in ("dense", "sink_window"):
                if other != arm:
                    metrics |= paired(f"{arm}.em.{data}-{other}.em.{data}", by_seed.loc[arm], by_seed.loc[other])
            lost = (wide[arm] - wide["dense"]).to_numpy()
            spread = standard_error(lost) if len(lost) > 1 else 0.0
            metrics[f"{arm}.em_diff_plus_2se.{data}"] = float(lost.mean() + 2 * spread)
    return metrics


def figures(frame: pd.DataFrame, budgets: np.ndarray, accuracy_tasks: Sequence[str], log: Log) -> None:
    """`accuracy`: exact match by task; `divergence`: KL against density; `budgets`: density by layer and head."""
    log.figure("accuracy", _accuracy_figure(frame, accuracy_tasks))
    log.figure("divergence", _divergence_figure(frame))
    log.figure("budgets", _budget_figure(budgets))


def _accuracy_figure(frame: pd.DataFrame, tasks: Sequence[str]):  # type: ignore[no-untyped-def]
    shown = [arm for arm in ("dense", *(a for a in SHORT if a != "dense")) if arm in set(frame["arm"])]
    tasks = [task for task in dict.fromkeys([*tasks, *frame["task"]]) if task in set(frame["task"])]
    table: Any = frame.groupby(["task", "arm"])["em"].mean()
    fig, axes = figure(8.5, 3.8)
    width = 0.8 / len(shown)
    for i, arm in enumerate(shown):
        at = np.arange(len(tasks)) + (i - (len(shown) - 1) / 2) * width
        hatch = "//" if i >= len(COLOURS) else ""
        axes.bar(at, [table[task, arm] for task in tasks], width, label=SHORT[arm], color=COLOURS[i % len(COLOURS)], hatch=hatch)
    axes.set_xticks(range(len(tasks)), [f"{t}\n({_prompts(frame, t)})" for t in tasks])
    axes.set_ylabel("exact match of the answer")
    axes.set_ylim(0, 1.05)
    fig.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return fig


def _prompts(frame: pd.DataFrame, task: str) -> str:
    count = len(frame[(frame["task"] == task) & (frame["arm"] == "dense")])
    return f"{count} prompt" + ("s" if count != 1 else "")


def _divergence_figure(frame: pd.DataFrame):  # type: ignore[no-untyped-def]
    fig, axes = figure(7.0, 4.2)
    shown = [arm for arm in SHORT if arm in set(frame["arm"]) and arm != "dense"]
    for i, arm in enumerate(shown):
        rows = frame[frame["arm"] == arm]
        kl = rows.groupby("seed")["kl"].mean().clip(lower=1e-6)
        density = rows.groupby("seed")["density"].mean()
        marker = "o" if arm.startswith("vattention") else "s" if i < len(COLOURS) else "^"
        axes.scatter(density, kl, s=14, alpha=0.5, color=COLOURS[i % len(COLOURS)], marker=marker)
        axes.scatter([density.mean()], [kl.mean()], s=70, label=SHORT[arm], color=COLOURS[i % len(COLOURS)], marker=marker)
    floor = frame[frame["arm"] == "dense_sdpa"]["kl"].mean()
    if floor > 0:
        axes.axhline(floor, ls=":", color="black", lw=1)
        axes.annotate("another dense kernel, bfloat16", (axes.get_xlim()[1], floor), ha="right", va="bottom", fontsize=8)
    axes.set_yscale("log")
    axes.set_xlabel("density: share of keys read")
    axes.set_ylabel("KL(dense || arm), nats per token")
    fig.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return fig


def _budget_figure(budgets: np.ndarray):  # type: ignore[no-untyped-def]
    fig, axes = figure(4.2, 5.2)
    image = axes.imshow(100 * budgets, aspect="auto", cmap="viridis")
    axes.grid(visible=False)
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    fig.colorbar(image, ax=axes, label="keys read, % (vAttention, oracle)")
    return fig
