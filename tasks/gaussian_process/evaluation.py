"""Evaluation stage: every arm's scores with intervals over seeds, paired differences, gaps by ablation, and the figures.

Metrics are called `<arm>.<quantity>.<data>`; `pooled` is the mean over the pooled sets, seed by seed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import Field

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.statistics import paired, pooled, summarise
from tasks.gaussian_process import comparison_figures as figures
from tasks.gaussian_process.experiment import groups, read_tables

REFERENCE = "ddvi"
QUANTITIES = ("elbo", "rmse", "nll", "coverage", "kl", "early_log_rmse", "accuracy", "path_last", "route", "center_norm", "steps_to_ddvi")
"""What is summarised, where it is known: bound per datum, errors in original units, divergence in nats and its path term in the last
layer, mean length of a path over all layers, norm of mu, steps until the test error of DDVI's end is reached."""
COMPARED = ("elbo", "rmse", "nll", "kl", "early_log_rmse", "accuracy")
POOLED = ("elbo", "nll", "rmse_sd")
GAPS = ("elbo", "rmse")
UNFINISHED = "unfinished"
"""The control of the accuracy claim: DBVI after the first mark of its curve."""


class EvaluateParams(Params):
    """How results are put together.

    Attributes:
        pooled: sets over which pooled metrics are taken.
        early: share of the steps whose test errors make `early_log_rmse`.
        ablated: the set on which ablations were run.
    """

    pooled: tuple[str, ...] = Field(("concrete", "boston"), min_length=1)
    early: float = Field(0.4, gt=0.0, le=1.0)
    ablated: str = "concrete"


Table = dict[tuple[str, str, str], np.ndarray]
"""Values over seeds by (arm, quantity, data)."""


def evaluate(params: EvaluateParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `results.parquet`, metrics and figures from the tables of all training stages."""
    main = [inputs[need] for need in inputs if need.startswith("train") and need != "train-ablations"]
    runs, curves = read_tables(main)
    table = collect(runs, curves, params)
    metrics = summaries(table) | comparisons(table)
    if "train-ablations" in inputs:
        changed, changed_curves = read_tables([inputs["train-ablations"]])
        ablated = collect(changed, changed_curves, params)
        metrics |= gaps(ablated, params.ablated) | best_sigma(ablated, params.ablated)
        figures.draw_ablations(ablated, params.ablated, log)
    write_parquet(out / "results.parquet", as_frame(table))
    figures.draw(table, curves, params.pooled, log)
    return metrics


def collect(runs: pd.DataFrame, curves: pd.DataFrame, params: EvaluateParams) -> Table:
    """All quantities by arm and set, with those that follow from others."""
    table: Table = {(arm, quantity, name): values for arm, name, quantity, values in groups(runs)}
    for (arm, name), part in curves[curves["quantity"] == "rmse"].groupby(["arm", "data"]):
        table[str(arm), "early_log_rmse", str(name)] = early_area(part, params.early)
    first = curves[(curves["quantity"] == "accuracy") & (curves["arm"] == "dbvi")]
    for name, part in first.groupby("data"):
        at_first = part[part["step"] == part["step"].min()].sort_values("seed")["value"].to_numpy()
        table[UNFINISHED, "accuracy", str(name)] = at_first
    for arm, name in sorted({(arm, name) for arm, _, name in table}):
        layers = sorted(q for a, q, n in table if (a, n) == (arm, name) and q.startswith("path_"))
        if layers:
            table[arm, "path_last", name] = table[arm, layers[-1], name]
            table[arm, "route", name] = sum_of(table, arm, "route_", name)
            table[arm, "center_norm", name] = sum_of(table, arm, "center_norm_", name)
    _steps_to_reference(table, curves)
    for arm in sorted({arm for arm, _, _ in table}):
        for quantity in POOLED:
            parts = [table.get((arm, quantity, name)) for name in params.pooled]
            known = [part for part in parts if part is not None]
            if len(known) == len(params.pooled) and len({part.size for part in known}) == 1:
                table[arm, quantity, "pooled"] = pooled(known)
    return table


def early_area(curve: pd.DataFrame, share: float) -> np.ndarray:
    """Mean log test RMSE over the marks of the first `share` of the steps, per seed: the area under the curve, per step.

    Raises:
        ValueError: if the curve has no mark as early as that.

    >>> curve = pd.DataFrame({"seed": 0, "step": [50, 100], "value": [np.e, 1.0]})
    >>> early_area(curve, 0.5).tolist()
    [1.0]
    """
    early = curve[curve["step"] <= share * curve["step"].max()]
    if early.empty:
        raise ValueError(f"early must reach the curve's first mark, step {curve['step'].min()} of {curve['step'].max()}, got {share}")
    logs = early.assign(value=np.log(early["value"])).groupby("seed")["value"].mean()
    return np.asarray(logs.sort_index())


def sum_of(table: Table, arm: str, start: str, name: str) -> np.ndarray:
    """Sum over layers of a quantity, per seed."""
    parts = [v for (a, q, n), v in table.items() if (a, n) == (arm, name) and q.startswith(start)]
    return np.asarray(np.sum(parts, axis=0))


def summaries(table: Table) -> Metrics:
    """Every arm's own numbers."""
    metrics: Metrics = {}
    for (arm, quantity, name), values in table.items():
        if quantity in QUANTITIES or name == "pooled":
            metrics |= summarise(f"{arm}.{quantity}.{name}", values)
    return metrics


def comparisons(table: Table) -> Metrics:
    """Paired differences: from DDVI, of DBVI (and its control) from the other methods, and of GPyTorch's DSVI from ours."""
    arms = {arm for arm, _, _ in table}
    pairs = [(arm, REFERENCE) for arm in sorted(arms - {REFERENCE})]
    pairs += [(arm, other) for arm in ("dbvi", "frozen") for other in ("dsvi", "mean_vector", "ipvi", "sghmc")]
    pairs.append(("dsvi_gpytorch", "dsvi"))
    metrics: Metrics = {}
    for (arm, quantity, name), values in table.items():
        if quantity not in COMPARED and name != "pooled":
            continue
        for first, second in pairs:
            other = table.get((second, quantity, name))
            if first == arm and other is not None:
                n = min(values.size, other.size)  # baselines that run on fewer seeds have the first ones
                metrics |= paired(f"{first}.{quantity}.{name}-{second}.{quantity}.{name}", values[:n], other[:n])
    return metrics


def gaps(table: Table, name: str) -> Metrics:
    """DBVI minus DDVI under every variant, `gap_<variant>.<quantity>.<data>`, and how these differ from the base's."""
    found: dict[tuple[str, str], np.ndarray] = {}
    for (arm, quantity, data), values in table.items():
        method, _, variant = arm.partition("_")
        other = table.get((f"{REFERENCE}_{variant}", quantity, data))
        if method == "dbvi" and other is not None and quantity in GAPS and data == name:
            found[variant, quantity] = values - other
    metrics: Metrics = {}
    for (variant, quantity), values in found.items():
        metrics |= summarise(f"gap_{variant}.{quantity}.{name}", values)
        if variant != "base" and ("base", quantity) in found:
            base = found["base", quantity]
            metrics |= paired(f"gap_base.{quantity}.{name}-gap_{variant}.{quantity}.{name}", base, values)
            metrics |= paired(f"gap_{variant}.{quantity}.{name}-gap_base.{quantity}.{name}", values, base)
    return metrics


def best_sigma(table: Table, name: str) -> Metrics:
    """Each method's bound at its own best sigma, chosen by the training bound's mean over seeds."""
    metrics: Metrics = {}
    best: dict[str, np.ndarray] = {}
    for method in ("dbvi", REFERENCE):
        found = {v: table[key] for v in figures.SIGMAS if (key := (f"{method}_{v}", "elbo", name)) in table}
        if found:
            chosen = max(found, key=lambda v: float(found[v].mean()))
            best[method] = found[chosen]
            metrics |= summarise(f"{method}_best.elbo.{name}", found[chosen])
            metrics[f"{method}_best.sigma.{name}"] = figures.SIGMAS[chosen]
    if len(best) == 2:
        metrics |= paired(f"dbvi_best.elbo.{name}-{REFERENCE}_best.elbo.{name}", best["dbvi"], best[REFERENCE])
    return metrics


def as_frame(table: Table) -> pd.DataFrame:
    """The table as rows (arm, quantity, data, seed, value)."""
    rows = [(*key, seed, float(v)) for key, values in sorted(table.items()) for seed, v in enumerate(values)]
    return pd.DataFrame(rows, columns=["arm", "quantity", "data", "seed", "value"])


def _steps_to_reference(table: Table, curves: pd.DataFrame) -> None:
    """Per seed the first mark at which an arm's test RMSE is at most DDVI's last; all steps where there is none."""
    errors = curves[curves["quantity"] == "rmse"]
    for name, part in errors.groupby("data"):
        reference = part[part["arm"] == REFERENCE]
        if reference.empty:
            continue
        last = reference[reference["step"] == reference["step"].max()].set_index("seed")["value"]
        for arm, curve in part.groupby("arm"):
            table[str(arm), "steps_to_ddvi", str(name)] = np.array(list(_first_steps(curve, last)), dtype=float)


def _first_steps(curve: pd.DataFrame, goal: pd.Series) -> Iterable[float]:
    for seed, own in curve.sort_values("step").groupby("seed"):
        reached = own[own["value"] <= goal.get(seed, -np.inf)]
        yield float(reached["step"].iloc[0] if len(reached) else own["step"].max())
