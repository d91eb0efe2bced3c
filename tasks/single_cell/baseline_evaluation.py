"""Evaluate stage of the baselines: PCA, closed-form shrinkage, neighbour averages, low-rank and factor methods, and the oracle.

Every free setting is chosen on the same held-out, noised slice of the reference as rho, by the same error. All embeddings are in the
coordinates of the reference's basis, so that errors compare; NMF is scored in its own factors. `settings.parquet` has what was tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.common.parallel import map_parallel
from tasks.single_cell import alra, knn_smoothing, magic, nmf
from tasks.single_cell.cohort_files import Case, Cells, cases, read_cohort
from tasks.single_cell.held_out_slice import NoisedSlice, noised_slice
from tasks.single_cell.prior_training import Fitted, read_fitted
from tasks.single_cell.priors import gaussian_prior, mixture_prior
from tasks.single_cell.rho_selection import latent_rmse
from tasks.single_cell.scoring import Clusterings, cells_of, score, separation, table_of

Floats = NDArray[np.float64]

NOISES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Noise variances per latent that closed-form shrinkage may assume, standardised units."""
COMPONENTS = (2, 4, 8, 16)


class BaselineParams(Params):
    """Which baselines run.

    Attributes:
        scvi: latent sizes of scVI, for cohorts of counts; needs scvi-tools.
        device: accelerator of scVI.
    """

    scvi: tuple[int, ...] = ()
    device: str = "cpu"


class _Item(NamedTuple):
    case: Case
    fitted: Path
    params: BaselineParams


class Method(NamedTuple):
    """A baseline: settings to choose from, and what it makes of cells.

    Attributes:
        candidates: settings.
        denoise: (standardised cells (n, d), their expression (n, d) or None, **setting) -> latents (n, k).
    """

    candidates: tuple[dict[str, Any], ...]
    denoise: Callable[..., Floats]


def evaluate(params: BaselineParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Choose settings, embed and score every baseline on every target and seed."""
    items = [_Item(case, inputs["warmstart"], params) for case in cases(inputs)]
    found = list(log.progress(map_parallel(_evaluate, items), total=len(items), desc="baselines"))
    scores, settings, embeddings = (pd.concat(parts, ignore_index=True) for parts in zip(*found, strict=True))
    write_parquet(out / "scores.parquet", scores)
    write_parquet(out / "settings.parquet", settings)
    write_parquet(out / "embeddings.parquet", embeddings)
    return {"baselines.arms": float(scores["arm"].nunique())}


def methods(reference: Cells, fitted: Fitted, seed: int) -> dict[str, Method]:
    """All baselines with settings to choose from, fitted on the reference without its slice."""
    pool, loadings = fitted.latents, fitted.space.loadings
    gaussian = gaussian_prior(pool)
    mixtures = {c: mixture_prior(pool, c, seed) for c in COMPONENTS}

    def wiener(z: Floats, _: Floats | None, *, noise: float) -> Floats:
        return gaussian.posterior_mean(z @ loadings, noise)

    def mixture(z: Floats, _: Floats | None, *, components: int, noise: float) -> Floats:
        return mixtures[components].posterior_mean(z @ loadings, noise)

    def neighbours(z: Floats, _: Floats | None, *, k: int) -> Floats:
        return knn_smoothing.denoise(pool, z @ loadings, k=k)

    def walk(z: Floats, _: Floats | None, *, k: int, t: int) -> Floats:
        return magic.denoise(pool, z @ loadings, k=k, t=t)

    every = {
        "wiener": Method(tuple({"noise": noise} for noise in NOISES), wiener),
        "gmm": Method(tuple({"components": c, "noise": noise} for c, noise in product(COMPONENTS, NOISES)), mixture),
        "knn_smoothing": Method(tuple(c for c in knn_smoothing.CANDIDATES if c["k"] <= len(pool)), neighbours),
        "magic": Method(tuple(c for c in magic.CANDIDATES if c["k"] < len(pool)), walk),
    }
    if reference.counts is not None:
        expression = reference.values[~fitted.held][:, fitted.columns].astype(float)

        def low_rank(z: Floats, x: Floats | None, *, rank: int) -> Floats:
            return fitted.space.project(alra.denoise(expression, _given(x), rank=rank, seed=seed))

        most = min(expression.shape)
        every["alra"] = Method(tuple(c for c in alra.CANDIDATES if c["rank"] <= most), low_rank)
    return every


def choose(method: Method, rows: NoisedSlice) -> list[tuple[dict[str, Any], float]]:
    """Settings of a baseline with their error on the noised slice, best first; of equals the earlier."""
    tried = [(s, latent_rmse(method.denoise(rows.noisy, rows.expression, **s), rows.latents)) for s in method.candidates]
    return sorted(tried, key=lambda pair: pair[1])


def _evaluate(item: _Item) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    fitted = read_fitted(item.fitted, item.case.family, item.case.seed)
    reference, target = read_cohort(item.case.reference_file), read_cohort(item.case.target_file)
    rows = noised_slice(reference, fitted, target, item.case.seed)
    z = fitted.standardise(target)
    expression = target.values[:, fitted.columns].astype(float)
    embeddings: dict[str, Floats] = {"pca": z @ fitted.space.loadings}
    tried = []
    for arm, method in methods(reference, fitted, item.case.seed).items():
        ranked = choose(method, rows)
        tried += [(item.case.target, item.case.seed, arm, str(setting), error, rank == 0) for rank, (setting, error) in enumerate(ranked)]
        embeddings[arm] = method.denoise(z, expression, **ranked[0][0])
    if target.oracle is not None:
        embeddings["oracle"] = fitted.standardise(target, target.oracle) @ fitted.space.loadings
    clustered: Clusterings = "all" if target.counts is not None else "kmeans"
    plain = () if target.counts is not None else tuple(set(embeddings) - {"pca"})
    scores = {arm: score(u, fitted, target, "none" if arm in plain else clustered) for arm, u in embeddings.items()}
    scores |= {arm: separation(u, target, "all") for arm, u in _own_coordinates(item, reference, fitted, target, rows, tried)}
    columns = ["target", "seed", "arm", "setting", "rmse", "chosen"]
    frame = cells_of(embeddings["pca"], target.labels).assign(arm="pca", target=item.case.target, seed=item.case.seed)
    return table_of(scores, item.case.target, item.case.seed), pd.DataFrame(tried, columns=columns), frame


def _own_coordinates(
    item: _Item, reference: Cells, fitted: Fitted, target: Cells, rows: NoisedSlice, tried: list[Any]
) -> Iterator[tuple[str, Floats]]:
    """Embeddings that are no denoised latents: NMF's factors, scVI's latent means."""
    if reference.counts is None or target.counts is None:
        return
    expression = reference.values[~fitted.held][:, fitted.columns].astype(float)
    k = fitted.space.k
    ranked = []
    for setting in nmf.CANDIDATES:
        estimate = fitted.space.project(nmf.denoise(expression, _given(rows.expression), components=k, seed=item.case.seed, **setting))
        ranked.append((setting, latent_rmse(estimate, rows.latents)))
    ranked.sort(key=lambda pair: pair[1])
    tried += [(item.case.target, item.case.seed, "nmf", str(setting), error, rank == 0) for rank, (setting, error) in enumerate(ranked)]
    values = target.values[:, fitted.columns].astype(float)
    yield "nmf", nmf.factorise(expression, values, components=k, seed=item.case.seed, **ranked[0][0]).scores
    for latents in item.params.scvi:
        from tasks.single_cell import scvi_baseline

        sides = (reference.counts[~fitted.held][:, fitted.columns], target.counts[:, fitted.columns])
        yield f"scvi_{latents}", scvi_baseline.embed(*sides, latents=latents, seed=item.case.seed, device=item.params.device)


def _given(expression: Floats | None) -> Floats:
    if expression is None:
        raise ValueError("this baseline needs expression >= 0, and the slice has none; it runs for counts alone")
    return expression
