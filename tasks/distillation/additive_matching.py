"""Stage for additive predictors, where Bellman matching is exact: how the held-out loss falls with the number of predictors."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
from pydantic import Field

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.distillation.additive import additive_regressors, td_rows
from tasks.distillation.bellman import relative_loss_error
from tasks.distillation.bellman_warmstart import load_batch
from tasks.distillation.quadratic import distil, losses, regressor_products, threshold
from tasks.distillation.subsets import random_rows
from tasks.offline_rl.environments import control_task

ARMS = ("additive_few", "additive_rank", "additive_enough")


class AdditiveParams(Params):
    """Sweep over the number of additive predictors.

    Attributes:
        environments: names of `tasks.offline_rl.environments`.
        seeds: data sets per environment.
        size: synthetic rows xi, at least the largest q.
        heldout: fresh predictors to judge by.
        seed: of everything random.
    """

    environments: tuple[str, ...] = Field(("cartpole", "acrobot", "mountaincar"), min_length=1)
    seeds: int = Field(5, ge=1)
    size: int = Field(40, ge=1)
    heldout: int = Field(400, ge=1)
    seed: int = Field(0, ge=0)


def train(params: AdditiveParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `additive.parquet` (environment, seed, arm, k, rank, heldout_loss_error).

    Arms: `additive_few` (half the rank of the products), `additive_rank` (the rank + 10), `additive_enough`
    (q (q + 1) / 2 + 10). Metrics: `<arm>.heldout_loss_error.<env>`, `rank.<env>`, `threshold.<env>`.
    """
    import pandas as pd

    jobs = [(params, inputs["prepare-transitions"], e, s) for e in params.environments for s in range(params.seeds)]
    done = [r for part in log.progress(map_parallel(_sweep, jobs), total=len(jobs), desc="additive") for r in part]
    frame = pd.DataFrame(done)
    write_parquet(out / "additive.parquet", frame)
    metrics: Metrics = {}
    for (environment, arm), group in frame.groupby(["environment", "arm"]):
        metrics |= summarise(f"{arm}.heldout_loss_error.{environment}", group.heldout_loss_error)
        metrics[f"rank.{environment}"] = float(group["rank"].iloc[0])
        metrics[f"threshold.{environment}"] = float(group.threshold.iloc[0])
    return metrics


def _sweep(job: tuple[AdditiveParams, Path, str, int]) -> list[dict[str, object]]:
    params, folder, environment, seed = job
    batch, _ = load_batch(folder, environment, seed)
    task = control_task(environment)
    rng = np.random.default_rng([params.seed, zlib.crc32(environment.encode()), seed, 2])
    n_actions = int(task.make().action_space.n)
    rows = td_rows(batch, n_actions)
    limit = threshold(rows.shape[1])
    scale = 1.0 / float(np.sqrt(np.mean(batch.reward**2)))

    def draw(k: int) -> np.ndarray:
        return additive_regressors(k, batch.obs.shape[1], n_actions, task.gamma, scale, rng)

    regressors, heldout = draw(limit + 10), draw(params.heldout)
    rank = int(np.linalg.matrix_rank(regressor_products(draw(3 * limit))))
    targets = losses(rows, heldout)
    start = rows[random_rows(len(rows), params.size, rng)]
    records: list[dict[str, object]] = []
    for arm, k in zip(ARMS, (rank // 2, rank + 10, limit + 10), strict=True):
        found = distil(rows, start, regressors[:k])
        error = relative_loss_error(losses(found.rows, heldout), targets)
        records.append(
            {"environment": environment, "seed": seed, "arm": arm, "k": k, "rank": rank, "threshold": limit, "heldout_loss_error": error}
        )
    return records
