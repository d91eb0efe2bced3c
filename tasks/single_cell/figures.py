"""Figures of the paper's page; every function takes tables and returns a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tasks.common.plotting import COLOURS, figure
from tasks.common.statistics import mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    "pca": "PCA",
    "dice": "DICE, chosen ρ",
    "dice_published": "DICE, published chain",
    "wiener_sampled": "Gaussian prior, same chain",
    "wiener": "Gaussian prior, closed form",
    "gmm": "mixture prior, closed form",
    "knn_smoothing": "kNN smoothing",
    "magic": "MAGIC",
    "alra": "ALRA",
    "nmf": "NMF",
    "isotropic": "isotropic prior",
    "oracle": "posterior mean, true laws",
}
SETUP_ARMS = ("pca", "dice", "dice_published", "wiener_sampled", "wiener", "gmm", "knn_smoothing", "oracle")
DEPTH_ARMS = ("pca", "dice", "wiener", "gmm", "knn_smoothing", "magic", "alra", "nmf")
STYLES = dict(
    zip(
        NAMES,
        [COLOURS[7], COLOURS[0], COLOURS[5], COLOURS[1], COLOURS[4], COLOURS[2], COLOURS[3], "#8c6d31", "#843c39", "#7b4173"],
        strict=False,
    )
)


def by_setup(table: pd.DataFrame, metric: str) -> Figure:
    """Means and intervals of the main arms, a group of bars per simulated setup; errors relative to PCA's of the same seed."""
    targets = [t for t in sorted(set(table["target"])) if t.startswith("setup")]
    arms = [a for a in SETUP_ARMS if a in set(table.loc[table["metric"] == metric, "arm"])]
    plot, axes = figure(9, 3.8)
    width = 0.85 / max(len(arms), 1)
    for i, arm in enumerate(arms):
        where, means, spans = [], [], []
        for x, target in enumerate(targets):
            values = _values(table, arm, metric, target)
            if values.size:
                mean, lo, hi = _interval(values / _values(table, "pca", metric, target) if metric == "rmse" else values)
                where.append(x + (i - (len(arms) - 1) / 2) * width)
                means.append(mean)
                spans.append((mean - lo, hi - mean))
        axes.bar(where, means, width, color=_colour(arm), label=NAMES[arm])
        axes.errorbar(where, means, np.array(spans).T if spans else None, fmt="none", ecolor="#333333", elinewidth=0.8)
    axes.set_xticks(range(len(targets)), [f"setup {t.removeprefix('setup')}" for t in targets])
    axes.set_ylabel({"silhouette": "silhouette of the true types", "rmse": "error to the noise-free latents / PCA's"}[metric])
    axes.legend(ncols=4, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.1))
    return plot


def rho_sweep(table: pd.DataFrame, targets: Sequence[str]) -> Figure:
    """Silhouette, error and interval coverage against rho, PCA dashed; a line per target."""
    metrics = [("silhouette", "silhouette"), ("rmse", "error to the truth"), ("interval_coverage", "coverage of 90 % intervals")]
    plot, axes = figure(9.5, 3.3, columns=3)
    sweep = table[table["arm"].str.fullmatch(r"rho_\d+p\d")]
    for colour, target in zip(COLOURS, targets, strict=False):
        for ax, (metric, label) in zip(axes, metrics, strict=True):
            rows = sweep[(sweep["target"] == target) & (sweep["metric"] == metric)]
            if rows.empty:
                continue
            relative = rows["arm"].str.removeprefix("rho_").str.replace("p", ".").astype(float)
            grouped = rows["value"].groupby(relative)
            bounds = np.array([_interval(v.to_numpy()) for _, v in grouped])
            x = np.array(sorted(set(relative)))
            ax.plot(x, bounds[:, 0], "o-", ms=3, color=colour, label=_target_name(target))
            ax.fill_between(x, bounds[:, 1], bounds[:, 2], color=colour, alpha=0.2, lw=0)
            pca = _values(table, "pca", metric, target)
            if pca.size:
                ax.axhline(pca.mean(), color=colour, ls="--", lw=0.9)
            ax.set_xscale("log")
            ax.set_xticks(x, [f"{v:g}" for v in x])
            ax.minorticks_off()
            ax.set_xlabel("ρ / s")
            ax.set_title(label, fontsize=9.5)
    axes[2].axhline(0.9, color="#333333", lw=0.8, ls=":")
    axes[0].legend(fontsize=8)
    return plot


def depth_sweep(table: pd.DataFrame) -> Figure:
    """Silhouette and ARI of blood cells against the share of counts that is kept."""
    targets = sorted({t for t in table["target"] if t.startswith("pbmc_p")}, key=lambda t: int(t.removeprefix("pbmc_p")))
    shares = [int(t.removeprefix("pbmc_p")) for t in targets]
    plot, axes = figure(9.5, 3.6, columns=3)
    for ax, (metric, label) in zip(axes, [("silhouette", "silhouette"), ("ari", "ARI (KMeans)"), ("knn", "label transfer")], strict=True):
        for arm in DEPTH_ARMS:
            values = [_values(table, arm, metric, target) for target in targets]
            if not values or not all(v.size for v in values):
                continue
            means = [v.mean() for v in values]
            heavy = arm in ("dice", "pca")
            ax.plot(shares, means, "o-", ms=3, lw=2 if heavy else 1, color=_colour(arm), label=NAMES[arm])
        ax.set_xscale("log")
        ax.set_xticks(shares, [f"{s} %" for s in shares])
        ax.minorticks_off()
        ax.set_xlabel("counts kept")
        ax.set_title(label, fontsize=9.5)
    if axes[0].lines:
        plot.legend(*axes[0].get_legend_handles_labels(), fontsize=8, ncols=4, loc="outside lower center")
    return plot


def maps(cells: pd.DataFrame, spreads: pd.DataFrame) -> Figure:
    """t-SNE of PCA and of DICE coloured by type, and of DICE coloured by posterior spread. For looking at; no number comes from it."""
    plot, axes = figure(10, 4.0, columns=3)
    names = sorted(set(cells["label"]))
    for ax, arm in zip(axes, ("pca", "dice"), strict=False):
        rows = cells[cells["arm"] == arm].sort_values("cell")
        flat = _flattened(rows)
        for i, name in enumerate(names):
            mine = (rows["label"] == name).to_numpy()
            ax.scatter(*flat[mine].T, s=7, color=COLOURS[i % len(COLOURS)], label=name, lw=0)
        ax.set_title(NAMES[arm])
    plot.legend(*axes[0].get_legend_handles_labels(), fontsize=8, ncols=4, markerscale=2, loc="outside lower center")
    dots = axes[2].scatter(*flat.T, s=7, c=np.sqrt(spreads.sort_values("cell")["spread"]), cmap="viridis", lw=0)
    plot.colorbar(dots, ax=axes[2], label="posterior spread (root of trace)")
    axes[2].set_title("DICE, uncertainty")
    for ax in axes:
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(visible=False)
    return plot


def between_modes(path: pd.DataFrame) -> Figure:
    """Cells on the line between two class means: share of draws that say the second class, entropy, size of the confidence set."""
    plot, axes = figure(9, 3.2, columns=3)
    columns = [
        ("second", "share of draws in the second class"),
        ("entropy", "label entropy (nats)"),
        ("set_size", "labels in the 90 % set"),
    ]
    for ax, (column, label) in zip(axes, columns, strict=True):
        for _, rows in path.groupby("seed"):
            ax.plot(rows["share"], rows[column], color=COLOURS[7], lw=0.8, alpha=0.7)
        mean = path.groupby("share")[column].mean()
        ax.plot(mean.index, mean, color=COLOURS[0], lw=2)
        ax.set_xlabel("position between the class means")
        ax.set_title(label, fontsize=9.5)
    axes[1].axhline(np.log(2), color="#333333", lw=0.8, ls=":")
    return plot


def exact_posterior(table: pd.DataFrame) -> Figure:
    """Chain averages against exact posterior means of the first latent, a panel per prior; the mixture stands in for the diffusion's."""
    pairs = [("exact_gaussian", "wiener_sampled"), ("exact_mixture", "gmm_sampled"), ("exact_mixture", "dice")]
    names = ["Gaussian prior", "two-class mixture", "DICE against the mixture"]
    plot, axes = figure(9, 3.2, columns=3, sharex=True, sharey=True)
    rows = table[table["seed"] == table["seed"].min()]
    for ax, (exact, sampled), name in zip(axes, pairs, names, strict=True):
        ax.scatter(rows[exact], rows[sampled], s=5, color=COLOURS[0], lw=0, alpha=0.6)
        ends = [rows[exact].min(), rows[exact].max()]
        ax.plot(ends, ends, color="#333333", lw=0.8)
        ax.set_title(name, fontsize=9.5)
        ax.set_xlabel("exact posterior mean")
    axes[0].set_ylabel("average of the draws")
    return plot


def rho_choice(table: pd.DataFrame) -> Figure:
    """Error on the noised held-out slice against rho, relative to PCA's, mean over seeds; a line per target, a dot at its smallest."""
    plot, axes = figure(7.5, 3.8)
    ratio = table.assign(ratio=table["rmse"] / table["rmse_pca"])
    palette = [*COLOURS, "#8c6d31", "#843c39", "#7b4173"]
    for colour, (target, rows) in zip(palette, ratio.groupby("target"), strict=False):
        mean = rows.groupby("relative")["ratio"].mean()
        axes.plot(mean.index, mean, color=colour, lw=1.2, label=_target_name(str(target)))
        axes.plot(mean.idxmin(), mean.min(), "o", color=colour, ms=5)
    axes.axhline(1, color="#333333", lw=0.8, ls=":")
    axes.set_xscale("log")
    ticks = sorted(set(table["relative"]))
    axes.set_xticks(ticks, [f"{v:g}" for v in ticks])
    axes.minorticks_off()
    axes.set_xlabel("ρ / s")
    axes.set_ylabel("slice error / PCA's")
    axes.legend(fontsize=8, ncols=2)
    return plot


def _values(table: pd.DataFrame, arm: str, metric: str, target: str) -> np.ndarray:
    """In the order of the seeds."""
    rows = table[(table["arm"] == arm) & (table["metric"] == metric) & (table["target"] == target)].sort_values("seed")
    return rows["value"].to_numpy(dtype=float)


def _interval(values: np.ndarray) -> tuple[float, float, float]:
    mean, lo, hi = mean_interval(values)
    return (mean, lo, hi) if np.isfinite(lo) else (mean, mean, mean)


def _colour(arm: str) -> Any:
    return STYLES.get(arm, "#000000")


def _target_name(target: str) -> str:
    if target.startswith("pbmc_p"):
        return f"blood, {target.removeprefix('pbmc_p')} %"
    return target.replace("setup", "setup ")


def _flattened(rows: pd.DataFrame) -> np.ndarray:
    from sklearn.manifold import TSNE

    values = rows[[c for c in rows.columns if c.startswith("u") and c[1:].isdigit()]].dropna(axis=1).to_numpy()
    perplexity = min(30.0, (len(values) - 1) / 3)
    return np.asarray(TSNE(init="pca", perplexity=perplexity, random_state=0).fit_transform(values))
