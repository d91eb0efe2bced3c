"""Evaluate stage of the settings: rho, reverse variance, number of levels, noise model of the likelihood.

Arms: `rho_0p3` ... `rho_5p0` (units of the latents' scale s), and on simulated targets at the smallest rho `sigma_gene`, `sigma_scalar`,
`sigma_identity` (noise of the likelihood), `latent_chain` (a chain that sees V^T x alone), at the chosen rho `variance_analytic`,
`variance_forward`, `variance_posterior`, `levels_64`, and `student_t` (Langevin steps on a heavy-tailed likelihood).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pydantic import Field

from tasks.common.formats import read_json, write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.common.statistics import summarise
from tasks.single_cell.cohort_files import Case, Cells, cases, read_cohort
from tasks.single_cell.prior_training import Fitted, read_fitted
from tasks.single_cell.rho_selection import GRID
from tasks.single_cell.scoring import Clusterings, Scores, score, table_of, true_latents
from tasks.single_cell.split_gibbs import Draws, GaussianLikelihood, GibbsParams, StudentTLikelihood, run_chains
from tasks.single_cell.uncertainty import credible_intervals, spread

Floats = NDArray[np.float64]

FREEDOM = 3.0
"""Degrees of freedom of the heavy-tailed likelihood, those of the target's noise."""


class SweepParams(Params):
    """What is swept.

    Attributes:
        grid: values of rho, in units of the latents' scale, increasing.
        rho_targets: targets of the rho sweep.
        sigma_targets: targets on which likelihoods are compared.
        chain_targets: targets on which reverse chains are compared.
        student_targets: targets that are also denoised under Student-t noise.
        gibbs: the chains; their rho is replaced.
        n_sub: levels of the reverse chain.
        level: of the credible intervals.
        device: where chains run.
    """

    grid: tuple[float, ...] = Field(GRID, min_length=2)
    rho_targets: tuple[str, ...] = ("setup1", "pbmc_p100")
    sigma_targets: tuple[str, ...] = ("setup1", "setup5")
    chain_targets: tuple[str, ...] = ("setup1",)
    student_targets: tuple[str, ...] = ("setup3",)
    gibbs: GibbsParams = GibbsParams()
    n_sub: int = Field(16, ge=1)
    level: float = Field(0.9, gt=0, lt=1)
    device: str = "cpu"

    def targets(self) -> list[str]:
        """All targets that are needed."""
        return list(dict.fromkeys([*self.rho_targets, *self.sigma_targets, *self.chain_targets, *self.student_targets]))


class _Item(NamedTuple):
    case: Case
    fitted: Path
    rho: float
    params: SweepParams


def evaluate(params: SweepParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Run the sweeps; reports how spread grows with rho and how far input- and latent-space chains are apart."""
    chosen = read_json(inputs.file("train-rho", "chosen.json"))["rho"]
    items = [_Item(case, inputs["warmstart"], chosen[case.target][case.seed], params) for case in cases(inputs, params.targets())]
    prepared = {item.case.target for item in items}
    workers = 1 if params.device != "cpu" else None
    found = list(log.progress(map_parallel(_sweep, items, workers=workers), total=len(items), desc="sweeps"))
    table = pd.concat(found, ignore_index=True)
    write_parquet(out / "scores.parquet", table)
    scores = Scores(table)
    metrics: Metrics = {}
    for target in params.rho_targets:
        if target in prepared:
            medians = np.stack([scores[rho_arm(r), "spread_median", target] for r in params.grid])  # (grid, seeds)
            metrics |= summarise(f"dice.smallest_spread_growth.{target}", np.diff(medians, axis=0).min(axis=0))
            separated = np.stack([scores[rho_arm(r), "silhouette", target] for r in params.grid])
            metrics |= summarise(f"dice.oracle_rho_relative.{target}", np.array(params.grid)[separated.argmax(axis=0)])
    return metrics


def rho_arm(relative: float) -> str:
    """Name of the arm with this rho.

    >>> rho_arm(0.3)
    'rho_0p3'
    """
    return f"rho_{relative:.1f}".replace(".", "p")


def _sweep(item: _Item) -> pd.DataFrame:
    fitted = read_fitted(item.fitted, item.case.family, item.case.seed, item.params.device, item.params.n_sub)
    target = read_cohort(item.case.target_file)
    scores = dict(_arms(item, fitted, target))
    return table_of(scores, item.case.target, item.case.seed)


def _arms(item: _Item, fitted: Fitted, target: Cells) -> Iterator[tuple[str, dict[str, float]]]:
    p, loadings = item.params, fitted.space.loadings
    z = fitted.standardise(target)
    truth = true_latents(fitted, target)
    likelihood = GaussianLikelihood(z, loadings, fitted.space.noise("identity"), device=p.device)
    smallest = p.grid[0] * fitted.space.scale

    def chain(rho: float, of: object = likelihood, prior: object = fitted.prior) -> Draws:
        generator = torch.Generator().manual_seed(item.case.seed)
        return run_chains(of, prior, p.gibbs.at(rho), generator)  # type: ignore[arg-type]

    def scored(draws: Draws, clusterings: Clusterings = "none") -> dict[str, float]:
        found = score(draws.mean, fitted, target, clusterings)
        found["spread_median"] = float(np.median(spread(draws.kept)))
        if truth is not None and target.counts is None:  # the full-depth cells that stand for thinned ones have noise of their own
            lo, hi = credible_intervals(draws.kept, p.level)
            found["interval_coverage"] = float(((lo <= truth) & (truth <= hi)).mean())
        return found

    if item.case.target in p.rho_targets:
        for relative in p.grid:
            yield rho_arm(relative), scored(chain(relative * fitted.space.scale), "kmeans" if target.counts is not None else "none")
    if item.case.target in p.sigma_targets:
        draws: dict[str, Draws] = {}
        for sigma in ("identity", "scalar", "gene"):
            draws[sigma] = chain(smallest, GaussianLikelihood(z, loadings, fitted.space.noise(sigma), device=p.device))
            yield f"sigma_{sigma}", scored(draws[sigma])
        latent = chain(smallest, GaussianLikelihood(z @ loadings, np.eye(fitted.space.k), 1.0, device=p.device))
        gap = np.abs(latent.kept - draws["identity"].kept).max() / fitted.space.scale
        yield "latent_chain", {"largest_gap": float(gap)}
        weighted = np.abs(latent.kept - draws["gene"].kept).max() / fitted.space.scale
        yield "gene_chain", {"largest_gap": float(weighted)}
    if item.case.target in p.chain_targets:
        for variance in ("analytic", "forward", "posterior"):
            yield f"variance_{variance}", scored(chain(item.rho, prior=fitted.prior.with_steps(p.n_sub, variance)))
        yield "levels_64", scored(chain(item.rho, prior=fitted.prior.with_steps(64)))
    if item.case.target in p.student_targets:
        heavy = StudentTLikelihood(z, loadings, np.sqrt(fitted.space.residual), FREEDOM, device=p.device)
        yield "student_t", scored(chain(item.rho, heavy))
