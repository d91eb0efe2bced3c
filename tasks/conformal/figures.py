"""Figures of the corrupted-label experiments, each from one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tasks.common.plotting import COLOURS, figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {
    "naive": "naive",
    "clean_oracle": "all labels",
    "wcp": "WCP, Z known",
    "pcp_true": "PCP, true w",
    "pcp_est": "PCP, est. w",
    "naive_imp": "naive imp.",
    "ui": "UI",
    "ui_global": "UI, global",
    "triply": "TriplyRobust",
    "pcp_const": "PCP, constant w",
    "pcp_beta_020": "PCP, beta 0.02",
    "pcp_beta_050": "PCP, beta 0.05",
    "ui_clusters_5": "UI, 5 clusters",
    "ui_clusters_50": "UI, 50 clusters",
    "ui_neighbours_5": "UI, 5 neighbours",
    "ui_linear": "UI, linear imputer",
    "ui_blind": "UI, blind imputer",
}
SHOWN = ("naive", "naive_imp", "ui", "pcp_true", "pcp_est", "triply", "clean_oracle")
COLOUR = dict(zip(SHOWN, (COLOURS[1], COLOURS[4], COLOURS[0], COLOURS[2], COLOURS[5], COLOURS[3], COLOURS[7]), strict=True))
NOMINAL = 0.9


def coverage_boxes(scores: pd.DataFrame, real: list[str]) -> Figure:
    """Coverage of the methods over splits, a panel per real set, against the nominal 90 %."""
    drawn, axes = _boxes(scores, real, "coverage")
    for ax in axes:
        ax.axhline(NOMINAL, color="black", linewidth=1, linestyle="--")
    axes[0].set_ylabel("coverage")
    return drawn


def length_boxes(scores: pd.DataFrame, real: list[str]) -> Figure:
    """Mean length of finite sets over splits, in standard deviations of the label."""
    drawn, axes = _boxes(scores, real, "length")
    axes[0].set_ylabel("mean length (sd of y)")
    return drawn


def _boxes(scores: pd.DataFrame, real: list[str], column: str) -> tuple[Figure, list[Any]]:
    drawn, axes = figure(2.1 * max(len(real), 1) + 0.6, 3.6, 1, max(len(real), 1), squeeze=False)
    for ax, name in zip(axes[0], real, strict=False):
        here = scores[scores["data"] == name]
        numbers = [here[here["arm"] == arm][column].dropna().to_numpy() for arm in SHOWN]
        boxes = ax.boxplot(numbers, patch_artist=True, widths=0.65, showfliers=False, medianprops={"color": "black"})
        for box, arm in zip(boxes["boxes"], SHOWN, strict=True):
            box.set_facecolor(COLOUR[arm])
        ax.set_xticks(range(1, len(SHOWN) + 1), [LABELS[arm] for arm in SHOWN], rotation=60, ha="right", rotation_mode="anchor", fontsize=8)
        ax.set_title(name)
    return drawn, list(axes[0])


def coverage_by_z(deciles: pd.DataFrame, real: list[str]) -> Figure:
    """Coverage in each tenth of the privileged information, mean over splits and real sets."""
    drawn, ax = figure(6.0, 3.6)
    mean = deciles[deciles["data"].isin(real)].groupby("decile")[["naive", "ui"]].mean()
    for arm in ("naive", "ui"):
        ax.plot(mean.index + 1, mean[arm], marker="o", color=COLOUR[arm], label=LABELS[arm])
    ax.axhline(NOMINAL, color="black", linewidth=1, linestyle="--")
    ax.axvspan(8, 10.3, color=COLOURS[7], alpha=0.2, label="labels go missing")
    ax.set_xlim(0.7, 10.3)
    ax.set_xlabel("decile of z")
    ax.set_ylabel("coverage, mean over sets")
    ax.legend(loc="lower left")
    return drawn


def imputed_labels(imputed: pd.DataFrame, real: list[str]) -> Figure:
    """Imputed against true labels of the corrupted calibration rows of one split: a prediction alone is too sure of itself."""
    drawn, axes = figure(2.1 * max(len(real), 1) + 0.6, 2.8, 1, max(len(real), 1), squeeze=False)
    for ax, name in zip(axes[0], real, strict=False):
        rows = imputed[imputed["data"] == name].iloc[:250]
        ax.scatter(rows["y"], rows["imputed"], s=6, color=COLOUR["ui"], alpha=0.5, label="prediction + residual (UI)")
        ax.scatter(rows["y"], rows["guess"], s=6, color=COLOUR["naive_imp"], alpha=0.7, label="prediction")
        if len(rows):
            ends = [rows["y"].min(), rows["y"].max()]
            ax.plot(ends, ends, color="black", linewidth=1)
        ax.set_title(name)
        ax.set_xlabel("true label")
    axes[0][0].set_ylabel("imputed label")
    handles, labels = axes[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=2, markerscale=2)
    return drawn


def weight_error(sweep: pd.DataFrame) -> Figure:
    """Coverage against a constant weight error, with the region shaded in which Theorem 2 says that PCP stays valid."""
    drawn, axes = figure(9.0, 3.8, 1, 2, sharey=True)
    for ax, case, title in zip(axes, ("under", "over"), ("naive under-covers", "naive over-covers"), strict=True):
        rows = sweep[sweep["case"] == case]
        mean = rows.groupby("delta", as_index=False)[["coverage", "theory"]].mean()
        place = np.arange(len(mean))
        sign = 1 if case == "under" else -1
        for i in place[(sign * mean["theory"] >= 0).to_numpy()]:
            ax.axvspan(i - 0.5, i + 0.5, color=COLOURS[2], alpha=0.2, linewidth=0, label="valid by Theorem 2")
        ax.plot(place, mean["coverage"], marker="o", color=COLOURS[0], label="weights + delta")
        ax.axhline(rows["naive"].mean(), color=COLOURS[1], linestyle=":", label="naive")
        ax.axhline(NOMINAL, color="black", linewidth=1, linestyle="--")
        ax.set_xticks(place, [f"{d:g}" for d in mean["delta"]], rotation=60)
        ax.set_xlabel("error delta added to all weights")
        ax.set_title(title)
    handles, labels = axes[0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes[0].legend(unique.values(), unique.keys(), loc="lower right", fontsize=8)
    axes[0].set_ylabel("exact coverage")
    return drawn


def triply_robust(cells: pd.DataFrame) -> Figure:
    """Coverage of the union with right and useless components: two panels (quantile model), weights down, imputer across."""
    drawn, axes = figure(7.2, 3.4, 1, 2)
    union = cells[cells["arm"] == "union"].groupby("cell")["coverage"].mean()
    for ax, quantiles in zip(axes, (False, True), strict=True):
        grid = np.array([[union[_cell(quantiles, w, i)] for i in (False, True)] for w in (False, True)])
        ax.imshow(grid, vmin=0.8, vmax=1.0, cmap="RdBu", aspect="auto")
        for w in range(2):
            for i in range(2):
                ax.text(i, w, f"{grid[w, i]:.3f}", ha="center", va="center", fontsize=13)
        ax.set_xticks([0, 1], ["useless", "right"])
        ax.set_yticks([0, 1], ["useless", "right"])
        ax.set_xlabel("imputer")
        ax.grid(visible=False)
        ax.set_title(f"quantile model {'right' if quantiles else 'useless'}")
    axes[0].set_ylabel("weights")
    return drawn


def _cell(quantiles: bool, weights: bool, imputer: bool) -> str:
    named = [name for name, right in (("quantiles", quantiles), ("weights", weights), ("imputer", imputer)) if right]
    return "_".join(named) or "none"


def ablation(scores: pd.DataFrame, real: list[str]) -> Figure:
    """Coverage and length of all arms, mean over real sets, with standard errors over splits."""
    here = scores[scores["data"].isin(real)]
    arms = [arm for arm in LABELS if arm in set(here["arm"])]
    pooled = {
        column: here.pivot_table(index="split", columns=["arm", "data"], values=column, dropna=False) for column in ("coverage", "length")
    }
    drawn, axes = figure(8.0, 4.6, 1, 2, sharey=True)
    for ax, column in zip(axes, ("coverage", "length"), strict=True):
        for i, arm in enumerate(arms):
            numbers = np.asarray(pooled[column][arm], dtype=float).mean(axis=1)
            numbers = numbers[np.isfinite(numbers)]
            if numbers.size == 0:  # sets of this arm are infinite in every split
                continue
            spread = numbers.std(ddof=1) / np.sqrt(len(numbers)) if len(numbers) > 1 else 0.0
            ax.errorbar(numbers.mean(), i, xerr=2 * spread, fmt="o", color=COLOUR.get(arm, COLOURS[7]), capsize=2)
    axes[0].axvline(NOMINAL, color="black", linewidth=1, linestyle="--")
    axes[0].set_yticks(range(len(arms)), [LABELS[arm] for arm in arms])
    axes[0].invert_yaxis()
    axes[0].set_xlabel("coverage, pooled (2 s.e.)")
    axes[1].set_xlabel("mean length, pooled (sd of y)")
    return drawn
