"""Readers of cohorts in the formats in which single-cell data is published: h5ad, 10x (h5 or folder), matrix plus metadata table.

Every reader returns an AnnData with the matrix as it is in the file (sparse where the file is), its counts in the layer `counts`, and
the types, where asked for, in obs `label`. Nothing is downloaded, normalised or filtered. A file that cannot be read is named, with
what was expected in it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tasks.single_cell.preprocessing import looks_like_counts

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

T = TypeVar("T")

CITE_FIELDS = {"obs": ("cell_labels", "lane"), "obsm": ("protein_expression",), "layers": ("counts",)}
"""Fields of the CITE-seq file of the published experiment."""

ROWS_AT_ONCE = 500


def read_cells(path: Path, labels: str | None = None, *, add_layer: bool = True) -> AnnData:
    """Read by what the path is: `.h5ad`, 10x `.h5`, or a folder with a 10x or a UCSC Cell Browser export.

    Args:
        path: file or folder.
        labels: column with the types; becomes obs `label`.
        add_layer: see `read_h5ad`.

    Raises:
        FileNotFoundError: if nothing is there.
        ValueError: for an unknown kind of file, a damaged one, or a missing column, naming the columns that are there.
    """
    path = Path(path)
    _must_exist(path)
    if path.is_dir():
        return read_10x_folder(path, labels) if _first(path, "matrix.mtx") else read_cell_browser(path, labels=labels)
    if path.suffix == ".h5ad":
        return read_h5ad(path, labels, add_layer=add_layer)
    if path.suffix in {".h5", ".hdf5"}:
        return read_10x_h5(path, labels)
    raise ValueError(f"{path}: cannot read {path.suffix or 'a file without ending'}; give .h5ad, a 10x .h5, or a folder with a matrix")


def read_h5ad(path: Path, labels: str | None = None, *, add_layer: bool = True) -> AnnData:
    """An AnnData file with its layers.

    Args:
        path: file.
        labels: column of obs with the types.
        add_layer: copy X to the layer `counts` where the file has none and X looks like counts.

    Raises:
        FileNotFoundError: if it is not there.
        ValueError: if it is damaged or lacks the column `labels`.
    """
    import anndata

    cells = _guarded(path, "an AnnData file (.h5ad)", anndata.read_h5ad)
    if add_layer and "counts" not in cells.layers and cells.X is not None and looks_like_counts(cells.X):
        cells.layers["counts"] = cells.X.copy()
    return with_labels(cells, labels, path)


def read_10x_h5(path: Path, labels: str | None = None) -> AnnData:
    """A Cell Ranger matrix in HDF5 (version 2 or 3), gene expression only, genes by symbol.

    Raises:
        FileNotFoundError: if it is not there.
        ValueError: if it is damaged or has no such layout; or if `labels` are asked for, which the format does not have.
    """
    import scanpy

    cells = _guarded(path, "a 10x matrix (.h5)", lambda p: _quietly(lambda: scanpy.read_10x_h5(p)))
    return with_labels(_finish(cells), labels, path)


def read_10x_folder(folder: Path, labels: str | None = None) -> AnnData:
    """A Cell Ranger folder: matrix.mtx, barcodes.tsv, features.tsv or genes.tsv, each plain or gzipped; genes by symbol.

    A table `metadata.tsv` or `meta.tsv` beside them, cells by name in its first column, becomes obs.

    Raises:
        FileNotFoundError: if one of the three is not there, naming what is.
        ValueError: if one is damaged or their sizes disagree.
    """
    import anndata

    _must_exist(folder)
    matrix = _need(folder, "matrix.mtx")
    features = _read_names(_need(folder, "features.tsv", "genes.tsv"))
    barcodes = _read_names(_need(folder, "barcodes.tsv"))
    counts = read_matrix_market(matrix)  # genes by cells
    _check_shape(matrix, counts.shape, len(features), len(barcodes))
    kept = np.ones(len(features), dtype=bool)
    if features.shape[1] > 2:
        kept = (features[2] == "Gene Expression").to_numpy()
    symbols = features[1 if features.shape[1] > 1 else 0].astype(str).to_numpy()[kept]
    cells = anndata.AnnData(counts[kept].T.tocsr(), obs=_index(barcodes[0]), var=_index(symbols))
    return with_labels(join_metadata(_finish(cells), folder), labels, folder)


def read_cell_browser(folder: Path, matrix: str | None = None, labels: str | None = None) -> AnnData:
    """A UCSC Cell Browser export: exprMatrix.tsv (genes by cells, a header of cell names), or matrix.mtx, and meta.tsv.

    Genes written as `ENSG...|SYMBOL` go by their symbol.

    Args:
        folder: holds both files, each plain or gzipped.
        matrix: file name, if it is not exprMatrix.tsv.
        labels: column of meta.tsv.

    Raises:
        FileNotFoundError: if one of them is not there, naming what is.
        ValueError: if one is damaged, or no cell of the matrix is in the metadata.
    """
    import anndata

    _must_exist(folder)
    path = _need(folder, *((matrix,) if matrix else ("exprMatrix.tsv",)))
    if path.name.removesuffix(".gz").endswith(".mtx"):
        return read_10x_folder(folder, labels)
    names, genes, values = _guarded(path, "a table of genes by cells", _read_dense_table)
    cells = anndata.AnnData(values.T.tocsr(), obs=_index(names), var=_index([gene.split("|")[-1] for gene in genes]))
    return with_labels(join_metadata(_finish(cells), folder, required=True), labels, folder)


def read_cite_seq(path: Path) -> AnnData:
    """The CITE-seq file of the published experiment: counts, types and lanes, surface proteins; obs `label` holds the types.

    Raises:
        FileNotFoundError: if it is not there.
        ValueError: if it lacks one of `CITE_FIELDS`, naming what it has.
    """
    import anndata

    cells = _guarded(path, "an AnnData file (.h5ad)", anndata.read_h5ad)
    for place, names in CITE_FIELDS.items():
        present = list(getattr(cells, place).keys())
        for name in names:
            if name not in present:
                raise ValueError(f"{path} has no {place}[{name!r}] ({place} has: {', '.join(map(str, present)) or 'nothing'})")
    cells.X = cells.layers["counts"].copy()
    return with_labels(cells, "cell_labels", path)


def read_pair(reference: Path, target: Path, labels: str | tuple[str, str] | None = None) -> tuple[AnnData, AnnData]:
    """Reference and target of two studies, cut down to the genes of both, in the reference's order.

    Args:
        reference: see `read_cells`, for example the folder of Nowakowski et al. (2017).
        target: see `read_cells`, for example the folder of Polioudakis et al. (2019).
        labels: column with the types, one name or one for each.

    Raises:
        ValueError: if they share no gene, with examples, or a gene name is not unique.
    """
    first, second = labels if isinstance(labels, tuple) else (labels, labels)
    a, b = read_cells(reference, first), read_cells(target, second)
    for name, cells in ((reference, a), (target, b)):
        if not cells.var_names.is_unique:
            copy = cells.var_names[cells.var_names.duplicated()][0]
            raise ValueError(f"{name}: gene {str(copy)!r} appears more than once; make gene names unique first")
    shared = a.var_names[a.var_names.isin(b.var_names)]
    if not len(shared):
        raise ValueError(
            f"{reference} and {target} share no gene: {', '.join(map(str, a.var_names[:3]))}... against "
            f"{', '.join(map(str, b.var_names[:3]))}...; use one kind of gene name in both"
        )
    return a[:, shared].copy(), b[:, shared].copy()


def with_labels(cells: AnnData, column: str | None, source: Path) -> AnnData:
    """Set obs `label` from a column.

    Raises:
        ValueError: if there is no such column, naming those present, or it has empty entries.

    Example:
        >>> import pandas as pd
        >>> from anndata import AnnData
        >>> cells = AnnData(np.ones((2, 1)), obs=pd.DataFrame({"type": ["T", "B"]}, index=["c1", "c2"]))
        >>> with_labels(cells, "type", Path("cells.h5ad")).obs["label"].tolist()
        ['T', 'B']
    """
    if column is None:
        return cells
    if column not in cells.obs:
        present = ", ".join(map(str, cells.obs.columns)) or "none"
        raise ValueError(f"{source} has no label column {column!r} (columns: {present})")
    values = cells.obs[column]
    if values.isna().any():
        raise ValueError(
            f"{source}: label column {column!r} is empty for {int(values.isna().sum())} of {len(values)} cells; drop or name them"
        )
    cells.obs["label"] = values.astype(str)
    return cells


def join_metadata(cells: AnnData, folder: Path, required: bool = False) -> AnnData:
    """Put the columns of meta.tsv or metadata.tsv into obs, cells matched by name.

    Cells without a row and columns without an entry are dropped.

    Raises:
        FileNotFoundError: if it is required and not there.
        ValueError: if it is damaged, names a cell twice, or knows none of the cells.
    """
    path = _first(folder, "meta.tsv", "metadata.tsv")
    if path is None:
        if required:
            _need(folder, "meta.tsv")
        return cells
    raw = _guarded(path, "a table with cell names in the first column", _read_table)
    table = raw.iloc[1:].set_index(0)
    table.columns = raw.iloc[0, 1:].astype(str)
    table.index = table.index.astype(str)
    if table.index.has_duplicates:
        raise ValueError(f"{path}: cell {table.index[table.index.duplicated()][0]!r} has more than one row")
    known = cells.obs_names.isin(table.index)
    if not known.any():
        theirs, ours = ", ".join(table.index[:2]), ", ".join(cells.obs_names[:2])
        raise ValueError(f"{path} knows none of the {cells.n_obs} cells: it has {theirs}..., the matrix {ours}...")
    joined = cells[known].copy()
    for name in table.columns[table.notna().any().to_numpy()]:
        joined.obs[name] = table[name].reindex(joined.obs_names).to_numpy()
    return joined


def read_matrix_market(path: Path) -> Any:
    """A Matrix Market file, plain or gzipped, as CSR float32.

    Raises:
        ValueError: if it is damaged.
    """
    from scipy.io import mmread
    from scipy.sparse import csr_matrix

    return _guarded(path, "a Matrix Market file", lambda p: csr_matrix(mmread(str(p)), dtype=np.float32))


def _finish(cells: AnnData) -> AnnData:
    cells.layers["counts"] = cells.X.copy()
    return cells


def _quietly(read: Callable[[], T]) -> T:
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*names are not unique", category=UserWarning)
        return read()


def _guarded(path: Path, expected: str, read: Callable[[Path], T]) -> T:
    _must_exist(path)
    try:
        return read(path)
    except (OSError, EOFError, ValueError, KeyError, IndexError, TypeError, zlib.error, StopIteration) as error:
        raise ValueError(f"{path} cannot be read as {expected} ({type(error).__name__}: {error}); is it complete?") from None
    except Exception as error:
        # anndata and pandas raise classes of their own for what is wrong inside a file.
        if type(error).__module__.split(".")[0] in {"anndata", "pandas", "scanpy", "h5py"}:
            raise ValueError(f"{path} cannot be read as {expected} ({type(error).__name__}: {error}); is it complete?") from None
        raise


def _must_exist(path: Path) -> None:
    if not path.exists():
        beside = ", ".join(sorted(p.name for p in path.parent.glob("*"))[:8]) or "nothing" if path.parent.is_dir() else "no such folder"
        raise FileNotFoundError(f"{path} is missing ({path.parent} holds: {beside})")


def _first(folder: Path, *names: str) -> Path | None:
    return next((folder / f"{n}{end}" for n in names for end in ("", ".gz") if (folder / f"{n}{end}").is_file()), None)


def _need(folder: Path, *names: str) -> Path:
    found = _first(folder, *names)
    if found is None:
        holds = ", ".join(sorted(p.name for p in folder.glob("*"))) or "nothing"
        raise FileNotFoundError(f"{folder} has no {' or '.join(names)}, plain or .gz (it holds: {holds})")
    return found


def _read_table(path: Path) -> pd.DataFrame:
    import pandas as pd

    return pd.read_csv(path, sep="\t", header=None, dtype=str, keep_default_na=False, na_values=[""])


def _read_dense_table(path: Path) -> tuple[list[str], list[str], Any]:
    """Names of the columns after the first, of the rows, and the numbers as CSR, a few hundred rows in memory at a time."""
    import pandas as pd
    from scipy.sparse import csr_matrix, vstack

    names = pd.read_csv(path, sep="\t", header=None, nrows=1, dtype=str).iloc[0, 1:].tolist()
    rows: list[str] = []
    parts = []
    numeric: Any = {0: str} | dict.fromkeys(range(1, len(names) + 1), np.float32)
    for chunk in pd.read_csv(path, sep="\t", header=None, skiprows=1, dtype=numeric, chunksize=ROWS_AT_ONCE):
        rows += chunk[0].tolist()
        parts.append(csr_matrix(chunk.iloc[:, 1:].to_numpy(dtype=np.float32)))
    values = vstack(parts, format="csr")
    _check_shape(path, values.shape, len(rows), len(names))
    return names, rows, values


def _read_names(path: Path) -> pd.DataFrame:
    return _guarded(path, "a list of names", _read_table)


def _index(names: Any) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(index=pd.Index(np.asarray(names).astype(str)))


def _check_shape(path: Path, shape: tuple[int, int], genes: int, cells: int) -> None:
    if shape != (genes, cells):
        raise ValueError(
            f"{path} is {shape[0]} by {shape[1]}, but there are {genes} genes and {cells} cells; the files do not belong together"
        )
