"""Figures of the comparison of posteriors over inducing variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tasks.common.node import Log
from tasks.common.plotting import COLOURS, figure
from tasks.common.statistics import mean_interval
from tasks.diffusion.linear_gaussian import OrnsteinUhlenbeck, marginal_mean, marginal_variance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Table = dict[tuple[str, str, str], np.ndarray]

NAMES = {
    "dsvi": "DSVI (Gaussian)",
    "ddvi": "DDVI",
    "dbvi": "DBVI",
    "mean_vector": "free mean vector",
    "frozen": "DBVI, amortiser frozen",
    "ipvi": "IPVI",
    "sghmc": "SGHMC",
    "dsvi_gpytorch": "DSVI by GPyTorch",
}
SHADES = dict(zip(NAMES, (COLOURS[6], COLOURS[1], COLOURS[0], COLOURS[2], COLOURS[7], COLOURS[3], COLOURS[4], COLOURS[5]), strict=True))
SIGMAS = {"sigma_01": 0.1, "base": 0.3, "sigma_1": 1.0}
STEPS = {"k1": 1, "k2": 2, "k5": 5, "base": 10, "k20": 20}
VARIANT_NAMES = {
    "base": "as it is (sigma 0.3, K 10)",
    "sigma_01": "sigma 0.1",
    "sigma_1": "sigma 1",
    "learned_sigma": "sigma learned per layer",
    "no_doob": "without the Doob term",
    "start_paper": "start N(mu, sigma²)",
    "euler": "Euler-Maruyama steps",
    "literal": "both: the paper's text",
    "unwhitened": "diffusion in U, not V",
    "script": "loss of the published script",
    "k1": "K = 1",
    "k2": "K = 2",
    "k5": "K = 5",
    "k20": "K = 20",
    "m16": "M = 16",
    "m64": "M = 64",
    "random_z": "random inducing inputs",
    "cold": "no warm start",
    "one_layer": "one layer",
    "three_layers": "three layers",
}


def draw(table: Table, curves: pd.DataFrame, names: Sequence[str], log: Log) -> None:
    """All figures of the main comparison."""
    log.figure("convergence", convergence(curves, names))
    log.figure("errors", errors(table, names))
    log.figure("divergence", divergence(table, names))
    log.figure("marginals", marginals())


def draw_ablations(table: Table, name: str, log: Log) -> None:
    """All figures of the ablations."""
    log.figure("gaps", gap_by_variant(table, name))
    log.figure("sweeps", sweeps(table, name))


def convergence(curves: pd.DataFrame, names: Sequence[str]) -> Figure:
    """Test RMSE and bound against steps: mean over seeds; the band is one standard error of the mean."""
    fig, axes = figure(4.1 * len(names), 5.6, rows=2, columns=len(names), squeeze=False)
    for column, name in enumerate(names):
        for axis, quantity in zip(axes[:, column], ("rmse", "elbo"), strict=True):
            for arm in ("dsvi", "ddvi", "dbvi", "mean_vector"):
                part = curves[(curves["arm"] == arm) & (curves["data"] == name) & (curves["quantity"] == quantity)]
                if part.empty:
                    continue
                wide = part.pivot(index="step", columns="seed", values="value")
                mean, error = wide.mean(axis=1), wide.sem(axis=1).fillna(0.0)
                axis.plot(wide.index, mean, color=SHADES[arm], label=NAMES[arm], lw=1.6)
                axis.fill_between(wide.index, mean - error, mean + error, color=SHADES[arm], alpha=0.15, lw=0)
                if quantity == "elbo":
                    axis.set_ylim(bottom=max(axis.get_ylim()[0], _floor(curves, name)))
        axes[0, column].set(title=name, ylabel="test RMSE" if column == 0 else "")
        axes[1, column].set(xlabel="training steps", ylabel="bound (nats per datum)" if column == 0 else "")
    axes[0, -1].legend(fontsize=8)
    return fig


def errors(table: Table, names: Sequence[str]) -> Figure:
    """Test RMSE and NLL by method, with 95 % intervals over seeds."""
    fig, axes = figure(8.2, 2.7 * len(names), rows=len(names), columns=2, squeeze=False)
    for row, name in enumerate(names):
        for axis, quantity in zip(axes[row], ("rmse", "nll"), strict=True):
            arms = [arm for arm in NAMES if (arm, quantity, name) in table]
            for place, arm in enumerate(arms):
                _whisker(axis, table[arm, quantity, name], place, SHADES[arm])
            axis.set_yticks(range(len(arms)), [NAMES[a] for a in arms] if quantity == "rmse" else [""] * len(arms))
            axis.invert_yaxis()
            axis.set_xlabel(f"{name}: test {'RMSE' if quantity == 'rmse' else 'NLL (nats)'}")
    return fig


def divergence(table: Table, names: Sequence[str]) -> Figure:
    """Path and end terms by layer, DDVI beside DBVI (mean over seeds, with standard errors)."""
    fig, axes = figure(4.1 * len(names), 3.4, columns=len(names), squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        terms = sorted(q for a, q, n in table if (a, n) == ("ddvi", name) and q.split("_")[0] in ("path", "end") and q[-1].isdigit())
        for shift, arm in ((-0.2, "ddvi"), (0.2, "dbvi")):
            known = [table[arm, term, name] for term in terms if (arm, term, name) in table]
            places = np.arange(len(known)) + shift
            spread = [v.std(ddof=1) / v.size**0.5 if v.size > 1 else 0.0 for v in known]
            axis.bar(places, [v.mean() for v in known], 0.38, yerr=spread, color=SHADES[arm], label=NAMES[arm])
        axis.set_xticks(range(len(terms)), [f"{t.split('_')[0]},\nlayer {t.split('_')[1]}" for t in terms])
        axis.axhline(0, color="k", lw=0.8)
        axis.set(title=name)
    axes[0, 0].set_ylabel("nats")
    axes[0, -1].legend(fontsize=8)
    return fig


def marginals() -> Figure:
    """Variance and mean of the reference process over time, with and without the Doob bridge."""
    fig, (left, right) = figure(8.2, 3.0, columns=2)
    process, steps = OrnsteinUhlenbeck(), 400
    times = np.arange(steps + 1) / steps
    for shade, sigma in zip(COLOURS, (0.1, 0.3, 1.0), strict=False):
        left.plot(times, marginal_variance(process, sigma, steps), color=shade, label=f"bridge, sigma {sigma}")
        left.plot(times, marginal_variance(process, sigma, steps, doob=False), color=shade, ls="--", lw=1)
    left.plot([], [], color="k", ls="--", lw=1, label="without the Doob term")
    left.set(xlabel="t (sampling runs from 1 to 0)", ylabel="variance kappa_t")
    left.legend(fontsize=8)
    for shade, mu in zip(COLOURS, (0.0, 1.0, 2.0), strict=False):
        mean, spread = marginal_mean(process, mu, times), np.sqrt(marginal_variance(process, 0.3, steps))
        right.plot(times, mean, color=shade, label=f"mu = {mu:g}")
        right.fill_between(times, mean - spread, mean + spread, color=shade, alpha=0.12, lw=0)
    right.set(xlabel="t", ylabel="mean m_t +- standard deviation")
    right.legend(fontsize=8)
    return fig


def gap_by_variant(table: Table, name: str) -> Figure:
    """DBVI minus DDVI in the bound, one row per variant, paired 95 % intervals; not of the script, which does not maximise it."""
    known = [v for v in VARIANT_NAMES if v != "script"]
    variants = [v for v in known if ("dbvi_" + v, "elbo", name) in table and ("ddvi_" + v, "elbo", name) in table]
    fig, axis = figure(7.0, 0.9 + 0.26 * max(len(variants), 2))
    for place, variant in enumerate(variants):
        difference = table["dbvi_" + variant, "elbo", name] - table["ddvi_" + variant, "elbo", name]
        _whisker(axis, difference, place, COLOURS[0])
    axis.axvline(0, color="k", lw=0.8)
    axis.set_yticks(range(len(variants)), [VARIANT_NAMES[v] for v in variants])
    axis.invert_yaxis()
    axis.set_xlabel(f"bound of DBVI minus bound of DDVI (nats per datum, {name})")
    return fig


def sweeps(table: Table, name: str) -> Figure:
    """Bound against sigma and against the number of steps, with standard errors."""
    fig, axes = figure(8.2, 3.1, columns=2, sharey=True)
    for axis, points, label in ((axes[0], SIGMAS, "sigma"), (axes[1], STEPS, "diffusion steps K")):
        for arm in ("dbvi", "ddvi"):
            found = [(x, v) for variant, x in points.items() if (v := table.get((f"{arm}_{variant}", "elbo", name))) is not None]
            spread = [v.std(ddof=1) / v.size**0.5 if v.size > 1 else 0.0 for _, v in found]
            axis.errorbar(
                [x for x, _ in found], [v.mean() for _, v in found], spread, marker="o", ms=4, color=SHADES[arm], label=NAMES[arm]
            )
        axis.set(xlabel=label, xscale="log")
        axis.set_xticks(list(points.values()), [f"{x:g}" for x in points.values()])
        axis.minorticks_off()
    learned = table.get(("dbvi_learned_sigma", "elbo", name))
    if learned is not None:
        axes[0].axhline(learned.mean(), color=SHADES["dbvi"], ls=":", label="DBVI, sigma learned")
    gaussian = table.get(("dsvi_base", "elbo", name))
    if gaussian is not None:
        axes[0].axhline(gaussian.mean(), color=SHADES["dsvi"], ls="--", lw=1, label="DSVI")
    axes[0].set_ylabel(f"bound (nats per datum, {name})")
    axes[0].legend(fontsize=8)
    return fig


def _whisker(axis: Axes, values: np.ndarray, place: float, colour: str) -> None:
    mean, lo, hi = mean_interval(values)
    if np.isfinite([lo, hi]).all():
        axis.plot([lo, hi], [place, place], color=colour, lw=2)
    axis.plot(mean, place, "o", color=colour, ms=5)


def _floor(curves: pd.DataFrame, name: str) -> float:
    """Where the axis of bounds starts: below all but the first fifth of the curves."""
    part = curves[(curves["quantity"] == "elbo") & (curves["data"] == name)]
    late = part[part["step"] > 0.15 * part["step"].max()]
    means = late.groupby(["arm", "step"])["value"].mean()
    return float(means.min() - 0.1 * (means.max() - means.min()))


def step_posteriors(x: np.ndarray, y: np.ndarray, grid: np.ndarray, samples: dict[str, np.ndarray]) -> Figure:
    """Posteriors of f on a step: central 95 % bands by method above, marginals at two inputs below.

    Args:
        x: training inputs (N,).
        y: training targets (N,).
        grid: inputs (T,).
        samples: of f at them by method, (S, T).
    """
    fig, axes = figure(9.0, 5.0, rows=2, columns=len(samples), squeeze=False)
    places = [int(np.abs(grid - at).argmin()) for at in (0.0, 0.9)]
    for axis, (arm, f) in zip(axes[0], samples.items(), strict=True):
        lower, middle, upper = np.quantile(f, [0.025, 0.5, 0.975], axis=0)
        axis.plot(x, y, ".", color="0.6", ms=3)
        axis.fill_between(grid, lower, upper, color=SHADES[arm], alpha=0.25, lw=0)
        axis.plot(grid, middle, color=SHADES[arm], lw=1.5)
        for place in places:
            axis.axvline(grid[place], color="k", lw=0.6, ls=":")
        axis.set(title=NAMES[arm], xlabel="x", ylim=(-2.2, 2.2))
    axes[0, 0].set_ylabel("f, 95 % band")
    wide = axes[1, 0].get_gridspec()
    for axis in axes[1]:
        axis.remove()
    half = len(samples) // 2
    for spot, place in zip((wide[1, :half], wide[1, half:]), places, strict=True):
        axis = fig.add_subplot(spot)
        lo, hi = np.quantile(np.concatenate([f[:, place] for f in samples.values()]), [0.002, 0.998])
        for arm, f in samples.items():
            axis.hist(
                f[:, place], np.linspace(lo, hi, 30).tolist(), density=True, histtype="step", color=SHADES[arm], lw=1.5, label=NAMES[arm]
            )
        axis.set(xlabel=f"f at x = {abs(grid[place]):.1f}", ylabel="density")
    axis.legend(fontsize=8)
    return fig
