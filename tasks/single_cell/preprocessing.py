"""From counts to the matrix that a model sees: checks, log-normalisation, presence filter, genes matched by name.

Functions take and return AnnData objects. A sparse matrix stays sparse until `align_genes` lays out the genes that are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from anndata import AnnData

CELL_TOTAL = 1e4
"""Counts per cell after normalisation (CP10K)."""

LARGEST_LOG = 15.0
"""No log1p of counts per ten thousand exceeds log1p(1e4) = 9.3; per million it is 13.8. Larger values are counts."""

MISSING_SHARE = 0.2
"""Share of the reference's genes that a query may lack."""


def values_of(matrix: Any) -> NDArray[Any]:
    """The stored numbers of a dense or sparse matrix, flat; zeros that a sparse matrix does not store are left out."""
    return np.asarray(matrix.data if hasattr(matrix, "tocsr") else matrix).reshape(-1)


def check_cells(data: AnnData, name: str = "data") -> None:
    """Refuse an expression object that cannot be analysed.

    Raises:
        ValueError: for no cells or genes, duplicate cell or gene names, NaN, infinite or negative values, naming examples.
    """
    if data.n_obs == 0 or data.n_vars == 0:
        raise ValueError(f"{name} has {data.n_obs} cells and {data.n_vars} genes; need at least one of each")
    _check_unique(data.obs_names, f"{name}: duplicate cell names", "call obs_names_make_unique() or drop the copies")
    _check_unique(data.var_names, f"{name}: duplicate gene names", "call var_names_make_unique(), or sum the copies")
    check_values(data.X, data.var_names, name)


def check_values(matrix: Any, genes: Sequence[str], name: str = "data") -> None:
    """Refuse a matrix (n, d) with NaN, infinite or negative entries.

    Raises:
        ValueError: naming the number of bad entries and a gene that has them.
    """
    if matrix is None:
        raise ValueError(f"{name} has no expression matrix X; store the counts there or in the layer 'counts'")
    values = values_of(matrix)
    if not np.issubdtype(values.dtype, np.number) and values.dtype != np.bool_:
        raise ValueError(f"{name} must hold numbers, got {values.dtype}")
    for what, bad in (("NaN or infinite", ~np.isfinite(values)), ("negative", values < 0)):
        if bad.any():
            gene = genes[int(_columns(matrix)[np.flatnonzero(bad)[0]])]
            raise ValueError(
                f"{name}: {int(bad.sum())} {what} values, for example in gene {gene!r} ({values[bad][0]}); give raw counts or log1p values"
            )


def _columns(matrix: Any) -> NDArray[np.int64]:
    """Column of every entry of `values_of`."""
    if hasattr(matrix, "tocsr"):
        coordinates = matrix.tocoo()
        return np.asarray(coordinates.col, dtype=np.int64)
    return np.tile(np.arange(matrix.shape[1]), matrix.shape[0])


def _check_unique(names: Any, what: str, advice: str) -> None:
    duplicates = names[names.duplicated()].unique()
    if len(duplicates):
        raise ValueError(f"{what}: {len(duplicates)}, for example {str(duplicates[0])!r}; {advice}")


def looks_like_counts(matrix: Any) -> bool:
    """Whether a matrix holds raw counts: whole numbers, or values too large for a logarithm of normalised counts.

    A matrix of zeros and ones says yes: as counts it is possible, as logarithms it is not.

    Example:
        >>> looks_like_counts(np.array([[0, 3], [1, 0]])), looks_like_counts(np.log1p([[0.0, 3.0], [1.0, 0.0]]))
        (True, False)
    """
    values = _nonzero(matrix)
    if values.size == 0:
        return True
    return bool((values == np.rint(values)).mean() > 0.95 or values.max() > LARGEST_LOG)


def _nonzero(matrix: Any) -> NDArray[Any]:
    values = values_of(matrix)
    return np.asarray(values[values != 0])


def check_kind(matrix: Any, kind: str, name: str = "data") -> str:
    """What a matrix holds: `raw` counts or `log` values.

    Args:
        matrix: expression, (n, d).
        kind: `raw` or `log` as said by its owner, or `auto`.
        name: for messages.

    Returns:
        `raw` or `log`.

    Raises:
        ValueError: if the values contradict `kind`, or `kind` is none of the three.

    Example:
        >>> check_kind(np.array([[0, 7], [2, 1]]), "auto")
        'raw'
    """
    if kind not in {"auto", "raw", "log"}:
        raise ValueError(f"counts must be auto, raw or log, got {kind!r}")
    found = "raw" if looks_like_counts(matrix) else "log"
    if kind not in {"auto", found}:
        values = _nonzero(matrix)
        top, whole = (values.max(), (values == np.rint(values)).mean()) if values.size else (0, 1)
        meaning = {"raw": "raw counts", "log": "log-normalised values"}
        raise ValueError(
            f"{name} is said to hold {meaning[kind]}, but looks like {meaning[found]} "
            f"({100 * whole:.0f} % of the non-zero values are whole, the largest is {top:.4g}); "
            f"pass counts={found!r} (--counts {found} on the command line) or the other matrix"
        )
    return found


def log_normalise(counts: Any, total: float = CELL_TOTAL, cells: Sequence[str] | None = None) -> Any:
    """log(1 + total * counts / library size), with each cell's own library size over the genes given.

    Args:
        counts: raw counts, (n, d), dense or sparse.
        total: counts per cell after scaling.
        cells: names, for messages.

    Returns:
        float32 matrix of the same kind, sparse as CSR.

    Raises:
        ValueError: if a cell has no counts, naming it.

    Example:
        >>> np.expm1(log_normalise(np.array([[1.0, 3.0]]), total=100)).round(3).tolist()
        [[25.0, 75.0]]
    """
    library = np.asarray(counts.sum(axis=1), dtype=float).reshape(-1)
    empty = np.flatnonzero(library <= 0)
    if empty.size:
        first = cells[int(empty[0])] if cells is not None else f"row {empty[0]}"
        raise ValueError(f"{empty.size} of {library.size} cells have no counts, for example {first!r}; remove them")
    scale = total / library
    if hasattr(counts, "tocsr"):
        scaled = counts.tocsr().astype(float)
        scaled.data = np.log1p(scaled.data * np.repeat(scale, np.diff(scaled.indptr)))
        return scaled.astype(np.float32)
    return np.log1p(np.asarray(counts, dtype=float) * scale[:, None]).astype(np.float32)


def presence_filter(counts: Any, share: float = 0.02) -> NDArray[np.bool_]:
    """Genes seen in more than `share` of the cells, mask (d,); decide it on the reference and apply it to both.

    Args:
        counts: counts or log values, (n, d).
        share: in [0, 1).

    Raises:
        ValueError: if `share` is out of range or no gene is left.

    Example:
        >>> presence_filter(np.array([[1, 0], [2, 0]])).tolist()
        [True, False]
    """
    if not 0.0 <= share < 1.0:
        raise ValueError(f"presence share must lie in [0, 1), got {share}")
    seen = np.asarray((counts > 0).mean(axis=0)).reshape(-1)
    kept = np.asarray(seen > share)
    if not kept.any():
        raise ValueError(f"no gene is seen in more than {100 * share:g} % of the cells (best {100 * seen.max():.2g} %); lower the share")
    return kept


def normalised_dispersion(log_values: Any, bins: int = 20) -> NDArray[np.float64]:
    """How much more a gene varies than others of its mean (Satija et al., 2015): large for genes that tell types apart.

    Variance over mean of the values before the logarithm, as a logarithm, standardised among the genes in the same of `bins` equal
    intervals of log(1 + mean). A gene alone in its interval gets 1, one that nobody expresses -inf.

    Args:
        log_values: log1p values, (n, d), dense or sparse, n >= 2.
        bins: intervals, >= 1.

    Returns:
        (d,).

    Example:
        >>> x = np.log1p([[5.0, 5.0, 0.0], [5.0, 4.0, 9.0], [5.0, 5.0, 0.0], [5.0, 6.0, 11.0]])
        >>> int(normalised_dispersion(x, bins=1).argmax())
        2
    """
    import pandas as pd

    values = log_values.astype(float)
    values = values.expm1() if hasattr(values, "expm1") else np.expm1(values)
    count = values.shape[0]
    squares = values.multiply(values) if hasattr(values, "multiply") else values**2
    mean = np.asarray(values.mean(axis=0)).reshape(-1)
    variance = (np.asarray(squares.mean(axis=0)).reshape(-1) - mean**2) * count / (count - 1)
    seen = mean > 0
    ratio = np.full(mean.shape, np.nan)
    ratio[seen] = np.log(np.maximum(variance[seen], 1e-12) / mean[seen])
    frame = pd.DataFrame({"ratio": ratio, "bin": pd.cut(np.log1p(mean), bins=bins, labels=False)})
    groups = frame.groupby("bin")["ratio"]
    spread = groups.transform("std")
    standardised = (frame["ratio"] - groups.transform("mean")) / spread
    alone = groups.transform("count") == 1
    return np.asarray(standardised.mask(alone, 1.0).mask(~alone & (spread == 0), 0.0).where(seen, -np.inf), dtype=float)


def check_reference_size(n_cells: int, latents: int) -> None:
    """Refuse a reference that has too few cells for `latents` components.

    Raises:
        ValueError: unless n_cells > latents.
    """
    if n_cells <= latents:
        raise ValueError(
            f"the reference has {n_cells} cells but {latents} latent dimensions are asked for; give more cells or fewer latents"
        )


@dataclass(frozen=True)
class AlignedGenes:
    """A query in the reference's genes: values (n, d) float32, and the genes it lacked, which hold the fill."""

    values: NDArray[np.float32]
    missing: tuple[str, ...]


def align_genes(query: AnnData, genes: Sequence[str], fill: ArrayLike, *, most_missing: float = MISSING_SHARE) -> AlignedGenes:
    """Lay out a query in the reference's genes, matched by name and never by position.

    Args:
        query: its X, (n, d_q), must be on the scale of `fill`; genes that the reference lacks are dropped.
        genes: the reference's genes, (d,).
        fill: value for genes that the query lacks, (d,): the reference mean, which is 0 after standardisation.
        most_missing: share of `genes` that may be missing.

    Raises:
        ValueError: for duplicate names, no shared gene, or too many missing ones, with examples of both sides.

    Example:
        >>> import pandas as pd
        >>> from anndata import AnnData
        >>> query = AnnData(np.array([[1.0, 2.0]]), var=pd.DataFrame(index=["b", "a"]))
        >>> align_genes(query, ["a", "b", "c"], [0, 0, 5], most_missing=0.5)
        AlignedGenes(values=array([[2., 1., 5.]], dtype=float32), missing=('c',))
    """
    _check_unique(query.var_names, "query: duplicate gene names", "call var_names_make_unique(), or sum the copies")
    position = query.var_names.get_indexer(list(genes))
    lacking = position < 0
    examples = f"the reference has {', '.join(map(str, genes[:3]))}..., the query {', '.join(map(str, query.var_names[:3]))}..."
    if lacking.all():
        raise ValueError(f"query and reference share no gene: {examples}; use one kind of gene name in both")
    missing = tuple(str(gene) for gene, gone in zip(genes, lacking, strict=True) if gone)
    if len(missing) > most_missing * len(genes):
        raise ValueError(
            f"the query lacks {len(missing)} of the reference's {len(genes)} genes ({100 * len(missing) / len(genes):.0f} %, "
            f"at most {100 * most_missing:.0f} %), for example {', '.join(missing[:3])}; {examples}"
        )
    shared = query.X[:, position[~lacking]]  # only these genes are ever dense
    values = np.broadcast_to(np.asarray(fill, dtype=np.float32), (query.n_obs, len(genes))).copy()
    values[:, ~lacking] = shared.toarray() if hasattr(shared, "toarray") else shared
    return AlignedGenes(values, missing)


def prepare_expression(data: AnnData, kind: str = "auto", name: str = "data") -> tuple[AnnData, str]:
    """Check an object and bring its matrix to log1p CP10K.

    Args:
        data: with raw counts or log values in X, or counts in the layer `counts`, which is then preferred unless `kind` is `log`.
        kind: `auto`, `raw` or `log`, see `check_kind`.
        name: for messages.

    Returns:
        (object with X = log values, layer `counts` where known; `raw` or `log`, what was found). The argument is not changed.

    Raises:
        ValueError: whatever `check_cells`, `check_kind` and `log_normalise` refuse.

    Example:
        >>> from anndata import AnnData
        >>> ready, found = prepare_expression(AnnData(np.array([[1.0, 3.0], [2.0, 2.0]])))
        >>> found, np.expm1(ready.X).round().tolist()
        ('raw', [[2500.0, 7500.0], [5000.0, 5000.0]])
    """
    from anndata import AnnData

    counts = data.layers["counts"] if "counts" in data.layers and kind != "log" else data.X
    out = AnnData(counts, obs=data.obs.copy(), var=data.var.copy())
    check_cells(out, name)
    found = check_kind(out.X, kind, name)
    if found == "raw":
        out.layers["counts"] = out.X
        out.X = log_normalise(out.X, cells=list(out.obs_names))
    else:
        total = np.asarray(out.X.sum(axis=1)).reshape(-1)
        if (total <= 0).any():
            raise ValueError(
                f"{name}: {int((total <= 0).sum())} cells have no counts, for example {out.obs_names[total <= 0][0]!r}; remove them"
            )
    return out, found
