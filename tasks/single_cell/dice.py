"""DICE for a person's own cells: fit on a reference, denoise a query, save and load.

The class binds scaler, basis, prior, choice of rho and chains; each is a module of its own. Expression is expected on a log scale;
`tasks.single_cell.preprocessing` brings counts there and matches genes by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from tasks.common.formats import read_json, write_json
from tasks.common.node import Params
from tasks.diffusion.noise_training import DenoiserParams
from tasks.single_cell.latent import LatentSpace, Sigma, fit_latent_space, write_arrays
from tasks.single_cell.priors import DiffusionPrior, fit_diffusion_prior
from tasks.single_cell.rho_selection import best_rho, hold_out, score_rho, thinning_share, with_gaussian_noise
from tasks.single_cell.split_gibbs import GaussianLikelihood, GibbsParams, run_chains
from tasks.single_cell.uncertainty import class_centroids, confidence_sets, label_entropy, soft_labels, spread

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

Floats = NDArray[np.float64]


class DiceParams(Params):
    """Settings of DICE.

    Attributes:
        latents: components of the basis, k.
        clip: of z-scores.
        sigma: noise of the likelihood in standardised units: 1 for every gene (the paper), each gene's residual variance in the
            reference, or their mean.
        denoiser: the prior's network and training.
        gibbs: the chains; their rho is replaced by the one given or chosen, constant throughout.
        n_sub: levels of the reverse chain.
        held_out: share of the reference that chooses rho.
        chunk: query cells that run as one batch.
    """

    latents: int = Field(20, ge=1)
    clip: float = Field(10.0, gt=0)
    sigma: Sigma = "identity"
    denoiser: DenoiserParams = DenoiserParams(hidden=96, steps=1000)
    gibbs: GibbsParams = GibbsParams()
    n_sub: int = Field(16, ge=1)
    held_out: float = Field(0.1, gt=0, lt=1)
    chunk: int = Field(4096, ge=1)


@dataclass(frozen=True)
class DiceResult:
    """What `Dice.transform` says about n query cells.

    Attributes:
        embedding: average of the draws (n, k).
        pca: V^T of the z-scores, the same basis without denoising (n, k).
        spread: trace of the covariance of a cell's draws (n,).
        rho: coupling that was used, data units.
        classes: names of the reference's classes; empty without labels.
        probabilities: share of draws nearest to each class centroid (n, C).
        sets: smallest sets of labels with 90 % of the draws, mask (n, C).
    """

    embedding: Floats
    pca: Floats
    spread: Floats
    rho: float
    classes: tuple[str, ...]
    probabilities: Floats
    sets: NDArray[np.bool_]

    @property
    def labels(self) -> list[str]:
        """The most frequent label of each cell's draws."""
        return [self.classes[i] for i in self.probabilities.argmax(axis=1)]

    @property
    def entropy(self) -> Floats:
        """Entropy of each cell's labels in nats (n,)."""
        return label_entropy(self.probabilities)


class Dice:
    """Clustering by denoising: a diffusion prior of a reference's latents inside a split Gibbs sampler.

    Args:
        params: settings.
        rho: coupling in data units, or None to choose it for each query on a held-out slice of the reference.
        seed: of everything.
        device: where the network is trained and run.

    >>> rng = np.random.default_rng(0)
    >>> reference = rng.standard_normal((80, 12)) + 3 * rng.integers(0, 2, (80, 1))
    >>> tiny = DiceParams(latents=2, denoiser=DenoiserParams(hidden=8, steps=20), gibbs=GibbsParams(iterations=12, burn_in=2))
    >>> dice = Dice(tiny, seed=0).fit(reference)
    >>> dice.transform(reference[:5]).embedding.shape
    (5, 2)
    """

    def __init__(self, params: DiceParams | None = None, *, rho: float | None = None, seed: int = 0, device: str = "cpu") -> None:
        if rho is not None and not rho > 0:
            raise ValueError(f"rho must be positive, got {rho}; leave it out to have it chosen")
        self.params, self.rho, self.seed, self.device = params or DiceParams(), rho, seed, device
        self.rho_table: pd.DataFrame | None = None
        """Errors behind the last choice of rho."""

    def fit(
        self,
        reference: AnnData | ArrayLike,
        labels: Sequence[str] | str | None = None,
        *,
        genes: Sequence[str] | None = None,
        after: Callable[[int, float], None] | None = None,
    ) -> Dice:
        """Fit scaler, basis and prior on reference cells, all but the slice that chooses rho.

        Args:
            reference: log-scale expression: AnnData, or an array (n, d).
            labels: one per cell, or the name of a column of `obs`; only for soft labels.
            genes: names of an array's columns; numbers by default.
            after: called with (step, loss) while the prior is trained.

        Raises:
            ValueError: for a missing label column (naming those present), or what `fit_latent_space` refuses.
        """
        values, names = _matrix(reference, genes)
        marks = _labels(reference, labels, len(values))
        held = hold_out(len(values), self.seed, self.params.held_out)
        self.space, self._kept = fit_latent_space(values[~held], names, self.params.latents, clip=self.params.clip, seed=self.seed)
        self._names = names
        latents = self.space.project(values[~held][:, self._kept])
        self.prior, self.losses = fit_diffusion_prior(latents, self.params.denoiser, self.seed, device=self.device, after=after)
        self.prior = self.prior.with_steps(self.params.n_sub)
        self._slice = np.asarray(values[held][:, self._kept], dtype=float)
        counts = _counts(reference, names)
        if counts is not None and not _made_from(values, counts):
            counts = None
        self._slice_counts = None if counts is None else np.asarray(counts[held], dtype=float)
        self._depth = None if counts is None else float(np.median(counts.sum(axis=1)))
        self.classes: tuple[str, ...] = ()
        self.centroids = np.zeros((0, self.space.k))
        if marks is not None:
            classes, self.centroids = class_centroids(latents, np.asarray(marks)[~held])
            self.classes = tuple(classes)
        return self

    @property
    def genes(self) -> tuple[str, ...]:
        """Names of all genes that `transform` expects as columns, those that do not vary in the reference included."""
        return tuple(self._names)

    def transform(self, query: AnnData | ArrayLike, *, after: Callable[[int], None] | None = None) -> DiceResult:
        """Denoise query cells, log-scale expression (n, d) in the columns of `genes`; AnnData is matched by name.

        Args:
            query: cells.
            after: called with the number of each finished sweep.

        Raises:
            RuntimeError: before `fit`.
            ValueError: for other genes, or values that are not finite.
        """
        import torch

        self._fitted()
        z = self.space.standardise(self._columns(query))
        if not np.isfinite(z).all():
            raise ValueError(f"query holds {int((~np.isfinite(z)).sum())} NaN or infinite values; remove them")
        rho = self.rho if self.rho is not None else self.choose_rho(query)
        settings = self.params.gibbs.at(rho)
        generator = torch.Generator().manual_seed(self.seed)
        embeddings, spreads, soft = [], [], []
        for start in range(0, len(z), self.params.chunk):
            likelihood = GaussianLikelihood(z[start : start + self.params.chunk], self.space.loadings, self.noise(), device=self.device)
            draws = run_chains(likelihood, self.prior, settings, generator, after)
            embeddings.append(draws.mean)
            spreads.append(spread(draws.kept))
            soft.append(soft_labels(draws.kept, self.centroids) if self.classes else np.zeros((len(draws.mean), 0)))
        probabilities = np.concatenate(soft)
        sets = confidence_sets(probabilities, 0.1) if self.classes else np.zeros(probabilities.shape, dtype=bool)
        return DiceResult(
            np.concatenate(embeddings), z @ self.space.loadings, np.concatenate(spreads), rho, self.classes, probabilities, sets
        )

    def choose_rho(self, query: AnnData | ArrayLike) -> float:
        """The rho that best denoises the held-out reference slice at the query's noise; `rho_table` keeps the errors.

        With counts on both sides (layer `counts`, of which the reference's expression is log1p CP10K) the slice is thinned to the depth
        that the query has in the reference's genes, and judged by the error without the shift that all cells share. Otherwise it
        gets Gaussian noise.
        """
        self._fitted()
        cells = self._columns(query)
        clean = self.space.standardise(self._slice)
        rng = np.random.default_rng([self.seed, 91])
        copies = max(1, 200 // len(clean))
        counts = _counts(query, self._names)
        thinned = self._slice_counts is not None and counts is not None and bool(self._depth)
        if thinned:
            assert counts is not None
            noisy = [self._thinned(float(np.median(counts.sum(axis=1))), rng) for _ in range(copies)]
        else:
            variance = self.space.residual_variance(self.space.standardise(cells))
            noisy = [with_gaussian_noise(clean, variance, rng) for _ in range(copies)]
        self.rho_table = score_rho(self.space, self.prior, clean, noisy, self.noise(), self.params.gibbs, self.seed)
        return best_rho(self.rho_table, "rmse_centred" if thinned else "rmse")

    def noise(self) -> Floats:
        """Variance of the likelihood for each gene (d,), standardised units."""
        return self.space.noise(self.params.sigma)

    def save(self, folder: Path | str) -> None:
        """Write everything to a folder: `scaler.npz`, `basis.npz`, `prior.safetensors`, `config.json`, `dice.json`, `slice.npz`."""
        self._fitted()
        path = Path(folder)
        self.space.save(path)
        self.prior.save(path)
        about = {
            "params": self.params.model_dump(),
            "rho": self.rho,
            "seed": self.seed,
            "classes": list(self.classes),
            "genes": list(self._names),
        }
        write_json(path / "dice.json", about | {"depth": self._depth})
        arrays = {"values": self._slice, "centroids": self.centroids, "kept": self._kept}
        if self._slice_counts is not None:
            arrays["counts"] = self._slice_counts
        write_arrays(path / "slice.npz", arrays)

    @classmethod
    def load(cls, folder: Path | str, *, device: str = "cpu") -> Dice:
        """What `save` wrote; transforms to the same numbers.

        Raises:
            FileNotFoundError: if the folder is not one that `save` wrote.
        """
        path = Path(folder)
        if not (path / "dice.json").is_file():
            raise FileNotFoundError(f"{path} holds no saved Dice (dice.json is missing); write one with Dice.save")
        about = read_json(path / "dice.json")
        dice = cls(DiceParams(**about["params"]), rho=about["rho"], seed=about["seed"], device=device)
        dice.space = LatentSpace.load(path)
        dice.prior = DiffusionPrior.load(path, n_sub=dice.params.n_sub).to(device)
        dice.classes, dice._names, dice._depth = tuple(about["classes"]), about["genes"], about["depth"]
        with np.load(path / "slice.npz") as arrays:
            dice._slice, dice.centroids, dice._kept = arrays["values"], arrays["centroids"], arrays["kept"]
            dice._slice_counts = arrays.get("counts", None)
        return dice

    def _thinned(self, depth: float, rng: np.random.Generator) -> Floats:
        from tasks.single_cell.pbmc import thin
        from tasks.single_cell.preprocessing import log_normalise

        assert self._slice_counts is not None
        assert self._depth is not None
        counts = thin(np.rint(self._slice_counts), thinning_share(self._depth, depth), rng)
        counts[counts.sum(axis=1) == 0] = self._slice_counts.mean(axis=0)  # a cell that lost everything stands at the mean
        return self.space.standardise(log_normalise(counts)[:, self._kept])

    def _columns(self, query: Any) -> Floats:
        values, names = _matrix(query, None)
        if hasattr(query, "obs"):
            place = {name: i for i, name in enumerate(names)}
            absent = [gene for gene in self._names if gene not in place]
            if absent:
                raise ValueError(
                    f"query lacks {len(absent)} of {len(self._names)} genes, for example {absent[0]!r}; use preprocessing.align_genes"
                )
            values = values[:, [place[gene] for gene in self._names]]
        if not len(values):
            raise ValueError("query has no cells")
        if values.shape[1] != len(self._names):
            raise ValueError(f"query must have the reference's {len(self._names)} genes, got {values.shape[1]} columns")
        return np.asarray(values[:, self._kept], dtype=float)

    def _fitted(self) -> None:
        if not hasattr(self, "space"):
            raise RuntimeError("this Dice is not fitted; call fit(reference) first")


def _matrix(cells: Any, genes: Sequence[str] | None) -> tuple[NDArray[Any], list[str]]:
    if hasattr(cells, "obs"):
        x = cells.X.toarray() if hasattr(cells.X, "toarray") else np.asarray(cells.X)
        return x, [str(name) for name in cells.var_names]
    x = np.asarray(cells)
    if x.ndim != 2:
        raise ValueError(f"cells must be a matrix (cells, genes), got shape {x.shape}")
    return x, [str(name) for name in (genes if genes is not None else range(x.shape[1]))]


def _counts(cells: Any, genes: Sequence[str]) -> NDArray[Any] | None:
    """Counts (n, d) in these genes, or None where there is no layer of them."""
    if not hasattr(cells, "layers") or "counts" not in cells.layers:
        return None
    counts = cells[:, list(genes)].layers["counts"]
    return np.asarray(counts.toarray() if hasattr(counts, "toarray") else counts)


def _made_from(values: NDArray[Any], counts: NDArray[Any]) -> bool:
    """Whether expression is log1p CP10K of these counts: thinned counts are brought to that scale, and must compare with it."""
    from tasks.single_cell.preprocessing import log_normalise

    filled = counts.sum(axis=1) > 0
    return bool(filled.any()) and np.allclose(values[filled], log_normalise(counts[filled]), rtol=1e-3, atol=1e-3)


def _labels(cells: Any, labels: Sequence[str] | str | None, count: int) -> NDArray[Any] | None:
    if labels is None:
        return None
    if isinstance(labels, str):
        columns = list(getattr(cells, "obs", ()))
        if labels not in columns:
            raise ValueError(f"reference has no label column {labels!r}; it has {', '.join(map(str, columns)) or 'none'}")
        labels = cells.obs[labels].astype(str).to_numpy()
    marks = np.asarray(labels).astype(str)
    if marks.shape != (count,):
        raise ValueError(f"need a label for each of {count} reference cells, got {marks.shape}")
    return marks
