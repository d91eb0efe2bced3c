"""Last evaluate stage: scores of all arms side by side, paired differences over seeds, and the figures of the paper's page."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from tasks.common.formats import read_parquet, write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.single_cell import figures
from tasks.single_cell.scoring import Scores

SOURCES = ("evaluate-dice", "evaluate-baselines", "evaluate-sweep")

AGAINST_PCA = ("dice", "dice_published", "isotropic", "isotropic_published")
PAIRS = (
    ("dice", "wiener_sampled"),
    ("dice_published", "wiener_sampled_published"),
    ("dice_published", "gaussian_trained_published"),
    ("gaussian_trained_published", "wiener_sampled_published"),
    ("repeats_10", "repeats_1"),
    ("another_single", "repeats_1"),
    ("dice_published", "repeats_1"),
    ("dice", "wiener"),
    ("dice", "gmm"),
    ("dice", "knn_smoothing"),
    ("dice", "magic"),
)
SCORES = ("silhouette", "clisi", "ari", "nmi", "ari_oracle", "nmi_oracle", "knn", "rmse", "interval_coverage", "largest_gap")
"""What is reported of every arm; `scores.parquet` has all."""
SETUPS_OF_GAIN = ("setup4", "setup1")


class ReportParams(Params):
    """What the figures show: target of the embedding maps, and of the sweeps."""

    map_target: str = "pbmc_p100"
    sweep_targets: tuple[str, ...] = ("setup1", "pbmc_p100")


def evaluate(params: ReportParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Join the scores, report all arms with intervals, and draw."""
    table = pd.concat([read_parquet(inputs.file(source, "scores.parquet")) for source in SOURCES], ignore_index=True)
    write_parquet(out / "scores.parquet", table)
    scores = Scores(table)
    metrics = scores.summaries(SCORES) | comparisons(scores)
    _draw(params, inputs, log, table)
    return metrics


def comparisons(scores: Scores) -> Metrics:
    """Paired differences, gains over PCA and ratios to it, wherever both sides were measured."""
    metrics: Metrics = {}
    for target in scores.targets():
        for arm in AGAINST_PCA:
            for metric in ("silhouette", "clisi"):
                metrics |= scores.difference(arm, "pca", metric, target)
            for metric in ("silhouette", "ari", "nmi", "knn", "ari_oracle"):
                metrics |= scores.gain(arm, "pca", metric, target, f"{metric}_gain")
        for arm, other in PAIRS:
            metrics |= scores.difference(arm, other, "silhouette", target)
            metrics |= scores.difference(arm, other, "rmse", target)
        for arm in ("dice", "dice_published", "flat", "isotropic", "wiener", "gmm", "rho_0p3", "student_t"):
            metrics |= scores.ratio(arm, "pca", "rmse", target, "rmse_ratio")
        for sigma in ("identity", "scalar"):
            metrics |= scores.ratio("sigma_gene", f"sigma_{sigma}", "rmse", target, f"rmse_ratio_{sigma}")
    for arm in ("dice", "dice_published", "isotropic", "isotropic_published"):
        metrics |= _smaller_gain(scores, arm)
    return metrics


def _smaller_gain(scores: Scores, arm: str) -> Metrics:
    """How much less an arm gains over PCA in setup 4 than in setup 1, in silhouette."""
    from tasks.common.statistics import paired

    keys = [(name, "silhouette", target) for target in SETUPS_OF_GAIN for name in (arm, "pca")]
    if any(key not in scores for key in keys):
        return {}
    fourth, first = (scores[arm, "silhouette", t] - scores["pca", "silhouette", t] for t in SETUPS_OF_GAIN)
    name = f"{arm}.silhouette_gain"
    return paired(f"{name}.setup4-{name}.setup1", fourth, first)


def _draw(params: ReportParams, inputs: Inputs, log: Log, table: pd.DataFrame) -> None:
    measured = set(table["target"])
    log.figure("silhouette_by_setup", figures.by_setup(table, "silhouette"))
    log.figure("denoising_error", figures.by_setup(table, "rmse"))
    log.figure("rho_sweep", figures.rho_sweep(table, [t for t in params.sweep_targets if t in measured]))
    if any(t.startswith("pbmc") for t in measured):
        log.figure("depth", figures.depth_sweep(table))
    cells = pd.concat([read_parquet(inputs.file(s, "embeddings.parquet")) for s in ("evaluate-baselines", "evaluate-dice")])
    if params.map_target in measured:
        of_cells = read_parquet(inputs.file("evaluate-dice", "spread.parquet"))
        mapped = cells[(cells["target"] == params.map_target) & (cells["seed"] == 0)]
        spreads = of_cells[(of_cells["target"] == params.map_target) & (of_cells["seed"] == 0)]
        log.figure("maps", figures.maps(mapped, spreads))
    path = read_parquet(inputs.file("evaluate-dice", "path.parquet"))
    if len(path):
        log.figure("between_modes", figures.between_modes(path))
        log.figure("exact_posterior", figures.exact_posterior(read_parquet(inputs.file("evaluate-dice", "exact.parquet"))))
    log.figure("rho_choice", figures.rho_choice(read_parquet(inputs.file("train-rho", "rho.parquet"))))
