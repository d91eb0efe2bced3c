from __future__ import annotations

import gzip

import h5py
import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy.io import mmwrite
from scipy.sparse import csc_matrix, csr_matrix

from tasks.single_cell import readers
from tasks.single_cell.readers import read_10x_folder, read_cell_browser, read_cells, read_cite_seq, read_h5ad, read_pair

GENES, CELLS = ["CD4", "CD8A", "MS4A1"], ["AAA-1", "CCC-1", "GGG-1", "TTT-1"]
COUNTS = np.array([[1, 0, 2], [0, 3, 0], [5, 0, 0], [0, 0, 4]], dtype=np.float32)
TYPES = ["T", "T", "B", "NK"]


def write_h5ad(path, matrix=None, genes=GENES, **parts):
    data = AnnData(
        csr_matrix(COUNTS) if matrix is None else matrix,
        obs=pd.DataFrame({"cell_type": TYPES, "lane": ["1", "1", "2", "2"]}, index=CELLS),
        var=pd.DataFrame(index=genes),
        **parts,
    )
    data.write_h5ad(path)
    return path


def write_10x_h5(path):
    """The layout of Cell Ranger 3: genes by cells in CSC form, which is cells by genes in CSR form."""
    matrix = csr_matrix(COUNTS)
    with h5py.File(path, "w") as file:
        group = file.create_group("matrix")
        group["data"], group["indices"], group["indptr"] = matrix.data.astype(np.int32), matrix.indices, matrix.indptr
        group["shape"] = np.array([3, 4], dtype=np.int32)
        group["barcodes"] = np.array(CELLS, dtype="S")
        features = group.create_group("features")
        features["id"] = np.array(["ENSG1", "ENSG2", "ENSG3"], dtype="S")
        features["name"] = np.array(GENES, dtype="S")
        features["feature_type"] = np.array(["Gene Expression"] * 3, dtype="S")
        features["genome"] = np.array(["GRCh38"] * 3, dtype="S")
    return path


def write_10x_folder(folder, version=3, packed=False, metadata=False):
    folder.mkdir()
    end = ".gz" if packed else ""
    rows = [("ENSG1", "CD4"), ("ENSG2", "CD8A"), ("ENSG3", "MS4A1")]
    matrix = COUNTS.T
    if version == 3:
        rows = [(*row, "Gene Expression") for row in rows] + [("P1", "CD4-protein", "Antibody Capture")]
        matrix = np.vstack([matrix, [[9, 9, 9, 9]]])
    files = {
        ("features.tsv" if version == 3 else "genes.tsv"): "\n".join("\t".join(row) for row in rows) + "\n",
        "barcodes.tsv": "\n".join(CELLS) + "\n",
    }
    for name, text in files.items():
        (folder / (name + end)).write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    mmwrite(folder / "matrix.mtx", csc_matrix(matrix.astype(int)))
    if packed:
        (folder / "matrix.mtx.gz").write_bytes(gzip.compress((folder / "matrix.mtx").read_bytes()))
        (folder / "matrix.mtx").unlink()
    if metadata:
        (folder / "metadata.tsv").write_text("cell\tcell_type\n" + "".join(f"{c}\t{t}\n" for c, t in zip(CELLS, TYPES, strict=True)))
    return folder


def write_cell_browser(folder, packed=True, order=(2, 0, 1, 3)):
    folder.mkdir()
    matrix = "gene\t" + "\t".join(CELLS) + "\n"
    for number, (gene, row) in enumerate(zip(GENES, COUNTS.T, strict=True)):
        matrix += f"ENSG{number}|{gene}\t" + "\t".join(f"{v:g}" for v in row) + "\n"
    meta = "Cell\tWGCNAcluster\tAge\n" + "".join(f"{CELLS[i]}\t{TYPES[i]}\t{10 + i}\n" for i in order)
    for name, text in (("exprMatrix.tsv", matrix), ("meta.tsv", meta)):
        (folder / (name + (".gz" if packed else ""))).write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return folder


def check_is_the_cohort(cells, labelled=True):
    assert list(cells.var_names) == GENES
    assert list(cells.obs_names) == CELLS
    np.testing.assert_array_equal(cells.layers["counts"].toarray(), COUNTS)
    np.testing.assert_array_equal(cells.X.toarray(), COUNTS)
    if labelled:
        assert cells.obs["label"].tolist() == TYPES


def test_h5ad(tmp_path):
    path = write_h5ad(tmp_path / "cells.h5ad")
    check_is_the_cohort(read_cells(path, "cell_type"))
    check_is_the_cohort(read_cells(path), labelled=False)


def test_h5ad_keeps_its_own_layer_of_counts(tmp_path):
    path = write_h5ad(tmp_path / "cells.h5ad", csr_matrix(np.log1p(COUNTS)), layers={"counts": csr_matrix(COUNTS)})
    cells = read_h5ad(path)
    np.testing.assert_array_equal(cells.layers["counts"].toarray(), COUNTS)
    np.testing.assert_allclose(cells.X.toarray(), np.log1p(COUNTS))


def test_log_values_are_not_called_counts(tmp_path):
    path = write_h5ad(tmp_path / "cells.h5ad", csr_matrix(np.log1p(COUNTS) + 0.01 * (COUNTS > 0)))
    assert "counts" not in read_cells(path).layers
    assert "counts" not in read_cells(write_h5ad(path), add_layer=False).layers


def test_10x_h5(tmp_path):
    check_is_the_cohort(read_cells(write_10x_h5(tmp_path / "filtered_feature_bc_matrix.h5")), labelled=False)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("packed", [False, True])
def test_10x_folder_takes_gene_expression_only(tmp_path, version, packed):
    check_is_the_cohort(read_cells(write_10x_folder(tmp_path / "m", version, packed)), labelled=False)


def test_10x_folder_with_a_table_of_types(tmp_path):
    check_is_the_cohort(read_cells(write_10x_folder(tmp_path / "m", metadata=True), "cell_type"))


@pytest.mark.parametrize("packed", [False, True])
def test_cell_browser_matches_metadata_by_name(tmp_path, packed):
    cells = read_cells(write_cell_browser(tmp_path / "cortex", packed), "WGCNAcluster")
    check_is_the_cohort(cells)
    assert cells.obs["Age"].tolist() == ["10", "11", "12", "13"]


def test_cell_browser_tables_are_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "ROWS_AT_ONCE", 2)  # three genes: a full piece and a rest
    check_is_the_cohort(read_cells(write_cell_browser(tmp_path / "cortex"), "WGCNAcluster"))


def test_cell_browser_drops_cells_without_metadata(tmp_path):
    cells = read_cell_browser(write_cell_browser(tmp_path / "cortex", order=(3, 0)))
    assert list(cells.obs_names) == ["AAA-1", "TTT-1"]
    np.testing.assert_array_equal(cells.X.toarray(), COUNTS[[0, 3]])


def test_cell_browser_with_a_sparse_matrix(tmp_path):
    folder = write_10x_folder(tmp_path / "m", 2, metadata=True)
    check_is_the_cohort(read_cell_browser(folder, "matrix.mtx", "cell_type"))


def test_cite_seq_needs_all_its_fields(tmp_path):
    good = {"layers": {"counts": csr_matrix(COUNTS)}, "obsm": {"protein_expression": np.ones((4, 2))}}
    path = write_h5ad(tmp_path / "cite.h5ad", csr_matrix(np.log1p(COUNTS)), **good)
    with pytest.raises(ValueError, match=r"no obs\['cell_labels'\] \(obs has: cell_type, lane\)"):
        read_cite_seq(path)
    cells = read_h5ad(path)
    cells.obs["cell_labels"] = TYPES
    cells.write_h5ad(path)
    check_is_the_cohort(read_cite_seq(path))
    assert read_cite_seq(path).obsm["protein_expression"].shape == (4, 2)
    del cells.obsm["protein_expression"]
    cells.write_h5ad(path)
    with pytest.raises(ValueError, match=r"no obsm\['protein_expression'\] \(obsm has: nothing\)"):
        read_cite_seq(path)


def test_a_pair_is_cut_to_its_shared_genes_by_name(tmp_path):
    a = write_h5ad(tmp_path / "a.h5ad")
    b = write_h5ad(tmp_path / "b.h5ad", csr_matrix(COUNTS), genes=["MS4A1", "GFAP", "CD4"])
    reference, target = read_pair(a, b, ("cell_type", "lane"))
    assert list(reference.var_names) == list(target.var_names) == ["CD4", "MS4A1"]
    np.testing.assert_array_equal(reference.X.toarray(), COUNTS[:, [0, 2]])
    np.testing.assert_array_equal(target.layers["counts"].toarray(), COUNTS[:, [2, 0]])
    assert target.obs["label"].tolist() == ["1", "1", "2", "2"]
    with pytest.raises(ValueError, match=r"share no gene: CD4, CD8A, MS4A1\.\.\. against Cd4, Cd8a, Ms4a1"):
        read_pair(a, write_h5ad(tmp_path / "mouse.h5ad", csr_matrix(COUNTS), genes=["Cd4", "Cd8a", "Ms4a1"]))


@pytest.mark.filterwarnings("ignore:.*names are not unique:UserWarning")
def test_a_pair_with_a_gene_twice_is_refused(tmp_path):
    twice = write_h5ad(tmp_path / "twice.h5ad", csr_matrix(COUNTS), genes=["CD4", "CD8A", "CD4"])
    with pytest.raises(ValueError, match=r"twice.h5ad: gene 'CD4' appears more than once"):
        read_pair(write_h5ad(tmp_path / "a.h5ad"), twice)


def test_missing_files_say_what_is_there(tmp_path):
    write_h5ad(tmp_path / "cells.h5ad")
    with pytest.raises(FileNotFoundError, match=r"gone.h5ad is missing \(.* holds: cells.h5ad\)"):
        read_cells(tmp_path / "gone.h5ad")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        read_cells(tmp_path / "nowhere" / "cells.h5ad")
    folder = write_10x_folder(tmp_path / "m", 3)
    (folder / "barcodes.tsv").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no barcodes.tsv, plain or .gz \(it holds: features.tsv, matrix.mtx\)"):
        read_10x_folder(folder)
    browser = write_cell_browser(tmp_path / "cortex", packed=False)
    (browser / "meta.tsv").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no meta.tsv"):
        read_cell_browser(browser)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"has no exprMatrix.tsv, plain or .gz \(it holds: nothing\)"):
        read_cells(tmp_path / "empty")


def test_a_missing_label_column_names_those_present(tmp_path):
    path = write_h5ad(tmp_path / "cells.h5ad")
    with pytest.raises(ValueError, match=r"no label column 'type' \(columns: cell_type, lane\)"):
        read_cells(path, "type")
    cells = read_h5ad(path)
    cells.obs["cell_type"] = ["T", None, "B", "NK"]
    cells.write_h5ad(path)
    with pytest.raises(ValueError, match="label column 'cell_type' is empty for 1 of 4 cells"):
        read_cells(path, "cell_type")


def cut(path):
    path.write_bytes(path.read_bytes()[: int(0.6 * path.stat().st_size)])


@pytest.mark.parametrize(
    ("write", "damage", "expected"),
    [
        (lambda p: write_h5ad(p / "cells.h5ad"), cut, "an AnnData file"),
        (lambda p: write_h5ad(p / "cells.h5ad"), lambda path: path.write_text("no HDF5"), "an AnnData file"),
        (lambda p: write_10x_h5(p / "cells.h5"), cut, "a 10x matrix"),
        (lambda p: write_h5ad(p / "cells.h5ad").rename(p / "cells.h5"), lambda path: None, "a 10x matrix"),
        (lambda p: write_10x_folder(p / "m"), lambda path: cut(path / "matrix.mtx"), "a Matrix Market file"),
        (lambda p: write_10x_folder(p / "m", packed=True), lambda path: cut(path / "barcodes.tsv.gz"), "a list of names"),
        (lambda p: write_cell_browser(p / "c"), lambda path: cut(path / "exprMatrix.tsv.gz"), "a table of genes by cells"),
    ],
)
def test_damaged_files_are_named(tmp_path, write, damage, expected):
    path = write(tmp_path)
    damage(path)
    with pytest.raises(ValueError, match=rf"cannot be read as {expected}.*is it complete\?"):
        read_cells(path)


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    folder = write_10x_folder(tmp_path / "m", 2)
    (folder / "barcodes.tsv").write_text("AAA-1\nCCC-1\n")
    with pytest.raises(ValueError, match="is 3 by 4, but there are 3 genes and 2 cells"):
        read_10x_folder(folder)
    browser = write_cell_browser(tmp_path / "cortex", packed=False)
    (browser / "meta.tsv").write_text("Cell\tAge\nX1\t3\nX2\t4\n")
    with pytest.raises(ValueError, match=r"knows none of the 4 cells: it has X1, X2\.\.\., the matrix AAA-1, CCC-1"):
        read_cell_browser(browser)
    (browser / "meta.tsv").write_text("Cell\tAge\nAAA-1\t3\nAAA-1\t4\n")
    with pytest.raises(ValueError, match="cell 'AAA-1' has more than one row"):
        read_cell_browser(browser)
    (browser / "exprMatrix.tsv").write_text("gene\tAAA-1\nCD4\tmany\n")
    with pytest.raises(ValueError, match=r"cannot be read as a table of genes by cells .*could not convert string"):
        read_cell_browser(browser)


def test_other_kinds_of_files_are_refused(tmp_path):
    (tmp_path / "cells.loom").write_text("")
    with pytest.raises(ValueError, match=r"cannot read .loom; give .h5ad, a 10x .h5, or a folder"):
        read_cells(tmp_path / "cells.loom")
