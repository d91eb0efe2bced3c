"""Scores of one embedding of a target: separation of the true types, label transfer from the reference, error to the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tasks.common.node import Metrics
from tasks.common.statistics import paired, summarise
from tasks.single_cell.clustering_metrics import RESOLUTIONS, NeighbourGraph, clisi, embedding_metrics, rmse, silhouette, transfer_accuracy

if TYPE_CHECKING:
    from tasks.single_cell.cohort_files import Cells
    from tasks.single_cell.prior_training import Fitted

Floats = NDArray[np.float64]

KMEANS_SEEDS = range(10)


def true_latents(fitted: Fitted, target: Cells) -> Floats | None:
    """V^T of the target's expression without noise, through the reference's scaler (n, k); None where it is not known."""
    if target.signal is None:
        return None
    return np.asarray(fitted.standardise(target, target.signal) @ fitted.space.loadings)


Clusterings = Literal["all", "kmeans", "none"]


def score(embedding: Floats, fitted: Fitted, target: Cells, clusterings: Clusterings = "none") -> dict[str, float]:
    """All scores of an embedding (n, k) in the coordinates of the reference's basis.

    Args:
        embedding: one row per target cell.
        fitted: of the reference.
        target: its labels are used here and nowhere before.
        clusterings: also agreement of KMeans and label transfer, and of Leiden too; these take most of the time.
    """
    found = separation(embedding, target, clusterings)
    if clusterings != "none":
        found["knn"] = transfer_accuracy(fitted.latents, fitted.labels, embedding, target.labels)
    truth = true_latents(fitted, target)
    if truth is not None:
        found["rmse"] = rmse(embedding, truth)
    return found


def separation(embedding: Floats, target: Cells, clusterings: Clusterings = "none") -> dict[str, float]:
    """Scores that look at the embedding alone, in whatever coordinates."""
    if clusterings != "none":
        resolutions = RESOLUTIONS if clusterings == "all" else ()
        return dict(embedding_metrics(embedding, target.labels, kmeans_seeds=KMEANS_SEEDS, resolutions=resolutions))
    return {"silhouette": silhouette(embedding, target.labels), "clisi": clisi(NeighbourGraph.of(embedding), target.labels)}


def table_of(scores: dict[str, dict[str, float]], target: str, seed: int) -> pd.DataFrame:
    """Long table (arm, metric, value, target, seed) of the scores of some arms."""
    records = [(arm, metric, value, target, seed) for arm, found in scores.items() for metric, value in found.items()]
    return pd.DataFrame(records, columns=["arm", "metric", "value", "target", "seed"])


def cells_of(embedding: Floats, labels: NDArray[np.str_]) -> pd.DataFrame:
    """A row per cell: `u0`... (float32), its number and its true label."""
    frame = pd.DataFrame(embedding.astype(np.float32), columns=[f"u{j}" for j in range(embedding.shape[1])])
    return frame.assign(cell=np.arange(len(frame)), label=labels)


class Scores:
    """Scores of all arms, by arm, metric and target, in the order of the seeds.

    Args:
        table: long table as `table_of` makes, of any number of targets, seeds and arms.
    """

    def __init__(self, table: pd.DataFrame) -> None:
        ordered = table.sort_values(["target", "arm", "metric", "seed"], kind="stable")
        self._values = {
            (str(arm), str(metric), str(target)): rows["value"].to_numpy(dtype=float)
            for (arm, metric, target), rows in ordered.groupby(["arm", "metric", "target"])
        }

    def __contains__(self, key: tuple[str, str, str]) -> bool:
        return key in self._values

    def __getitem__(self, key: tuple[str, str, str]) -> Floats:
        return self._values[key]

    def targets(self) -> list[str]:
        """Names of the targets."""
        return sorted({target for _, _, target in self._values})

    def summaries(self, metrics: Sequence[str]) -> Metrics:
        """`<arm>.<metric>.<target>` with intervals over seeds, for these metrics of every arm."""
        found: Metrics = {}
        for (arm, metric, target), values in self._values.items():
            if metric in metrics:
                found |= summarise(f"{arm}.{metric}.{target}", values)
        return found

    def difference(self, arm: str, other: str, metric: str, target: str) -> Metrics:
        """The paired difference that `better_than` reads; nothing where one of the two was not measured."""
        if (arm, metric, target) not in self or (other, metric, target) not in self:
            return {}
        return paired(f"{arm}.{metric}.{target}-{other}.{metric}.{target}", self[arm, metric, target], self[other, metric, target])

    def gain(self, arm: str, other: str, metric: str, target: str, name: str) -> Metrics:
        """The paired difference under the name `<arm>.<name>.<target>`, for thresholds other than 0."""
        if (arm, metric, target) not in self or (other, metric, target) not in self:
            return {}
        return paired(f"{arm}.{name}.{target}", self[arm, metric, target], self[other, metric, target])

    def ratio(self, arm: str, other: str, metric: str, target: str, name: str) -> Metrics:
        """Value over value, seed by seed, under the name `<arm>.<name>.<target>`."""
        if (arm, metric, target) not in self or (other, metric, target) not in self:
            return {}
        return summarise(f"{arm}.{name}.{target}", self[arm, metric, target] / self[other, metric, target])
