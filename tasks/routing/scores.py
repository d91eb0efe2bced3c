"""Metrics of decoded test sets, from the table of `tasks.routing.evaluation`.

Learned and random arms have several seeds: intervals are Student-t over seeds, of numbers that are means over all instances. Rules without
seeds get a bootstrap interval over instances. Gaps are over solved instances; because arms solve different ones, `gap_common` is over the
instances that both compared arms solved, seed by seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from tasks.common.node import Metrics
from tasks.common.statistics import bootstrap_interval, paired, standard_error, summarise
from tasks.routing.lazymask import INFEASIBLE, SOLVED

REPEATED = ("lmask_live", "norie_each", "local_each")
"""Runs that decode anew at every budget."""
RENAMED = {"pip": "nobt", "nearest": "nearest", "deadline": "deadline"}
"""With backtracking, the network trained without it is the arm `nobt`; without, it is `pip`. Rules become the benchmark's greedy ones."""
AT_ZERO = {"pip": "pip", "nearest": "greedy_l", "deadline": "greedy_c", "pomo": "pomo"}
RULES_WITHOUT_SEEDS = ("nearest", "deadline")


def arm_name(run: str, budget: int) -> str:
    """Name of a run at a budget: `lmask_r25`; without backtracking the baselines have names of their own."""
    if run == "pomo":
        return "pomo"
    return f"{RENAMED.get(run, run)}_r{budget}"


def arms_of(rows: pd.DataFrame, budgets: Iterable[int]) -> dict[str, pd.DataFrame]:
    """Rows by arm, with `solved` as of that budget; every run's smaller budgets are read off its largest one."""
    found: dict[str, pd.DataFrame] = {}
    for run, mine in rows.groupby("run"):
        name = str(run)
        if name in REPEATED or name.endswith("_unbounded"):
            for budget, part in mine.groupby("budget"):
                found[f"{name}_r{budget}" if name in REPEATED else name] = part.assign(solved=part["status"] == SOLVED)
            continue
        for budget in budgets:
            solved = (mine["status"] == SOLVED) & (mine["backtracks"] <= budget)
            part = mine.assign(solved=solved, backtracks=mine["backtracks"].clip(upper=budget))
            found[arm_name(name, budget)] = part
            if budget == 0 and name in AT_ZERO:
                found[AT_ZERO[name]] = part
    return found


def scores(rows: pd.DataFrame, name: str, budgets: Sequence[int], largest: int) -> Metrics:
    """Infeasible shares, gap, backtracks and decoder calls of every arm on one set."""
    metrics: Metrics = {}
    for arm, part in arms_of(rows, budgets).items():
        exact = part["run"].iloc[0].split("_")[0] in RULES_WITHOUT_SEEDS
        per_instance = _by_instance(part)
        quantities: dict[str, pd.Series] = {"sol_infeas": 1 - per_instance["solved"], "gap": per_instance["gap"]}
        if part["image"].max() > 0:
            quantities["ins_infeas"] = 1.0 - per_instance["any"]
        if arm.endswith(f"_r{largest}") or arm.endswith("_unbounded"):
            quantities |= {key: per_instance[key] for key in ("backtracks", "calls", "gap_single")}
            metrics[f"{arm}.backtracks_max.{name}"] = float(part["backtracks"].max())
        for key, values in quantities.items():
            finite = values[np.isfinite(values)]
            if finite.empty:
                continue
            metrics |= _over_instances(f"{arm}.{key}.{name}", finite) if exact else _over_seeds(f"{arm}.{key}.{name}", finite)
    return metrics


def common_gaps(rows: pd.DataFrame, name: str, largest: int) -> Metrics:
    """Gaps over the instances that two arms solved with the same seed, and their paired differences.

    `gap_common` compares LMask with PIP, `gap_nearest` with nearest-node search, `gap_rie` with LMask without RIE, each the best of all
    images; `gap_nearest_single` takes the first image alone. The gap of the arm compared with is over what it and LMask solved. Random
    search, over what it and the arm compared with solved, shows what a search without learning reaches.
    """
    arms = arms_of(rows, (0, largest))
    ours, random = f"lmask_r{largest}", f"random_r{largest}"
    metrics: Metrics = {}
    for key, base, compared, images in (
        ("gap_common", "pip", (ours, random), None),
        ("gap_nearest", f"nearest_r{largest}", (ours, random), None),
        ("gap_nearest_single", f"nearest_r{largest}", (ours, random), 1),
        ("gap_rie", f"norie_r{largest}", (ours,), None),
    ):
        for arm in compared:
            pair = _common_pair(arms, arm, base, images)
            if pair is None:
                continue
            metrics |= summarise(f"{arm}.{key}.{name}", pair[0])
            metrics |= paired(f"{arm}.{key}.{name}-{base}.{key}.{name}", *pair)
            if arm == ours:
                metrics |= summarise(f"{base}.{key}.{name}", pair[1])
    return metrics


def _common_pair(arms: dict[str, pd.DataFrame], a: str, b: str, images: int | None) -> tuple[list[float], list[float]] | None:
    """Mean gaps of two arms by seed, over what both solved; None where an arm is missing or a seed has nothing in common."""
    if a not in arms or b not in arms:
        return None
    seeds = sorted(set.intersection(*(set(arms[arm]["seed"]) for arm in (a, b) if _seeded(arms[arm]))))
    first, second = [], []
    for seed in seeds:
        gaps = pd.DataFrame({arm: _best_gaps(arms[arm], seed, images) for arm in (a, b)})
        both = gaps[np.isfinite(gaps).all(axis=1)]
        if both.empty:
            return None
        first.append(float(both[a].mean()))
        second.append(float(both[b].mean()))
    return first, second


def infeasibility_differences(rows: pd.DataFrame, name: str, largest: int) -> Metrics:
    """Paired differences of infeasible shares over seeds: LMask and random search against LMask without RIE, and against each other."""
    arms = arms_of(rows, (10, largest))
    shares = {
        arm: (1 - arms[arm]["solved"]).groupby(arms[arm]["seed"]).mean()
        for arm in arms
        if arm.startswith(("lmask_r", "norie_r", "random_r"))
    }
    metrics: Metrics = {}
    for budget in (10, largest):
        for a, b in (("lmask", "norie"), ("random", "norie"), ("lmask", "random")):
            ours, theirs = f"{a}_r{budget}", f"{b}_r{budget}"
            if ours in shares and theirs in shares:
                both = shares[ours].index.intersection(shares[theirs].index)
                metrics |= paired(f"{ours}.sol_infeas.{name}-{theirs}.sol_infeas.{name}", shares[ours][both], shares[theirs][both])
    return metrics


def length_ratios(rows: pd.DataFrame, name: str, largest: int) -> Metrics:
    """Mean length over that of Greedy-C on the same instances, over what both solved: `<arm>.length_ratio`."""
    arms = arms_of(rows, (0, largest))
    if "greedy_c" not in arms:
        return {}
    greedy = arms["greedy_c"]
    base = greedy[greedy["solved"]].set_index("instance")["length"]
    metrics: Metrics = {}
    for arm in (f"lmask_r{largest}", f"random_r{largest}"):
        if arm not in arms:
            continue
        solved = arms[arm][arms[arm]["solved"]]
        solved = solved[solved["instance"].isin(base.index)]
        ratios = [float(part["length"].mean() / base[part["instance"]].mean()) for _, part in solved.groupby("seed")]
        metrics |= summarise(f"{arm}.length_ratio.{name}", ratios) if ratios else {}
    return metrics


def rises(rows: pd.DataFrame, name: str, budgets: Sequence[int]) -> Metrics:
    """How much infeasibility rises from one budget to the next where decoding is repeated, and what a budget of 25 leaves of it.

    `largest_rise` is the largest over seeds and neighbouring budgets, `rise_beyond_2se` the largest mean rise less twice its standard
    error.
    """
    metrics: Metrics = {}
    for run in REPEATED:
        mine = rows[rows["run"] == run]
        if mine.empty or len(budgets) < 2:
            continue
        shares = (mine["status"] != SOLVED).groupby([mine["seed"], mine["budget"]]).mean().unstack().to_numpy(float)  # seeds x budgets
        steps = np.diff(shares, axis=1)
        metrics[f"{run}.largest_rise.{name}"] = float(steps.max())
        if len(shares) > 1:
            metrics[f"{run}.rise_beyond_2se.{name}"] = max(float(step.mean() - 2 * standard_error(step)) for step in steps.T)
        if 0 in budgets and 25 in budgets and (shares[:, 0] > 0).all():
            metrics |= summarise(f"{run}.left_at_r25.{name}", shares[:, sorted(budgets).index(25)] / shares[:, 0])
    return metrics


def proofs(table: pd.DataFrame, name: str) -> Metrics:
    """Of instances without a tour, the share that a run proves infeasible; of the others, how many it wrongly calls so."""
    metrics: Metrics = {}
    for run, part in table[table["part"] == "test"].groupby("run"):
        metrics[f"{run}.false_proofs.{name}"] = float((part["status"] == INFEASIBLE).sum())
    hopeless = table[table["part"] == "infeasible"]
    if hopeless.empty:
        return metrics
    budgets = sorted(hopeless["budget"].unique())
    for _, part in hopeless.groupby(["run", "budget"]):
        run, budget = str(part["run"].iloc[0]), int(part["budget"].iloc[0])
        label = "exhaustive" if budget == budgets[-1] and len(budgets) > 1 else f"r{budget}"
        proved = (part["status"] == INFEASIBLE).groupby(part["seed"]).mean()
        metrics |= summarise(f"{RENAMED.get(run, run)}_{label}.proved_infeasible.{name}", proved)
        metrics[f"{RENAMED.get(run, run)}_{label}.false_tours.{name}"] = float((part["status"] == SOLVED).sum())
    return metrics


def _by_instance(part: pd.DataFrame) -> pd.DataFrame:
    """Means over images, a row per seed and instance; `gap` is the best image's, `gap_single` that of the first."""
    gap = pd.Series(np.where(part["solved"] & np.isfinite(part["cost"]), part["length"] / part["cost"] - 1, np.inf), part.index)
    shown = part.assign(gap=gap, gap_single=gap.where(part["image"] == 0, np.inf))
    groups = shown.groupby(["seed", "instance"])
    means = groups[["solved", "backtracks", "calls"]].mean()
    return means.assign(any=groups["solved"].any(), gap=groups["gap"].min(), gap_single=groups["gap_single"].min())


def _best_gaps(part: pd.DataFrame, seed: int, images: int | None) -> pd.Series:
    rows = part[part["seed"] == seed] if _seeded(part) else part
    if images is not None:
        rows = rows[rows["image"] < images]
    return _by_instance(rows)["gap"].droplevel("seed")


def _seeded(part: pd.DataFrame) -> bool:
    return part["run"].iloc[0] not in RULES_WITHOUT_SEEDS


def _over_seeds(name: str, values: pd.Series) -> Metrics:
    return summarise(name, values.groupby("seed").mean().to_numpy())


def _over_instances(name: str, values: pd.Series) -> Metrics:
    numbers = values.to_numpy(float)
    lo, hi = bootstrap_interval(numbers, np.random.default_rng(0))
    return {name: float(numbers.mean()), f"{name}.lo": lo, f"{name}.hi": hi, f"{name}.n": float(numbers.size)}
