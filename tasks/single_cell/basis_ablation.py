"""Train stage of the basis: other numbers of components, and components of the target instead of the reference's.

Each needs a prior of its own, which is why it is no part of the sweeps. Arms `basis_<number>` and `basis_target`, beside each its PCA
(`pca_basis_<number>`), all at one rho in units of their latents' scale.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from pydantic import Field

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.single_cell.cohort_files import Case, cases, read_cohort
from tasks.single_cell.prior_training import PriorParams, fit_reference
from tasks.single_cell.scoring import Scores, score, table_of
from tasks.single_cell.split_gibbs import GaussianLikelihood, GibbsParams, run_chains


class BasisParams(Params):
    """What is tried.

    Attributes:
        targets: which targets.
        components: numbers of components.
        seeds: how many seeds, from 0.
        relative: rho in units of the latents' scale.
        prior: how priors are fitted.
        gibbs: the chains; their rho is replaced.
    """

    targets: tuple[str, ...] = ("setup1",)
    components: tuple[int, ...] = (5, 10, 25)
    seeds: int = Field(3, ge=1)
    relative: float = Field(1.2, gt=0)
    prior: PriorParams = PriorParams()
    gibbs: GibbsParams = GibbsParams()


class _Item(NamedTuple):
    case: Case
    components: int
    params: BasisParams


def train(params: BasisParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Fit and run every basis; components 0 stand for the target's own basis."""
    chosen = [case for case in cases(inputs, params.targets) if case.seed < params.seeds]
    items = [_Item(case, k, params) for k in (*params.components, 0) for case in chosen]
    found = list(log.progress(map_parallel(_run, items), total=len(items), desc="bases"))
    table = pd.concat(found, ignore_index=True)
    write_parquet(out / "scores.parquet", table)
    return Scores(table).summaries(("silhouette", "clisi", "rmse"))


def _run(item: _Item) -> pd.DataFrame:
    p = item.params
    reference, target = read_cohort(item.case.reference_file), read_cohort(item.case.target_file)
    own = item.components == 0
    fitted, _ = fit_reference(reference, p.prior, item.case.seed, item.components or None, target if own else None)
    likelihood = GaussianLikelihood(
        fitted.standardise(target), fitted.space.loadings, fitted.space.noise("identity"), device=p.prior.device
    )
    rho = p.relative * fitted.space.scale
    draws = run_chains(likelihood, fitted.prior, p.gibbs.at(rho), torch.Generator().manual_seed(item.case.seed))
    name = "target" if own else str(item.components)
    pca = fitted.space.project(target.values[:, fitted.columns])
    arms = {f"basis_{name}": draws.mean, f"pca_basis_{name}": pca}
    return table_of({arm: score(u, fitted, target) for arm, u in arms.items()}, item.case.target, item.case.seed)
