"""Figures of the supervised part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tasks.common.plotting import COLOURS, figure
from tasks.distillation.regression_warmstart import RegressionStartParams

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {"rand": "random subset", "lev": "leverage scores", "full": "all rows", "D_train": "all rows"}


def error_by_size(errors: pd.DataFrame, params: RegressionStartParams) -> Figure:
    """Median test error against the number of rows, by method, one panel per table; bars are quartiles over trials."""
    tables = list(params.regressors)
    fig, axes = figure(3.2 * len(tables), 3.6, columns=len(tables), squeeze=False)
    for axis, table in zip(axes[0], tables, strict=True):
        part = errors[errors.table == table]
        axis.axhline(part[part.arm == "full"].mse.median(), color="k", lw=1, ls=":", label=LABELS["full"])
        arms = ["rand", "lev", *(f"syn_k{k}" for k in params.regressors[table] if k > 5)]
        for number, arm in enumerate(arms):
            quartiles = part[part.arm == arm].groupby("size").mse.quantile(np.array([0.25, 0.5, 0.75])).unstack()
            middle = quartiles[0.5]
            label = LABELS.get(arm, f"distilled, k = {arm.removeprefix('syn_k')}")
            spread = [middle - quartiles[0.25], quartiles[0.75] - middle]
            shift = 1 + 0.03 * (number - len(arms) / 2)
            axis.errorbar(middle.index * shift, middle, yerr=spread, marker="o", ms=4, capsize=2, color=COLOURS[number], label=label)
        axis.set(title=table, xlabel="rows", xscale="log", yscale="log")
        axis.set_xticks(params.sizes, [str(s) for s in params.sizes])
        plain_log_ticks(axis)
        axis.legend(fontsize=7.5)
    axes[0, 0].set_ylabel("test MSE (standardised target)")
    return fig


def plain_log_ticks(axis: Any) -> None:
    """Plain numbers on a logarithmic y axis that spans little more than a decade, and no minor ticks on x."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
    axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_locator(NullLocator())


def threshold(sweep: pd.DataFrame, law: pd.DataFrame) -> Figure:
    """Spectral error against k with the thresholds q (q + 1) / 2, and the smallest sufficient k against q."""
    fig, (left, right) = figure(9.0, 3.7, columns=2)
    gaussian = sweep[sweep.law == "gaussian"]
    for colour, (table, group) in zip(COLOURS, gaussian.groupby("table"), strict=False):
        for _, one in group.groupby("seed"):
            left.plot(one.k, one.spectral_error, color=colour, lw=0.6, alpha=0.5)
        centre = group.groupby("k").spectral_error.median()
        left.plot(centre.index, centre, color=colour, marker="o", ms=3, label=str(table))
        left.axvline(group.threshold.iloc[0], color=colour, ls=":", lw=1)
    left.set(xlabel="random regressors k", ylabel="spectral error", yscale="log", title="dotted: k = q(q+1)/2")
    left.legend()
    q = np.sort(law.q.unique())
    right.plot(q, q * (q + 1) / 2, color="k", ls=":", label="q(q+1)/2")
    right.plot(law.q, law.k_star, "o", ms=4, color=COLOURS[1], alpha=0.6, label="found, one point a seed")
    right.set(xlabel="coordinates q", ylabel="smallest sufficient k", xscale="log", yscale="log", title="law in the dimension")
    right.set_xticks(q, [str(v) for v in q])
    right.minorticks_off()
    right.legend()
    return fig


def spectrum(eigenvalues: dict[str, np.ndarray], table: str) -> Figure:
    """Eigenvalues of the second moments of training and small sets, sorted."""
    fig, axis = figure(6.5, 3.8)
    for number, (name, values) in enumerate(eigenvalues.items()):
        style = {"color": "k", "lw": 3, "alpha": 0.35} if number == 0 else {"color": COLOURS[number - 1], "marker": "o", "ms": 3, "lw": 1}
        label = LABELS.get(name, name.replace("syn_k", "distilled, k = "))
        axis.plot(np.arange(1, len(values) + 1), np.maximum(values, 1e-6), label=label, **style)
    axis.set(xlabel="index", ylabel="eigenvalue of the second moment", yscale="log", title=f"{table}, first trial, smallest set")
    axis.legend(fontsize=8)
    return fig
