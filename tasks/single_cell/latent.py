"""The latent space of a reference: per-gene scaling and principal components, both applied unchanged to every other cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.common.formats import write_atomically

Floats = NDArray[np.float64]

Sigma = Literal["identity", "gene", "scalar"]

LEAST_VARIANCE = 1e-3
"""Floor of the residual variance of a standardised gene: a gene that the basis explains fully must not get infinite weight."""


@dataclass(frozen=True)
class LatentSpace:
    """Scaler and basis, with d genes and k components.

    Attributes:
        genes: names of the genes that vary in the reference (d,); others were dropped.
        mean: of each gene in the reference (d,).
        std: its standard deviation (d,).
        loadings: V with orthonormal columns (d, k).
        explained: variance along each component in the reference (k,).
        residual: variance of each standardised gene that the basis leaves in the reference (d,), at least `LEAST_VARIANCE`.
        scale: s, root mean square of the reference's latents: the one number that brings them to unit scale.
        clip: largest absolute value of a standardised entry.
    """

    genes: tuple[str, ...]
    mean: Floats
    std: Floats
    loadings: Floats
    explained: Floats
    residual: Floats
    scale: float
    clip: float

    @property
    def k(self) -> int:
        """Number of components."""
        return int(self.loadings.shape[1])

    def standardise(self, values: ArrayLike) -> Floats:
        """Cells (n, d) in the space's genes, as z-scores of the reference, clipped."""
        x = np.asarray(values, dtype=float)
        if x.ndim != 2 or x.shape[1] != len(self.genes):
            raise ValueError(
                f"cells must have the space's {len(self.genes)} genes as columns, got shape {x.shape}; align them by name first"
            )
        return np.clip((x - self.mean) / self.std, -self.clip, self.clip)

    def project(self, values: ArrayLike) -> Floats:
        """Latents (n, k) of cells (n, d): V^T of the z-scores, the embedding that PCA gives."""
        return np.asarray(self.standardise(values) @ self.loadings)

    def residual_variance(self, standardised: Floats) -> Floats:
        """Mean square that the basis leaves of each standardised gene (d,), corrected for the share k/d that fitting noise takes away."""
        left = standardised - (standardised @ self.loadings) @ self.loadings.T
        freedom = 1 - np.square(self.loadings).sum(axis=1)
        return np.asarray(np.square(left).mean(axis=0) / np.maximum(freedom, LEAST_VARIANCE))

    def noise(self, sigma: Sigma) -> Floats:
        """Variances of a likelihood per gene (d,): ones (the paper), each gene's residual variance in the reference, or their mean."""
        if sigma == "gene":
            return self.residual
        return np.full(len(self.genes), float(self.residual.mean()) if sigma == "scalar" else 1.0)

    def with_basis_of(self, values: ArrayLike, seed: int = 0) -> LatentSpace:
        """The same scaler with the principal components of other cells (n, d)."""
        z = self.standardise(values)
        loadings, explained = _principal_components(z, self.k, seed)
        return _finished(replace(self, loadings=loadings, explained=explained), z)

    def save(self, folder: Path) -> None:
        """Write `scaler.npz` and `basis.npz`."""
        scaler = {"genes": np.array(self.genes, dtype=np.str_), "mean": self.mean, "std": self.std, "clip": np.array(self.clip)}
        names = ("loadings", "explained", "residual")
        basis = {name: getattr(self, name) for name in names} | {"scale": np.array(self.scale)}
        write_arrays(folder / "scaler.npz", scaler)
        write_arrays(folder / "basis.npz", basis)

    @classmethod
    def load(cls, folder: Path) -> LatentSpace:
        """What `save` wrote."""
        with np.load(folder / "scaler.npz") as scaler, np.load(folder / "basis.npz") as basis:
            return cls(
                tuple(scaler["genes"].tolist()),
                scaler["mean"],
                scaler["std"],
                basis["loadings"],
                basis["explained"],
                basis["residual"],
                float(basis["scale"]),
                float(scaler["clip"]),
            )


def fit_latent_space(
    values: ArrayLike, genes: Sequence[str], k: int, *, clip: float = 10.0, seed: int = 0
) -> tuple[LatentSpace, NDArray[np.bool_]]:
    """Fit scaler and basis on reference cells (n, d_all).

    Args:
        values: expression on the scale that will be clustered (log1p), finite.
        genes: names of the columns (d_all,), distinct.
        k: components.
        clip: of z-scores; heavy tails otherwise give a few huge latents.
        seed: of the eigensolver's start.

    Returns:
        The space, and the mask (d_all,) of genes that it kept: those that vary in the reference.

    Raises:
        ValueError: for values that are not a finite matrix, names that do not fit, or fewer cells or genes than k allows.

    >>> rng = np.random.default_rng(0)
    >>> space, kept = fit_latent_space(np.c_[rng.random((50, 6)), np.ones(50)], list("abcdefg"), k=2)
    >>> space.k, len(space.genes), kept.tolist()[-1]
    (2, 6, False)
    """
    x = np.asarray(values, dtype=float)
    if x.ndim != 2 or not np.isfinite(x).all():
        raise ValueError(f"reference must be a finite matrix (cells, genes), got shape {x.shape}; remove NaN and infinite values")
    if len(genes) != x.shape[1] or len(set(genes)) != len(genes):
        raise ValueError(f"need one distinct name for each of {x.shape[1]} genes, got {len(genes)} names, {len(set(genes))} distinct")
    if clip <= 0:
        raise ValueError(f"clip must be positive, got {clip}")
    std = x.std(axis=0)
    kept = std > 1e-12 * np.maximum(1.0, np.abs(x).max(axis=0))
    if not 1 <= k < min(x.shape[0], int(kept.sum())):
        raise ValueError(
            f"k must lie in 1..{min(x.shape[0], int(kept.sum())) - 1} for {x.shape[0]} cells and {int(kept.sum())} genes that vary, got {k}"
        )
    x = x[:, kept]
    mean = x.mean(axis=0)
    z = np.clip((x - mean) / std[kept], -clip, clip)
    loadings, explained = _principal_components(z, k, seed)
    names = tuple(str(name) for name, keep in zip(genes, kept, strict=True) if keep)
    space = LatentSpace(names, mean, std[kept], loadings, explained, np.ones(len(names)), 1.0, float(clip))
    return _finished(space, z), kept


def _finished(space: LatentSpace, standardised: Floats) -> LatentSpace:
    latents = standardised @ space.loadings
    residual = np.maximum(space.residual_variance(standardised), LEAST_VARIANCE)
    return replace(space, residual=residual, scale=float(np.sqrt(np.square(latents).mean())))


def _principal_components(z: Floats, k: int, seed: int) -> tuple[Floats, Floats]:
    """Leading right singular vectors of standardised cells (already centred), signs fixed by their largest entry; variances along them."""
    from scipy.sparse.linalg import svds

    start = np.random.default_rng(seed).standard_normal(min(z.shape))
    _, values, rows = svds(z, k=k, v0=start, solver="arpack")
    order = np.argsort(-values, kind="stable")
    vectors = rows[order].T  # (d, k)
    signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(k)])
    return vectors * signs, np.square(values[order]) / z.shape[0]


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write a small NPZ file under a temporary name first; arrays of objects are refused."""

    def write(target: Path) -> None:
        with target.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    write_atomically(path, write)
