"""How many random regressors are enough: the error against k, and the smallest sufficient k against the dimension."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from pydantic import Field

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.distillation.quadratic import coordinate_regressors, distil, gaussian_regressors, spectral_error, threshold
from tasks.distillation.regression_data import read_table, split_table
from tasks.distillation.subsets import random_rows

LAWS = {"gaussian": gaussian_regressors, "coordinate": coordinate_regressors}
OFFSETS = (-10, -5, 0, 5, 10, 20)
SHARES = (0.05, 0.2, 0.4, 0.6, 0.8)


class ThresholdParams(Params):
    """Sweeps over the number of regressors.

    Attributes:
        tables: swept at all their columns.
        law_table: whose columns are thinned out for the law in q.
        coordinates: numbers q of columns, target included, for the law.
        size: synthetic rows m of the sweeps over k.
        law_size: synthetic rows m for the law in q, at least its largest q.
        seeds: repetitions.
        tolerance: spectral error that counts as exact.
    """

    tables: tuple[str, ...] = Field(("boston", "concrete", "diabetes"), min_length=1)
    law_table: str = "boston"
    coordinates: tuple[int, ...] = Field((4, 6, 8, 10, 12, 14), min_length=2)
    size: int = Field(100, ge=1)
    law_size: int = Field(30, ge=1)
    seeds: int = Field(5, ge=1)
    seed: int = Field(0, ge=0)
    tolerance: float = Field(1e-3, gt=0)


Job = tuple[str, str, int, int, np.ndarray, ThresholdParams]


def train(params: ThresholdParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `sweep.parquet` (table, law, seed, k, threshold, spectral_error), `law.parquet` (q, seed, k_star) and `sizes.parquet`.

    Metrics: `<law>.spectral_ratio.<table>`, the error at threshold + 10 divided by that at threshold - 10; `gaussian.slope.<table>`,
    the slope of log k* against log q; `gaussian.k_star.q<q>`; `{enough_rows,too_few_rows}.spectral_error.<table>`, with as many
    synthetic rows as coordinates and one fewer, k above the threshold.
    """
    import pandas as pd

    tables = {name: read_table(inputs["prepare-tables"], name) for name in {*params.tables, params.law_table}}
    jobs: list[Job] = [("sweep", t, s, 0, tables[t], params) for t in params.tables for s in range(params.seeds)]
    law = tables[params.law_table]
    jobs += [("law", params.law_table, s, q, law, params) for q in params.coordinates for s in range(params.seeds)]
    records = [r for part in log.progress(map_parallel(_work, jobs), total=len(jobs), desc="sweeps") for r in part]
    sweep = pd.DataFrame([r for r in records if "spectral_error" in r])
    stars = pd.DataFrame([r for r in records if "k_star" in r])
    sizes = pd.DataFrame([r for r in records if "row_error" in r])
    write_parquet(out / "sweep.parquet", sweep)
    write_parquet(out / "law.parquet", stars)
    write_parquet(out / "sizes.parquet", sizes)
    metrics: Metrics = {}
    for (table, name), group in sweep.groupby(["table", "law"]):
        at = {offset: group[group.k == group.threshold + offset].sort_values("seed").spectral_error.to_numpy() for offset in (-10, 10)}
        metrics |= summarise(f"{name}.spectral_ratio.{table}", at[10] / at[-10])
    for (table, arm), group in sizes.groupby(["table", "arm"]):
        metrics |= summarise(f"{arm}.spectral_error.{table}", group.row_error)
    slopes = [float(np.polyfit(np.log(g.q), np.log(g.k_star), 1)[0]) for _, g in stars.groupby("seed")]
    metrics |= summarise(f"gaussian.slope.{params.law_table}", slopes)
    for q, group in stars.groupby("q"):
        metrics |= summarise(f"gaussian.k_star.q{q}", group.k_star)
    return metrics


def smallest_sufficient(train_rows: np.ndarray, start: np.ndarray, rng: np.random.Generator, tolerance: float) -> int:
    """The smallest k whose distilled set has a spectral error below `tolerance`, by bisection up to twice the threshold.

    All k share one draw of regressors, of which the first k are used, so that more of them can only add equations.

    Args:
        train_rows: (n, q).
        start: first synthetic rows, (m, q) with m >= q.
        rng: draws the regressors.
        tolerance: spectral error, > 0.

    Raises:
        ValueError: if even twice the threshold is not enough, as with m < q.

    Example:
        >>> rows = np.random.default_rng(0).standard_normal((50, 2))
        >>> smallest_sufficient(rows, rows[:4], np.random.default_rng(1), 1e-3)
        3
    """
    q = train_rows.shape[1]
    few, enough = 0, 2 * threshold(q)
    regressors = gaussian_regressors(enough, q, rng)

    def exact(k: int) -> bool:
        return spectral_error(distil(train_rows, start, regressors[:k]).rows, train_rows) < tolerance

    if not exact(enough):
        raise ValueError(f"{enough} regressors do not reach {tolerance} with {len(start)} rows in {q} dimensions; use at least q rows")
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if exact(middle) else (middle, enough)
    return enough


def _work(job: Job) -> list[dict[str, object]]:
    kind, table, seed, q, rows, params = job
    rng = np.random.default_rng([params.seed, seed, q])
    if kind == "law":
        columns = np.append(rng.permutation(rows.shape[1] - 1)[: q - 1], rows.shape[1] - 1)
        train_rows, _ = split_table(rows[:, columns], params.seed + seed)
        start = train_rows[random_rows(len(train_rows), params.law_size, rng)]
        return [{"q": q, "seed": seed, "k_star": smallest_sufficient(train_rows, start, rng, params.tolerance)}]
    train_rows, _ = split_table(rows, params.seed + seed)
    limit = threshold(rows.shape[1])
    start = train_rows[random_rows(len(train_rows), params.size, rng)]
    ks = sorted({max(1, round(share * limit)) for share in SHARES} | {limit + offset for offset in OFFSETS})
    records: list[dict[str, object]] = []
    for law, draw in LAWS.items():
        regressors = draw(max(ks), rows.shape[1], rng)
        for k in ks if law == "gaussian" else (limit - 10, limit + 10):
            error = spectral_error(distil(train_rows, start, regressors[:k]).rows, train_rows)
            records.append({"table": table, "law": law, "seed": seed, "k": k, "threshold": limit, "spectral_error": error})
    q = rows.shape[1]
    regressors = gaussian_regressors(limit + 10, q, rng)
    for arm, size in (("enough_rows", q), ("too_few_rows", q - 1)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            error = spectral_error(distil(train_rows, start[:size], regressors).rows, train_rows)
        records.append({"table": table, "arm": arm, "seed": seed, "row_error": error})
    return records
