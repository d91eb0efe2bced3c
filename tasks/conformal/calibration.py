"""Train stage: the thresholds of all methods, from what the models said about reference and calibration rows.

`thresholds.parquet` has one row per (data, split, arm); weighted conformal prediction, which looks at the test row's Z and is
no method but a reference line, has one threshold per test row in `with_z.parquet`. `imputed.parquet` keeps the corrupted
rows of the first split with true, predicted and imputed label, `splits.parquet` facts about weights and pools. The arms are
described in `ARMS`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from tasks.common.formats import read_json, read_parquet, write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.conformal.datasets import PARTS
from tasks.conformal.diagnostics import weight_error_report
from tasks.conformal.imputation import CLUSTERS, FALLBACK_WARNING, ResidualPools, impute
from tasks.conformal.intervals import cqr_scores
from tasks.conformal.pcp import BETA, check_beta, pcp_threshold
from tasks.conformal.quantiles import Floats, conformal_quantile, weighted_quantile
from tasks.conformal.weights import likelihood_ratio_weights, shift_to_rate

ARMS: dict[str, str] = {
    "naive": "plain threshold on the clean rows",
    "clean_oracle": "plain threshold on all true labels (infeasible)",
    "pcp_true": "PCP with the true weights",
    "pcp_est": "PCP with estimated weights",
    "naive_imp": "corrupted labels imputed by the prediction",
    "ui": "uncertain imputation, residuals clustered by Z",
    "ui_global": "residuals drawn from all reference rows",
    "ui_clusters_5": "5 clusters instead of 20",
    "ui_clusters_50": "50 clusters instead of 20",
    "ui_neighbours_5": "small pools give way to the 5 nearest rows instead of 20",
    "ui_linear": "a linear imputer instead of trees",
    "ui_blind": "an imputer that knows nothing: labels drawn from all clean reference labels",
    "pcp_const": "PCP with constant weights",
    "pcp_beta_020": "PCP with true weights and beta 0.02",
    "pcp_beta_050": "PCP with true weights and beta 0.05",
    "observed": "plain threshold on all observed labels, corrupted or not",
}


class CalibrateParams(Params):
    """Levels of the methods.

    Attributes:
        alpha: miscoverage level.
        beta: what PCP spends on not knowing the test row's Z.
        clusters: pools of residuals for a Z with many values.
    """

    alpha: float = Field(0.1, gt=0.0, lt=1.0)
    beta: float = BETA
    clusters: int = Field(CLUSTERS, ge=2)

    @model_validator(mode="after")
    def _beta_below_alpha(self) -> CalibrateParams:
        check_beta(self.beta, self.alpha)
        return self


class Split(NamedTuple):
    """Reference, calibration and test rows of one split, tables as the warm start wrote them, and its seed."""

    reference: pd.DataFrame
    calibration: pd.DataFrame
    test: pd.DataFrame
    seed: int


class _Item(NamedTuple):
    path: Path
    data: str
    observed: bool
    params: CalibrateParams


def train(params: CalibrateParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Calibrate every method on every split; reports how often Theorem 3 tells right which weights give the larger threshold."""
    about = read_json(inputs.file("prepare", "data.json"))
    items = [
        _Item(inputs.file("warmstart", f"predictions-{name}.parquet"), name, entry["mechanism"] != "missing", params)
        for name, entry in about.items()
    ]
    found = list(log.progress(map_parallel(_calibrate_data, items), total=len(items), desc="thresholds"))
    tables = {key: pd.concat([tables[key] for tables in found], ignore_index=True) for key in found[0]}
    for key, table in tables.items():
        write_parquet(out / f"{key}.parquet", table)
    facts = tables["splits"]
    for name, rows in facts.groupby("data", sort=False):
        share = rows["fallback_share"].mean()
        if share > FALLBACK_WARNING and rows["empty_pools"].any():
            log.message(f"{name}: {share:.0%} of the imputed rows have no pool of residuals of their own; UI may under-cover there")
    return _metrics(facts)


def _metrics(facts: pd.DataFrame) -> Metrics:
    metrics: Metrics = {}
    for name, rows in facts.groupby("data", sort=False):
        larger = rows["est_threshold_is_larger"]
        metrics[f"theorem3.agreement.{name}"] = float((rows["theorem3_says_larger"] == larger).mean())
        metrics[f"mean_error.agreement.{name}"] = float(((rows["error_sum"] >= 0) == larger).mean())
        for column in (
            "largest_true_weight",
            "largest_est_weight",
            "fallback_share",
            "empty_pools",
            "clean_high_z_rows",
            "residual_spread",
        ):
            metrics |= summarise(f"{column}.{name}", rows[column])
    return metrics


def read_splits(path: Path) -> list[Split]:
    """All splits of one data set out of a predictions table."""
    table = read_parquet(path)
    splits = []
    for seed in sorted(table["split"].unique().tolist()):
        rows = table[table["split"] == seed]
        by_part = {int(p): r.reset_index(drop=True) for p, r in rows.groupby("part")}
        reference, calibration, test = (by_part[PARTS.index(name)] for name in PARTS[1:])
        splits.append(Split(reference, calibration, test, int(seed)))
    return splits


def _calibrate_data(item: _Item) -> dict[str, pd.DataFrame]:
    thresholds, with_z, facts = [], [], []
    imputed = None
    for split in read_splits(item.path):
        found = calibrate(split, item.params, observed=item.observed)
        where = {"data": item.data, "split": split.seed}
        thresholds += [{**where, "arm": arm, "threshold": value} for arm, value in found.thresholds.items()]
        with_z.append(pd.DataFrame({**where, "row": split.test["row"].to_numpy(), "threshold": found.with_z}))
        facts.append({**where, **found.facts})
        imputed = found.imputed.assign(data=item.data) if imputed is None else imputed
    return {
        "thresholds": pd.DataFrame(thresholds),
        "with_z": pd.concat(with_z, ignore_index=True),
        "splits": pd.DataFrame(facts),
        "imputed": imputed if imputed is not None else pd.DataFrame(),
    }


class Calibrated(NamedTuple):
    """What one split gave.

    Attributes:
        thresholds: by arm.
        with_z: threshold of weighted conformal prediction for each test row, (m,).
        imputed: corrupted calibration rows: z_0, true label `y`, `guess` of the imputer, `imputed` label of UI.
        facts: about weights and pools.
    """

    thresholds: dict[str, float]
    with_z: Floats
    imputed: pd.DataFrame
    facts: dict[str, float]


def calibrate(split: Split, params: CalibrateParams, observed: bool = False) -> Calibrated:
    """All thresholds of one split.

    Args:
        split: rows with columns y, observed, masked, probability, z_*, lower, upper, impute, impute_linear, mask_probability.
        params: levels.
        observed: whether corrupted labels are there to be read, which adds the arm `observed`.
    """
    cal, alpha, beta = split.calibration, params.alpha, params.beta
    masked = cal["masked"].to_numpy()
    scores = cqr_scores(cal["y"], cal["lower"], cal["upper"])
    w_true = likelihood_ratio_weights(cal["probability"])
    w_est = likelihood_ratio_weights(shift_to_rate(cal["mask_probability"], masked))
    found = {
        "naive": conformal_quantile(scores[~masked], alpha),
        "clean_oracle": conformal_quantile(scores, alpha),
        "pcp_true": pcp_threshold(scores, w_true, masked, alpha, beta),
        "pcp_est": pcp_threshold(scores, w_est, masked, alpha, beta),
        "pcp_const": pcp_threshold(scores, np.ones_like(scores), masked, alpha, beta),
        "pcp_beta_020": pcp_threshold(scores, w_true, masked, alpha, 0.2 * alpha),
        "pcp_beta_050": pcp_threshold(scores, w_true, masked, alpha, 0.5 * alpha),
    }
    if observed:
        found["observed"] = conformal_quantile(cqr_scores(cal["observed"], cal["lower"], cal["upper"]), alpha)
    by_imputing, imputed, pool_facts = _by_imputing(split, params)
    test_weights = likelihood_ratio_weights(cal["probability"], of=split.test["probability"])
    with_z = weighted_quantile(scores[~masked], w_true[~masked], test_weights, 1 - alpha)
    return Calibrated(found | by_imputing, with_z, imputed, pool_facts | _weight_facts(scores, w_true, w_est, masked, params))


def _by_imputing(split: Split, params: CalibrateParams) -> tuple[dict[str, float], pd.DataFrame, dict[str, float]]:
    ref, cal = split.reference, split.calibration
    z_names = [c for c in ref.columns if c.startswith("z_")]
    ref_z, cal_z = ref[z_names].to_numpy(), cal[z_names].to_numpy()
    ref_masked, masked = ref["masked"].to_numpy(), cal["masked"].to_numpy()
    # One number per row of the data set, looked up by row: the order of the rows changes nothing.
    rows = cal["row"].to_numpy()
    uniforms = np.random.default_rng([split.seed, 6]).random(int(rows.max()) + 1)[rows]
    nothing = np.zeros(len(ref)), np.zeros(len(cal))

    def imputer(column: str) -> tuple[Floats, Floats]:
        return ref[column].to_numpy(), cal[column].to_numpy()

    def pools(guesses: tuple[Floats, Floats], clusters: int, **options: int) -> ResidualPools:
        return ResidualPools(ref_z, ref["observed"].to_numpy() - guesses[0], ref_masked, clusters, seed=split.seed, **options)

    def labels(guesses: tuple[Floats, Floats], pool: ResidualPools | None) -> Floats:
        residual = np.zeros(masked.size)
        if pool is not None:
            residual[masked] = pool.draw(cal_z[masked], uniforms[masked])
        return impute(guesses[1], cal["observed"].to_numpy(), masked, residual)

    trees, linear = imputer("impute"), imputer("impute_linear")
    clustered = pools(trees, params.clusters)
    imputed = {
        "naive_imp": labels(trees, None),
        "ui": labels(trees, clustered),
        "ui_global": labels(trees, pools(trees, 1)),
        "ui_clusters_5": labels(trees, pools(trees, 5)),
        "ui_clusters_50": labels(trees, pools(trees, 50)),
        "ui_neighbours_5": labels(trees, pools(trees, params.clusters, neighbours=5)),
        "ui_linear": labels(linear, pools(linear, params.clusters)),
        "ui_blind": labels(nothing, pools(nothing, 1)),
    }
    thresholds = {arm: conformal_quantile(cqr_scores(y, cal["lower"], cal["upper"]), params.alpha) for arm, y in imputed.items()}
    kept = pd.DataFrame({"z_0": cal_z[masked, 0], "y": cal["y"][masked], "guess": trees[1][masked], "imputed": imputed["ui"][masked]})
    facts = {
        "fallback_share": float(clustered.fallback(cal_z[masked]).mean()) if masked.any() else 0.0,
        "empty_pools": float(sum(pool.size == 0 for pool in clustered.pools)),
        "clean_high_z_rows": float((~ref_masked & (ref_z[:, 0] >= np.quantile(ref_z[:, 0], 0.75))).sum()),
        "residual_spread": _spread(kept["imputed"] - kept["guess"], kept["y"] - kept["guess"]),
    }
    return thresholds, kept, facts


def _spread(drawn: pd.Series, true: pd.Series) -> float:
    """Standard deviation of the drawn residuals over that of the true ones, which only an evaluation knows; 1 without rows."""
    return float(drawn.std() / true.std()) if len(true) > 1 and true.std() > 0 else 1.0


def _weight_facts(scores: Floats, w_true: Floats, w_est: Floats, masked: np.ndarray, params: CalibrateParams) -> dict[str, float]:
    # PCP is weighted conformal prediction with an extreme test weight: Theorem 3 compares its two versions.
    clean, level = scores[~masked], 1 - params.alpha + params.beta
    test_true, test_est = (min(conformal_quantile(w, params.beta), float(w.max())) for w in (w_true, w_est))
    report = weight_error_report(clean, w_true[~masked], w_est[~masked], test_true, test_est, level)
    estimated = float(weighted_quantile(clean, w_est[~masked], test_est, level)[0])
    return {
        "largest_true_weight": float(w_true.max()),
        "largest_est_weight": float(w_est.max()),
        "error_sum": report.error_sum,
        "weight_sum": report.weight_sum,
        "error_mass": report.error_mass,
        "theorem3_says_larger": report.large_enough,
        "est_threshold_is_larger": estimated >= report.threshold,
    }
