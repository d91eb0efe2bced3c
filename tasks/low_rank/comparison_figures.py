"""Figures of the comparison: divergence by ratio, descent against held-out text, spectra, ranks, errors by layer, bytes read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.common.node import Log
from tasks.common.plotting import COLOURS, figure
from tasks.low_rank.allocation import global_ranks
from tasks.low_rank.attention import PROJECTIONS, AttentionBlock
from tasks.low_rank.collector import LayerStatistics
from tasks.low_rank.heads import head_rank
from tasks.low_rank.methods import spectra_of

LABELS = {
    "svd": "SVD",
    "asvd": "ASVD",
    "fwsvd": "FWSVD",
    "svdllm": "SVD-LLM",
    "qsvd": "QSVD",
    "qsvd_global": "QSVD, global ranks",
    "diagonal": "whitened, channels apart",
    "permuted": "whitened, channels permuted",
    "head_svd": "per head, SVD",
    "head_white": "per head, whitened",
    "head_white_global": "per head, whitened, global ranks",
    "wsvd": "WSVD, no quantisation",
    "element": "element-wise",
}


ABLATIONS = {
    "head_white_kv": "start alone",
    "head_white_12_kv": "start alone, 12 calibration sequences",
    "head_white_4_kv": "start alone, 4 calibration sequences",
    "wsvd_kv": "element-wise weights",
    "row_kv": "row-wise weights",
    "first_order_kv": "weights |g|",
    "plain_start_kv": "element-wise weights, plain start",
    "wsvd_kv_last": "element-wise weights, last iterate",
    "row_kv_last": "row-wise weights, last iterate",
    "shuffled_kv_last": "shuffled weights, last iterate",
    "unweighted_kv_last": "no weights, last iterate",
}
"""Arms of keys and values at half of their parameters, and how the figure calls them."""


@dataclass(frozen=True)
class Shown:
    """What the figures need of one seed.

    Attributes:
        plain: singular values of one key head, (k,).
        whitened: those of the same head after whitening, (k,).
        ranks: projection -> rank of every head under global allocation, (layers, h).
        head_rank: what uniform allocation gives.
        shapes: `E`, `H`, `kv_heads`, `layers`.
    """

    plain: np.ndarray
    whitened: np.ndarray
    ranks: Mapping[str, np.ndarray]
    head_rank: int
    shapes: Mapping[str, int]


def spectra_shown(blocks: Sequence[AttentionBlock], statistics: Sequence[LayerStatistics], cells: Any) -> Shown:
    """Spectra of the first key head of the middle layer, and global ranks at half of the parameters."""
    middle = len(blocks) // 2
    block, known = blocks[middle : middle + 1], statistics[middle : middle + 1]
    plain, white = (spectra_of(method, block, known, ("k",))[0, "k"].sigma[0].numpy() for method in ("head_svd", "head_white"))
    rank = head_rank(0.5, blocks[0].hidden, blocks[0].head_dim)
    ranks: dict[str, np.ndarray] = {}
    for p in PROJECTIONS:
        masks = global_ranks({layer: known.importance[p] for layer, known in enumerate(statistics)}, rank)
        ranks[p] = np.stack([masks[layer].sum(1).numpy() for layer in range(len(blocks))])
    shapes = {"E": blocks[0].hidden, "H": blocks[0].head_dim, "kv_heads": blocks[0].heads("k"), "layers": len(blocks)}
    return Shown(plain, white, ranks, rank, shapes)


def draw(log: Log, rows: Any, objective: Any, errors: Any, shown: Shown | None) -> None:
    """All figures of the comparison."""
    log.figure("divergence_by_ratio", divergence_by_ratio(rows))
    log.figure("objective_and_held_out", objective_and_held_out(objective))
    log.figure("errors_by_layer", errors_by_layer(errors))
    log.figure("ablations", ablations(rows))
    if shown is not None:
        log.figure("spectra", spectra(shown))
        log.figure("ranks", rank_map(shown))
        log.figure("bytes_read", bytes_read(shown))


def divergence_by_ratio(rows: Any) -> Any:
    """KL to the dense model against the share of parameters that is kept, and against the share of the cache, one line per method."""
    fig, axes = figure(9.5, 4.2, columns=2, sharey=True)
    whole = rows[rows.arm.str.contains(r"_r\d+$")].copy()
    whole["method"] = whole.arm.str.replace(r"_r\d+$", "", regex=True)
    means = whole.groupby(["method", "arm"], sort=True)[["kl_nats", "param_ratio", "cache_ratio"]].mean().reset_index()
    for number, (method, part) in enumerate(means.groupby("method", sort=False)):
        style = {
            "marker": "osD^v<>PX*pd"[number % 12],
            "color": COLOURS[number % len(COLOURS)],
            "ms": 5,
            "label": LABELS.get(method, method),
        }
        for axis, ratio in zip(axes, ("param_ratio", "cache_ratio"), strict=True):
            ordered = part.sort_values(ratio)
            axis.plot(ordered[ratio], ordered["kl_nats"], lw=1.2, **style)
    for axis, text in zip(axes, ("parameters kept, rho1", "key-value cache kept, rho2"), strict=True):
        axis.set(yscale="log", xlabel=text)
    axes[0].set_ylabel("KL(dense || factorised), nats per token")
    axes[1].legend(fontsize=7.5)
    return fig


def objective_and_held_out(objective: Any) -> Any:
    """The weighted objective and the held-out divergence over the steps, mean over seeds, for every arm on keys and values."""
    fig, axes = figure(9.5, 3.8, columns=2)
    arms = [arm for arm in objective.arm.unique() if arm.endswith("_kv")]
    for number, arm in enumerate(arms):
        part = objective[objective.arm == arm].groupby("step", sort=True)[["objective", "held_out_kl_nats"]].mean()
        colour, name = COLOURS[number % len(COLOURS)], arm.removesuffix("_kv")
        axes[0].plot(part.index, part["objective"] / part["objective"].iloc[0], color=colour, label=name)
        measured = part["held_out_kl_nats"].dropna()
        axes[1].plot(measured.index, measured, "o-", ms=3.5, color=colour, label=name)
    axes[0].set(xlabel="step", ylabel="own objective, share of its start", yscale="log")
    axes[1].set(xlabel="step", ylabel="held-out KL, nats per token", yscale="log")
    for axis in axes:
        _plain_ticks(axis.yaxis)
    axes[0].legend(fontsize=8)
    return fig


def errors_by_layer(errors: Any) -> Any:
    """Fisher-weighted error of keys and values by layer, before fine-tuning and after it with element-wise and row-wise weights."""
    fig, axes = figure(9.0, 3.6, columns=2, sharey=True)
    for axis, p in zip(axes, ("k", "v"), strict=True):
        part = errors[errors.projection == p]
        start = part[part.arm == "wsvd_kv"].groupby("layer")["before"].mean()
        axis.plot(start.index, start, color=COLOURS[6], label="before", lw=1.2)
        for colour, arm, name in ((COLOURS[0], "wsvd_kv", "element-wise"), (COLOURS[1], "row_kv", "row-wise")):
            after = part[part.arm == arm].groupby("layer")["last"].mean()
            axis.plot(after.index, after, color=colour, label=name, lw=1.2)
        axis.set(title={"k": "keys", "v": "values"}[p], xlabel="layer")
    axes[0].set(ylabel="Fisher-weighted error, relative", ylim=(0, None))
    axes[1].legend(fontsize=8)
    return fig


def ablations(rows: Any) -> Any:
    """Divergence of keys and values at half of their parameters, a dot per seed, and a bar at the mean."""
    found = {label: rows[rows.arm == arm]["kl_nats"].to_numpy() for arm, label in ABLATIONS.items() if (rows.arm == arm).any()}
    fig, axis = figure(7.0, 0.3 * len(found) + 1.2)
    for place, (label, values) in enumerate(found.items()):
        colour = COLOURS[6] if label.startswith("start") else COLOURS[1] if label.endswith("last iterate") else COLOURS[0]
        axis.plot(values, np.full(len(values), place), "o", color=colour, ms=4, alpha=0.6)
        axis.plot(values.mean(), place, "|", color=colour, ms=14, mew=2)
    axis.set_yticks(range(len(found)), list(found))
    axis.set(xscale="log", xlabel="KL(dense || factorised), nats per token")
    _plain_ticks(axis.xaxis)
    axis.invert_yaxis()
    return fig


def _plain_ticks(axis: Any) -> None:
    """Ticks at 1, 2 and 5 of every decade, written out."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def spectra(shown: Shown) -> Any:
    """Share of the squared spectrum beyond each rank, plain and whitened."""
    fig, axis = figure(5.5, 3.8)
    for values, name, colour in ((shown.plain, "plain", COLOURS[1]), (shown.whitened, "whitened", COLOURS[0])):
        tail = 1 - np.cumsum(values**2) / np.sum(values**2)
        axis.plot(np.arange(1, len(values)), tail[:-1], label=name, color=colour)
    axis.axvline(shown.head_rank, color=COLOURS[7], lw=1, ls="--")
    axis.text(shown.head_rank + 0.5, 0.8, f"r = {shown.head_rank}", fontsize=8, color=COLOURS[7])
    axis.set(yscale="log", xlabel="rank of one key head", ylabel="share of squared singular values beyond")
    axis.legend()
    return fig


def rank_map(shown: Shown) -> Any:
    """Rank of every (layer, head) under global allocation."""
    widths = [ranks.shape[1] for ranks in shown.ranks.values()]
    fig, axes = figure(7.5, 4.6, columns=len(widths), width_ratios=widths, sharey=True)
    top = max(int(ranks.max()) for ranks in shown.ranks.values())
    for axis, (p, ranks) in zip(axes, shown.ranks.items(), strict=True):
        image = axis.imshow(ranks, aspect="auto", vmin=0, vmax=top, cmap="viridis")
        axis.set(title={"q": "queries", "k": "keys", "v": "values"}[p], xlabel="head")
        axis.set_xticks(range(ranks.shape[1]))
        axis.grid(False)
    axes[0].set_ylabel("layer")
    fig.colorbar(image, ax=axes, label=f"rank (uniform: {shown.head_rank})", shrink=0.8)
    return fig


def bytes_read(shown: Shown) -> Any:
    """Numbers that one decoding step reads per cached token and layer, for keys and values of all heads."""
    heads, dimension, rank = shown.shapes["kv_heads"], shown.shapes["H"], shown.head_rank
    shared = int(0.5 * shown.shapes["E"] * heads * dimension / (shown.shapes["E"] + heads * dimension))
    bars = {
        "dense": 2 * heads * dimension,
        "per head, r each": 2 * heads * rank,
        "shared latent,\nread once": 2 * shared,
        "shared latent,\nread by every head": 2 * heads * shared,
    }
    fig, axis = figure(6.0, 3.2)
    axis.barh(list(bars), list(bars.values()), color=[COLOURS[6], COLOURS[0], COLOURS[2], COLOURS[1]])
    for place, value in enumerate(bars.values()):
        axis.text(value, place, f" {value}", va="center", fontsize=8)
    axis.set(xlabel="numbers read per cached token and layer (rho1 = 0.5)")
    axis.invert_yaxis()
    axis.grid(False, axis="y")
    axis.set_axisbelow(True)
    return fig
