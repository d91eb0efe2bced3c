"""Figures of the comparison of schedulers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.common.node import Metrics
from tasks.common.plotting import COLOURS, figure
from tasks.masked_diffusion.decoding import Decoded
from tasks.masked_diffusion.register_trace import TOKENS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAMILIES = {
    "quota": ("quota", "quota_half", "quota_quarter"),
    "quota, other orders": ("quota_random", "quota_entropy", "quota_margin", "quota_block"),
    "threshold, no cache": ("threshold", "threshold_07", "threshold_block"),
    "threshold, cached": ("threshold_prefix", "threshold_prefix_whole", "threshold_dual", "threshold_calibrated"),
    "longest stable prefix": ("lsp", "lsp_wide", "lsp_tau3", "lsp_calibrated", "no_stability", "fixed_tau"),
    "literal rule": ("literal", "literal_nostab"),
    "scattered, same count": ("scattered",),
    "others": ("prophet", "prophet_min", "ar"),
}
MARKERS = "osD^vPX*"
DECAYING = ("literal_nostab", "literal", "lsp", "ar")
FLIPPING = ("lsp", "lsp_wide", "threshold", "threshold_block", "quota_half", "scattered")
MAPPED = {
    "lsp": "longest stable prefix",
    "scattered": "same count, scattered",
    "threshold": "threshold 0.9",
    "quota_half": "quota, 2 tokens per call",
}
LABELS = {
    "lsp": "LSP",
    "lsp_wide": "LSP, beta 1",
    "lsp_tau3": "LSP, floor 3",
    "lsp_calibrated": "LSP, tuned",
    "literal": "literal rule",
    "literal_nostab": "literal, no stability",
    "ar": "left to right",
    "fixed_tau": "fixed threshold",
    "no_snap": "no snapping",
    "no_cache": "no cache",
    "no_stability": "no stability",
    "keep_draft": "drafts kept",
    "scattered": "scattered",
    "quota": "quota, T = N",
    "quota_half": "quota, T = N/2",
    "threshold": "threshold",
    "threshold_block": "threshold, blocks",
    "threshold_prefix": "threshold, blocks, prefix cache",
    "threshold_prefix_whole": "threshold, prefix cache",
    "threshold_dual": "threshold, blocks, dual cache",
    "threshold_calibrated": "threshold, tuned",
}


def commit_map(examples: Mapping[str, Sequence[Decoded]]) -> Figure:
    """Position against programme; the colour is the call in which a token was committed."""
    shown = [arm for arm in MAPPED if arm in examples]
    made, axes = figure(8.0, 1.2 + 1.15 * len(shown), rows=len(shown), squeeze=False)
    last = max(int(one.trace.committed.max()) for arm in shown for one in examples[arm])
    image: Any = None
    for axis, arm in zip(axes[:, 0], shown, strict=True):
        table = np.stack([one.trace.committed for one in examples[arm]])
        image = axis.imshow(np.where(table < 0, np.nan, table), aspect="auto", cmap="viridis", vmin=0, vmax=last, interpolation="nearest")
        axis.set(title=MAPPED[arm], yticks=[], ylabel="answers")
        axis.title.set_fontsize(9.5)
        axis.grid(False)
    axes[-1, 0].set_xlabel("position in the answer")
    made.colorbar(image, ax=axes[:, 0].tolist(), label="call in which the token was committed")
    return made


def frontier(metrics: Metrics) -> Figure:
    """Exact match against calls and against token forwards, every scheduler."""
    made, axes = figure(9.5, 4.6, columns=2, sharey=True)
    for axis, cost, label in (
        (axes[0], "nfe", "calls of the denoiser per answer"),
        (axes[1], "token_forwards", "token forwards per answer"),
    ):
        for number, (family, arms) in enumerate(FAMILIES.items()):
            known = [arm for arm in arms if f"{arm}.em.trace" in metrics]
            x, y = [metrics[f"{arm}.{cost}.trace"] for arm in known], [metrics[f"{arm}.em.trace"] for arm in known]
            low = [max(metrics[f"{arm}.em.trace"] - metrics.get(f"{arm}.em.trace.lo", metrics[f"{arm}.em.trace"]), 0) for arm in known]
            low = [min(v, 1.0) for v in low]
            axis.errorbar(x, y, yerr=[low, low], fmt=MARKERS[number], color=COLOURS[number], ms=6, elinewidth=0.7, alpha=0.9, label=family)
        axis.set(xlabel=label, xscale="log", ylim=(-0.03, 1.05))
    axes[0].set_ylabel("exact match")
    made.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8.5)
    return made


def active_length(decay: Mapping[str, Sequence[Sequence[Sequence[int]]]], alpha: float) -> Figure:
    """Masked tokens before each call, mean over answers of all models (0 after the last call), beside (1 - alpha)^t."""
    made, axis = figure(7.0, 4.0)
    longest, start = 0, 1.0
    for arm, models in decay.items():
        answers = [sizes for model in models for sizes in model]
        calls = max(map(len, answers))
        mean = np.mean([np.pad(np.asarray(sizes, float), (0, calls - len(sizes))) for sizes in answers], axis=0)
        start, longest = mean[0], max(longest, calls)
        axis.plot(np.arange(calls), np.maximum(mean, 1e-2), marker=".", label=LABELS.get(arm, arm))
    t = np.arange(longest)
    axis.plot(t, start * (1 - alpha) ** t, "k--", lw=1, label=f"(1 - {alpha:g})^t")
    axis.set(xlabel="call", ylabel="masked tokens (mean)", yscale="log", ylim=(0.05, 1.4 * start))
    axis.legend(fontsize=8.5)
    return made


def flips(found: Mapping[str, Sequence[Sequence[Sequence[float]]]]) -> Figure:
    """Share of masked positions whose prediction changed since the call before, by call, over the answers that got so far."""
    made, axis = figure(7.0, 4.0)
    for arm, models in found.items():
        answers = [rates for model in models for rates in model]
        calls = max(map(len, answers))
        table = np.full((len(answers), calls), np.nan)
        for row, rates in zip(table, answers, strict=True):
            row[: len(rates)] = rates
        known = np.isfinite(table).sum(0)
        enough = known >= max(3, 0.05 * len(answers))
        mean = np.where(enough, np.nansum(table, 0) / np.maximum(known, 1), np.nan)
        axis.plot(np.arange(calls), mean, marker=".", label=LABELS.get(arm, arm))
    axis.set(xlabel="call", ylabel="share of masked positions that flip", xlim=(0, 14), ylim=(0, None))
    axis.legend(fontsize=8.5)
    return made


def margins(example: Decoded, panels: int = 4) -> Figure:
    """Margins along the answer in the first calls of one answer, the threshold, and where the block was cut."""
    calls = min(panels, len(example.trace.margins))
    made, axes = figure(8.0, 1.0 + 1.35 * calls, rows=calls, sharex=True, squeeze=False)
    frontier_at = 0
    for axis, values, (tau, passed, length) in zip(axes[:, 0], example.trace.margins, example.trace.thresholds, strict=False):
        axis.bar(np.arange(len(values)), np.nan_to_num(values), color=COLOURS[5], width=0.8)
        if math.isfinite(tau):
            axis.axhline(tau, color=COLOURS[1], lw=1, label=f"tau = {tau:.1f}")
        axis.axvline(frontier_at - 0.5, color="black", lw=1, label="frontier")
        axis.axvline(frontier_at + passed - 0.5, color=COLOURS[1], ls=":", lw=1.5, label="passed")
        axis.axvline(frontier_at + length - 0.5, color=COLOURS[2], lw=1.5, label="committed up to here")
        axis.set(ylabel="margin", ylim=(0, 1.45 * float(np.nanmax(example.trace.margins[0]))))
        axis.legend(fontsize=7.5, ncols=4, loc="upper right")
        frontier_at += length
    kept = len(example.trace.margins[0])
    axes[-1, 0].set(xlabel="position in the answer, with its final token", xticks=np.arange(len(example.tokens)))
    axes[-1, 0].set_xticklabels([TOKENS[token] if token < len(TOKENS) else "" for token in example.tokens], fontsize=8)
    axes[-1, 0].set_xlim(-0.7, kept - 0.3)
    return made


def appends(examples: Mapping[str, Sequence[Decoded]]) -> Figure:
    """Which rows of the cache each call froze, for one answer: contiguous appends against rewritten blocks."""
    shown = [arm for arm in ("lsp", "threshold_prefix", "threshold_dual") if arm in examples]
    made, axes = figure(9.0, 3.4, columns=len(shown), sharex=True, sharey=True, squeeze=False)
    handles: dict[str, Any] = {}
    for axis, arm in zip(axes[0], shown, strict=True):
        written = examples[arm][0].trace.appends
        seen = 0
        for number, (start, stop) in enumerate(written):
            again = max(0, min(stop, seen) - start)
            axis.barh(number, again, left=start, color=COLOURS[1], height=0.7, label="again" if again else None)
            axis.barh(number, stop - start - again, left=start + again, color=COLOURS[0], height=0.7, label="for the first time")
            seen = max(seen, stop)
        axis.set(title=LABELS.get(arm, arm), xlabel="position (prompt first)")
        axis.title.set_fontsize(9.5)
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    made.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2, fontsize=8.5)
    axes[0, 0].set_ylabel("write to the cache")
    axes[0, 0].invert_yaxis()
    return made


def ablations(metrics: Metrics) -> Figure:
    """What one turned switch changes: exact match, calls, token forwards and flips, paired by model."""
    arms = ("lsp_wide", "lsp_tau3", "fixed_tau", "no_snap", "no_cache", "no_stability", "keep_draft", "scattered", "literal")
    made, axes = figure(9.5, 3.8, columns=4, sharey=True)
    panels = (("em", "exact match"), ("nfe", "calls"), ("token_forwards", "token forwards"), ("flip_rate", "flip rate"))
    for axis, (quantity, label) in zip(axes, panels, strict=True):
        for row, arm in enumerate(arms):
            name = f"{arm}.{quantity}.trace-lsp.{quantity}.trace"
            value = metrics[name]
            reach = max(metrics.get(f"{name}.hi", value) - value, 0.0)
            axis.errorbar(value, row, xerr=reach, fmt="o", color=COLOURS[0], ms=5, capsize=2)
        axis.axvline(0, color="black", lw=0.8)
        axis.set(xlabel=f"{label}, minus LSP's", yticks=range(len(arms)), yticklabels=[LABELS.get(a, a) for a in arms])
    axes[0].invert_yaxis()
    return made


def growth(curves: Mapping[str, Mapping[int, Mapping[str, float]]]) -> Figure:
    """Work against answer length on forced predictions: N calls with full attention, and a share of the suffix per call."""
    made, axes = figure(9.0, 3.6, columns=2)
    names = {"quota": "one token per call", "literal": "prefix, cached", "literal_uncached": "prefix, no cache"}
    for axis, counter, label in ((axes[0], "token_forwards", "token forwards"), (axes[1], "attn_pairs", "attention pairs")):
        for arm, by_length in curves.items():
            lengths = sorted(by_length)
            axis.plot(lengths, [by_length[n][counter] for n in lengths], marker="o", ms=4, label=names.get(arm, arm))
        axis.set(xscale="log", yscale="log", xlabel="answer length N", ylabel=label)
        axis.set_xticks(lengths, [str(n) for n in lengths])
        axis.minorticks_off()
    axes[0].legend(fontsize=8.5)
    return made


def latency(metrics: Metrics, lengths: Sequence[int]) -> Figure:
    """Time per answer by scheduler relative to one token per call, and how cached and uncached time grow with length."""
    made, axes = figure(9.5, 4.0, columns=2)
    arms = [name.split(".")[0] for name in metrics if name.endswith(".latency_ratio.trace")]
    for row, arm in enumerate(arms):
        name = f"{arm}.latency_ratio.trace"
        reach = max(metrics.get(f"{name}.hi", metrics[name]) - metrics[name], 0.0)
        colour = COLOURS[1] if arm.startswith(("threshold", "prophet")) else COLOURS[0]
        axes[0].errorbar(metrics[name], row, xerr=reach, fmt="o", color=colour, ms=5, capsize=2)
    axes[0].set(yticks=range(len(arms)), yticklabels=[LABELS.get(a, a) for a in arms], xscale="log")
    axes[0].set_xlabel("time per answer / that of one token per call")
    axes[0].invert_yaxis()
    for number, (arm, label) in enumerate(
        (("cached", "prefix, cached"), ("uncached", "prefix, no cache"), ("quota", "one token per call"))
    ):
        known = [n for n in lengths if f"{arm}.latency_ms.n{n}" in metrics]
        axes[1].plot(known, [metrics[f"{arm}.latency_ms.n{n}"] for n in known], marker="o", ms=4, color=COLOURS[number], label=label)
    axes[1].set(xscale="log", yscale="log", xlabel="answer length N", ylabel="ms per answer")
    axes[1].set_xticks(list(lengths), [str(n) for n in lengths])
    axes[1].minorticks_off()
    axes[1].legend(fontsize=8.5)
    return made
