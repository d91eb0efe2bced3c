"""Blood cells with ten expert labels that ship inside scanpy: 700 cells by 765 genes of Zheng et al. (2017), counts recovered.

The file holds log1p(CP10K) values and every cell's total count, so that the integer counts behind them can be recovered and
thinned to any sequencing depth. Nothing is downloaded; another file than the known one is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.common.assets import AssetMissing, check_digest

if TYPE_CHECKING:
    from anndata import AnnData

SHA256 = "e71d41e737c941559b7c57c9243bdb3d2c889c2adfdf00e3422ac6b46783676f"
INSTALL = "pip install --force-reinstall --no-deps scanpy"
LARGEST_RESIDUAL = 0.1
"""How far a recovered count may lie from a whole number; 0.08 is the largest in the file."""
FEWEST_CELLS = 15


def load_pbmc(path: Path | None = None) -> AnnData:
    """The packaged cells with X = layer `counts` = integer counts (sparse), obs `label`, types with few cells dropped.

    Args:
        path: another copy of the file; by default the one inside scanpy.

    Returns:
        AnnData of 679 cells by 765 genes, eight types.

    Raises:
        AssetMissing: if scanpy is absent or its file is missing or damaged.
        ValueError: if the counts cannot be recovered as whole numbers.

    Example:
        >>> cells = load_pbmc()
        >>> cells.shape, cells.obs["label"].nunique()
        ((679, 765), 8)
    """
    import warnings

    import anndata

    path = path or packaged_path()
    check_digest(path, SHA256, INSTALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the file has the layout of a much older anndata, and says so at length
        packed = anndata.read_h5ad(path)
    counts = recover_counts(packed.raw.X, packed.obs["n_counts"])
    label = packed.obs["bulk_labels"].astype(str)
    cells = anndata.AnnData(counts, obs=label.to_frame("label"), var=packed.raw.var[[]].copy())
    cells.layers["counts"] = cells.X.copy()
    return drop_rare(cells)


def packaged_path() -> Path:
    """Where scanpy keeps the file.

    Raises:
        AssetMissing: if scanpy is not installed.
    """
    spec = find_spec("scanpy")
    if spec is None or spec.origin is None:
        raise AssetMissing("scanpy", INSTALL)
    return Path(spec.origin).parent / "datasets" / "10x_pbmc68k_reduced.h5ad"


def recover_counts(log_values: Any, totals: ArrayLike) -> Any:
    """Integer counts behind log1p(1e4 * counts / total): round(expm1(x) * total / 1e4).

    Args:
        log_values: sparse matrix, (n, d).
        totals: all counts of each cell, genes outside the matrix included, (n,).

    Returns:
        CSR matrix of float32 whole numbers, (n, d), without stored zeros.

    Raises:
        ValueError: if a value is further than `LARGEST_RESIDUAL` from a whole number: the totals are not those of the values.

    Example:
        >>> from scipy.sparse import csr_matrix
        >>> logs = csr_matrix(np.log1p([[0.0, 30.0], [10.0, 0.0]]))
        >>> recover_counts(logs, [1000, 2000]).toarray().tolist()
        [[0.0, 3.0], [2.0, 0.0]]
    """
    from scipy.sparse import csr_matrix

    matrix = csr_matrix(log_values, dtype=float)
    scale = np.asarray(totals, dtype=float) / 1e4
    exact = np.expm1(matrix.data) * np.repeat(scale, np.diff(matrix.indptr))
    whole = np.rint(exact)
    residual = float(np.abs(exact - whole).max(initial=0.0))
    if residual > LARGEST_RESIDUAL:
        raise ValueError(
            f"counts cannot be recovered: a value lies {residual:.2f} from a whole number (at most {LARGEST_RESIDUAL}); "
            "totals must be the library sizes that the values were normalised with"
        )
    counts = csr_matrix((whole.astype(np.float32), matrix.indices, matrix.indptr), shape=matrix.shape)
    counts.eliminate_zeros()
    return counts


def drop_rare(cells: AnnData, column: str = "label", fewest: int = FEWEST_CELLS) -> AnnData:
    """Copy without the types of fewer than `fewest` cells.

    Raises:
        ValueError: if nothing is left.
    """
    numbers = cells.obs[column].value_counts()
    kept = cells.obs[column].isin(numbers.index[numbers >= fewest])
    if not kept.any():
        raise ValueError(f"no type in {column!r} has {fewest} cells (most: {int(numbers.max())}); lower the bound")
    return cells[kept.to_numpy()].copy()


@dataclass(frozen=True)
class Split:
    """Row numbers of reference and target cells, sorted, disjoint, together all cells."""

    reference: NDArray[np.int64]
    target: NDArray[np.int64]


def split(labels: ArrayLike, seed: int, reference_share: float = 0.6) -> Split:
    """Random split in which every type gives the same share of its cells (rounded) to the reference.

    Args:
        labels: type of each cell, (n,).
        seed: >= 0.
        reference_share: in (0, 1).

    Raises:
        ValueError: if the share is out of range, or a type is too small to be on both sides.

    Example:
        >>> parts = split(["a"] * 10 + ["b"] * 5, seed=0)
        >>> parts.reference.size, parts.target.size
        (9, 6)
    """
    if not 0.0 < reference_share < 1.0:
        raise ValueError(f"reference_share must lie in (0, 1), got {reference_share}")
    names = np.asarray(labels).astype(str)
    rng = np.random.default_rng([seed, 68])
    reference: list[NDArray[np.int64]] = []
    for name in np.unique(names):
        rows = rng.permutation(np.flatnonzero(names == name))
        taken = round(reference_share * rows.size)
        if not 0 < taken < rows.size:
            raise ValueError(f"type {str(name)!r} has {rows.size} cells, too few for both sides of a split at {reference_share}; drop it")
        reference.append(rows[:taken])
    chosen = np.sort(np.concatenate(reference))
    return Split(chosen, np.setdiff1d(np.arange(names.size), chosen))


def thin(counts: Any, share: float, rng: np.random.Generator) -> Any:
    """Sequence less deeply: keep every molecule with probability `share`, binomially.

    Args:
        counts: whole numbers >= 0, (n, d), dense or sparse.
        share: in (0, 1]; at 1 the counts come back as they are.
        rng: source of randomness.

    Returns:
        thinned counts of the same kind and type.

    Raises:
        ValueError: if `share` is out of range or the counts are not whole numbers >= 0.

    Example:
        >>> thin(np.array([[0, 8]]), 0.5, np.random.default_rng(0)).tolist()
        [[0, 5]]
    """
    if not 0.0 < share <= 1.0:
        raise ValueError(f"the share of counts to keep must lie in (0, 1], got {share}")
    sparse = counts.tocsr().copy() if hasattr(counts, "tocsr") else None
    values = np.asarray(counts) if sparse is None else sparse.data
    if not (np.isfinite(values).all() and (values >= 0).all() and (values == np.rint(values)).all()):
        raise ValueError("thinning needs whole counts >= 0; recover them first or give the layer 'counts'")
    kept = values.copy() if share == 1.0 else rng.binomial(values.astype(np.int64), share).astype(values.dtype)
    if sparse is None:
        return kept
    sparse.data = kept
    sparse.eliminate_zeros()
    return sparse
