"""Evaluate stage of the sampler: DICE on every target, and the same chains with other priors.

Arms are named after the prior: `dice` (diffusion), `wiener_sampled` (Gaussian), `gmm_sampled` (a component per class), and as controls
`gaussian_trained` (diffusion prior of Gaussian vectors), `isotropic` (N(0, s^2 I)) and `flat` (no prior). Alone a name means the chosen
rho; `<arm>_published` uses the published chains, `repeats_<R>` the last draws of R of them, `single` one draw. `scores.parquet` has a
row per arm, metric, target and seed, `embeddings.parquet` a row per cell of the main arms, `spread.parquet` what the draws of `dice`
say about each cell, `path.parquet` cells between two classes, `exact.parquet`
chain averages beside closed forms.
"""

from __future__ import annotations

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
from tasks.single_cell.priors import FlatPrior, Prior, gaussian_prior, isotropic_prior, mixture_prior
from tasks.single_cell.scoring import Clusterings, cells_of, score, table_of
from tasks.single_cell.split_gibbs import Draws, GaussianLikelihood, GibbsParams, run_chains
from tasks.single_cell.uncertainty import class_centroids, confidence_sets, label_entropy, soft_labels, spread

Floats = NDArray[np.float64]

KEPT_ARMS = ("dice", "dice_published")
PATH_POINTS = 21
"""Artificial cells on the line between two class means."""


class DiceEvaluationParams(Params):
    """Settings of the chains.

    Attributes:
        gibbs: the chains at the chosen rho, which replaces theirs.
        published: published chains of simulated targets.
        published_counts: those of targets of counts: they end at a small rho, so that only last draws are kept.
        n_sub: levels of the reverse chain.
        alpha: of the confidence sets.
        path: simulated target whose two classes get cells in between.
        device: where chains run.
    """

    gibbs: GibbsParams = GibbsParams()
    published: GibbsParams = GibbsParams(rho_start=5, rho_end=5, iterations=6, burn_in=2, repeats=10)
    published_counts: GibbsParams = GibbsParams(rho_start=5, rho_end=0.5, schedule="linear", iterations=20, burn_in=19, repeats=10)
    n_sub: int = Field(16, ge=1)
    alpha: float = Field(0.1, gt=0, lt=1)
    path: str = "setup1"
    device: str = "cpu"


class _Item(NamedTuple):
    case: Case
    fitted: Path
    rho: float
    params: DiceEvaluationParams


class _Found(NamedTuple):
    scores: pd.DataFrame
    embeddings: pd.DataFrame
    spread: pd.DataFrame
    path: pd.DataFrame
    exact: pd.DataFrame


def evaluate(params: DiceEvaluationParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Run all chains and score them; reports what the paper's page says about labels, the rest is for the last stage."""
    chosen = read_json(inputs.file("train-rho", "chosen.json"))["rho"]
    items = [_Item(case, inputs["warmstart"], chosen[case.target][case.seed], params) for case in cases(inputs)]
    workers = 1 if params.device != "cpu" else None
    found = list(log.progress(map_parallel(_evaluate, items, workers=workers), total=len(items), desc="chains"))
    names = _Found._fields
    tables = dict(zip(names, (pd.concat(parts, ignore_index=True) for parts in zip(*found, strict=True)), strict=True))
    for name in names:
        write_parquet(out / f"{name}.parquet", tables[name])
    metrics: Metrics = {}
    path = tables["path"]
    for arm, column in (("dice", "entropy"), ("single", "entropy_single")):
        if len(path):
            ends, middle = path[path["share"].isin((0.0, 1.0))], path[path["share"] == 0.5]
            metrics |= summarise(f"{arm}.entropy_mode_nats.{params.path}", ends.groupby("seed")[column].mean())
            metrics |= summarise(f"{arm}.entropy_midpoint_nats.{params.path}", middle.groupby("seed")[column].mean())
    cells = tables["spread"]
    for target, rows in cells.groupby("target"):
        by_seed = rows.groupby("seed")
        metrics |= summarise(f"dice.set_size.{target}", by_seed["set_size"].mean())
        metrics |= summarise(f"dice.set_coverage.{target}", by_seed["in_set"].mean())
        metrics |= summarise(f"dice.label_accuracy.{target}", by_seed["correct"].mean())
    return metrics


def priors_of(fitted: Fitted, seed: int) -> dict[str, Prior]:
    """All priors that run inside the same chains, by arm."""
    priors: dict[str, Prior] = {
        "dice": fitted.prior,
        "wiener_sampled": gaussian_prior(fitted.latents),
        "gmm_sampled": mixture_prior(fitted.latents, len(set(fitted.labels.tolist())), seed),
        "isotropic": isotropic_prior(fitted.latents),
        "flat": FlatPrior(),
    }
    return priors


def runs_of(fitted: Fitted, item: _Item, counts: bool) -> list[tuple[str, Prior, GibbsParams]]:
    """All runs of one target: (arm, prior, chains)."""
    p, priors = item.params, priors_of(fitted, item.case.seed)
    runs = [(arm, prior, p.gibbs.at(item.rho)) for arm, prior in priors.items()]
    if counts:
        return [*runs, ("dice_published", fitted.prior, p.published_counts)]
    runs += [(f"{arm}_published", priors[arm], p.published) for arm in ("dice", "wiener_sampled", "isotropic")]
    if fitted.control is not None and item.case.target == p.path:
        runs.append(("gaussian_trained_published", fitted.control, p.published))
    return runs


def _evaluate(item: _Item) -> _Found:
    p = item.params
    fitted = read_fitted(item.fitted, item.case.family, item.case.seed, p.device, p.n_sub)
    target = read_cohort(item.case.target_file)
    z = fitted.standardise(target)
    likelihood = GaussianLikelihood(z, fitted.space.loadings, fitted.space.noise("identity"), device=p.device)
    counts = target.counts is not None
    embeddings: dict[str, Floats] = {}
    draws: dict[str, Draws] = {}
    for arm, prior, settings in runs_of(fitted, item, counts):
        found = run_chains(likelihood, prior, settings, torch.Generator().manual_seed(item.case.seed))
        embeddings[arm] = found.mean
        if arm in KEPT_ARMS:
            draws[arm] = found
    embeddings |= {"single": draws["dice"].last[0].astype(float)} | _few_draws(draws["dice_published"])
    clustered: dict[str, Clusterings] = dict.fromkeys(("dice", "dice_published", "isotropic"), "all") if counts else {"dice": "kmeans"}
    scores = {arm: score(u, fitted, target, clustered.get(arm, "none")) for arm, u in embeddings.items()}
    kept = pd.concat(
        [cells_of(embeddings[arm], target.labels).assign(arm=arm, target=item.case.target, seed=item.case.seed) for arm in KEPT_ARMS]
    )
    path, exact = pd.DataFrame(), pd.DataFrame()
    if item.case.target == p.path:
        path, exact = _path_between(fitted, item), _against_closed_forms(fitted, z, embeddings, item)
    return _Found(table_of(scores, item.case.target, item.case.seed), kept, _labels_of(draws["dice"], fitted, target, item), path, exact)


def _few_draws(draws: Draws) -> dict[str, Floats]:
    """Averages of the last draws of the first chains: the paper's R."""
    last = draws.last.astype(float)
    counts = [r for r in (1, 5, 10) if r <= len(last)]
    few = {f"repeats_{r}": last[:r].mean(axis=0) for r in counts}
    return few | ({"another_single": last[1]} if len(last) > 1 else {})


def _labels_of(draws: Draws, fitted: Fitted, target: Cells, item: _Item) -> pd.DataFrame:
    names, centroids = class_centroids(fitted.latents, fitted.labels)
    soft = soft_labels(draws.kept, centroids)
    sets = confidence_sets(soft, item.params.alpha)
    truth = np.array([names.index(label) if label in names else -1 for label in target.labels])
    rows = np.arange(len(truth))
    return pd.DataFrame(
        {
            "cell": rows,
            "spread": spread(draws.kept),
            "entropy": label_entropy(soft),
            "set_size": sets.sum(axis=1),
            "in_set": sets[rows, truth] & (truth >= 0),
            "correct": soft.argmax(axis=1) == truth,
            "label": target.labels,
            "target": item.case.target,
            "seed": item.case.seed,
        }
    )


def _against_closed_forms(fitted: Fitted, z: Floats, embeddings: dict[str, Floats], item: _Item) -> pd.DataFrame:
    """First latent of every cell: chain averages at the chosen rho beside exact posterior means under noise 1 + rho^2."""
    measured, noise = z @ fitted.space.loadings, 1 + item.rho**2
    mixture = mixture_prior(fitted.latents, len(set(fitted.labels.tolist())), item.case.seed)
    return pd.DataFrame(
        {
            "exact_gaussian": gaussian_prior(fitted.latents).posterior_mean(measured, noise)[:, 0],
            "exact_mixture": mixture.posterior_mean(measured, noise)[:, 0],
            **{arm: embeddings[arm][:, 0] for arm in ("wiener_sampled", "gmm_sampled", "dice")},
            "seed": item.case.seed,
        }
    )


def _path_between(fitted: Fitted, item: _Item) -> pd.DataFrame:
    """Cells without noise on the line between the means of the first two classes, and what the draws say about their label."""
    p = item.params
    _, centroids = class_centroids(fitted.latents, fitted.labels)
    share = np.linspace(0, 1, PATH_POINTS)
    between = (1 - share)[:, None] * centroids[0] + share[:, None] * centroids[1]
    likelihood = GaussianLikelihood(
        between @ fitted.space.loadings.T, fitted.space.loadings, fitted.space.noise("identity"), device=p.device
    )
    settings = p.gibbs.at(item.rho).model_copy(update={"repeats": 10})
    draws = run_chains(likelihood, fitted.prior, settings, torch.Generator().manual_seed(item.case.seed))
    soft = soft_labels(draws.kept, centroids[:2])
    return pd.DataFrame(
        {
            "share": share,
            "second": soft[:, 1],
            "entropy": label_entropy(soft),
            "entropy_single": label_entropy(soft_labels(draws.last[:1], centroids[:2])),
            "set_size": confidence_sets(soft, p.alpha).sum(axis=1),
            "seed": item.case.seed,
        }
    )
