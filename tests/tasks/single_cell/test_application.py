from __future__ import annotations

import anndata
import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from kept_log import KeptLog
from scipy.sparse import csr_matrix

from tasks.common.node import NullLog
from tasks.single_cell.application import DenoiseParams, choose_genes, denoise, match
from tasks.single_cell.counts_simulator import CountSettings, simulate_counts
from tasks.single_cell.preprocessing import log_normalise
from tasks.single_cell.readers import read_cells

FAST = {"latents": 5, "steps": 150, "draws": 12, "genes": 0}


@pytest.fixture(scope="module")
def cohort():
    return simulate_counts(150, 60, 0, CountSettings(genes=120, groups=3, target_depth=1.0, library_location=6.5, de_share=0.3))


def write(path, counts, labels=None, genes=None, cells=None):
    n, d = counts.shape
    data = AnnData(
        counts,
        obs=pd.DataFrame(index=cells or [f"{path.stem}{i}" for i in range(n)]),
        var=pd.DataFrame(index=genes or [f"gene{j}" for j in range(d)]),
    )
    if labels is not None:
        data.obs["cell_type"] = [f"type{i}" for i in labels]
    data.write_h5ad(path)
    return path


@pytest.fixture
def files(tmp_path, cohort):
    write(tmp_path / "ref.h5ad", csr_matrix(cohort.reference), cohort.labels_reference)
    write(tmp_path / "query.h5ad", csr_matrix(cohort.target), cohort.labels_target)
    return tmp_path


def params_for(folder, **changes):
    return DenoiseParams(**({"reference": folder / "ref.h5ad", "query": folder / "query.h5ad"} | FAST | changes))


def test_from_two_files_to_a_denoised_one(files, cohort):
    log = KeptLog()
    summary = denoise(params_for(files, labels="cell_type", steps=600, draws=40), files / "out.h5ad", log)
    assert (summary["cells"], summary["reference_cells"], summary["genes_filled"], summary["scale"]) == (60, 150, 0, "raw")
    assert summary["seconds"] > 0
    assert summary["label_accuracy"] > 0.8
    assert summary["silhouette_dice"] > summary["silhouette_pca"]
    assert ("prior", 600) in log.bars
    assert any("denoises the held-out reference cells best" in text for text in log.messages)

    cells = anndata.read_h5ad(files / "out.h5ad")
    original = anndata.read_h5ad(files / "query.h5ad")
    np.testing.assert_array_equal(cells.X.toarray(), original.X.toarray())
    assert cells.obs["cell_type"].tolist() == original.obs["cell_type"].tolist()
    assert list(cells.layers) == list(original.layers)
    assert cells.obsm["X_dice"].shape == cells.obsm["X_pca"].shape == (60, 5)
    assert (cells.obs["dice_spread"] > 0).all()
    assert set(cells.obs["dice_label"].cat.categories) == {"type0", "type1", "type2"}
    probabilities = cells.obsm["dice_probabilities"]
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(cells.obs["dice_label_probability"], probabilities.max(axis=1), rtol=1e-5)
    assert cells.obs["dice_set_size"].between(1, 3).all()
    assert cells.obs["dice_label_entropy"].between(0, np.log(3) + 1e-9).all()
    settings = cells.uns["dice"]
    assert settings["rho"] == summary["rho"]
    assert (settings["latents"], settings["seed"], settings["labels"]) == (5, 0, "cell_type")
    assert len(settings["genes_used"]) == summary["genes_used"]


def test_a_shallower_query_is_not_flattened(tmp_path):
    # Depth moves all cells along the first component. A rho that pulls the whole query back there would pull its types together.
    cohort = simulate_counts(400, 100, 0, CountSettings(genes=800, groups=4, target_depth=0.5))
    write(tmp_path / "ref.h5ad", csr_matrix(cohort.reference), cohort.labels_reference)
    write(tmp_path / "query.h5ad", csr_matrix(cohort.target), cohort.labels_target)
    summary = denoise(params_for(tmp_path, labels="cell_type", latents=8, steps=400, draws=20), tmp_path / "out.h5ad", NullLog())
    assert summary["label_accuracy"] > 0.7
    assert summary["silhouette_dice"] > 0.6 * summary["silhouette_pca"]


def test_without_labels_there_are_none(files):
    summary = denoise(params_for(files, rho=1.0), files / "out.h5ad", NullLog())
    cells = anndata.read_h5ad(files / "out.h5ad")
    assert summary["rho"] == cells.uns["dice"]["rho"] == 1.0
    assert "label_accuracy" not in summary
    assert not [name for name in cells.obs if name.startswith("dice_label")]
    assert "dice_probabilities" not in cells.obsm


def test_a_seed_gives_the_same_numbers_and_another_seed_others(files):
    found = []
    for number, seed in enumerate((3, 3, 4)):
        denoise(params_for(files, seed=seed, labels="cell_type"), files / f"{number}.h5ad", NullLog())
        found.append(anndata.read_h5ad(files / f"{number}.h5ad"))
    np.testing.assert_array_equal(found[0].obsm["X_dice"], found[1].obsm["X_dice"])
    pd.testing.assert_frame_equal(found[0].obs, found[1].obs)
    assert (found[0].obsm["X_dice"] != found[2].obsm["X_dice"]).any()


def test_the_order_of_genes_and_the_depth_of_a_query_do_not_matter(files, cohort):
    params = params_for(files, rho=1.0)
    plain = match(read_cells(params.reference), read_cells(params.query), params)
    order = np.random.default_rng(0).permutation(120)
    write(files / "query.h5ad", csr_matrix(3 * cohort.target[:, order]), genes=[f"gene{j}" for j in order])
    shuffled = match(read_cells(params.reference), read_cells(params.query), params)
    np.testing.assert_allclose(shuffled.query.values, plain.query.values, rtol=1e-5)
    np.testing.assert_array_equal(shuffled.reference, plain.reference)


def test_missing_genes_stand_at_the_reference_mean_and_leave_the_others_alone(files, cohort):
    params = params_for(files)
    full = match(read_cells(params.reference), read_cells(params.query), params)
    lost = full.genes[:6]
    kept = [j for j in range(120) if f"gene{j}" not in lost]
    write(files / "query.h5ad", csr_matrix(cohort.target[:, kept]), genes=[f"gene{j}" for j in kept])
    log = KeptLog()
    summary = denoise(params_for(files, rho=1.0), files / "out.h5ad", log)
    assert summary["genes_filled"] == 6
    assert any(f"6 of {len(full.genes)} genes are missing" in text for text in log.messages)
    assert sorted(anndata.read_h5ad(files / "out.h5ad").uns["dice"]["genes_missing"]) == sorted(lost)
    part = match(read_cells(params.reference), read_cells(params.query), params)
    np.testing.assert_allclose(part.query.values[:, :6], np.broadcast_to(part.reference.mean(axis=0)[:6], (60, 6)), rtol=1e-5)
    # The library over fewer genes is smaller by the share that the reference has in them, on average over cells.
    assert np.mean(part.query.values[:, 6:] - full.query.values[:, 6:]) == pytest.approx(0.0, abs=0.02)


def test_log_files_are_taken_as_they_are_and_mixed_ones_are_brought_together(files, cohort):
    logs = {"ref": csr_matrix(log_normalise(cohort.reference)), "query": csr_matrix(log_normalise(cohort.target))}
    params = params_for(files)
    raw = match(read_cells(params.reference), read_cells(params.query), params)
    write(files / "query.h5ad", logs["query"])
    mixed = match(read_cells(params.reference), read_cells(params.query), params)
    assert (raw.scale, mixed.scale) == ("raw", "mixed")
    write(files / "ref.h5ad", logs["ref"])
    both = match(read_cells(params.reference), read_cells(params.query), params)
    assert both.scale == "log"
    np.testing.assert_allclose(both.query.values, mixed.query.values, rtol=1e-5)
    summary = denoise(params_for(files, counts="log"), files / "out.h5ad", NullLog())
    assert summary["scale"] == "log"


def test_the_most_variable_genes_are_kept(cohort):
    data = AnnData(csr_matrix(log_normalise(cohort.reference)))
    everything, few = choose_genes(data, 0.02, 0), choose_genes(data, 0.02, 30)
    assert few.sum() == 30
    assert (everything | ~few).all()
    assert choose_genes(data, 0.02, 10_000).sum() == everything.sum()

    def separation(mask):  # share of a gene's variance that lies between groups, mean over genes
        x = data.X.toarray()[:, mask]
        groups = np.stack([x[cohort.labels_reference == g].mean(axis=0) for g in range(3)])
        return (groups.var(axis=0) / x.var(axis=0)).mean()

    assert separation(few) > separation(everything)


@pytest.mark.filterwarnings("ignore:.*names are not unique:UserWarning")
@pytest.mark.parametrize(
    ("spoil", "options", "message"),
    [
        (
            lambda f, c: write(f / "query.h5ad", c.target, genes=["gene0"] * 2 + [f"gene{j}" for j in range(2, 120)]),
            {},
            "query: duplicate gene names: 1, for example 'gene0'",
        ),
        (
            lambda f, c: write(f / "ref.h5ad", c.reference, c.labels_reference, cells=["a"] * 150),
            {},
            "reference: duplicate cell names: 1, for example 'a'",
        ),
        (
            lambda f, c: write(f / "query.h5ad", np.vstack([c.target, 0 * c.target[:1]])),
            {},
            "1 of 61 cells have no counts, for example 'query60'",
        ),
        (
            lambda f, c: write(f / "query.h5ad", c.target, genes=[f"ENSG{j}" for j in range(120)]),
            {},
            "share no gene: the reference has gene",
        ),
        (
            lambda f, c: write(f / "query.h5ad", c.target[:, :60], genes=[f"gene{j}" for j in range(60)]),
            {},
            r"lacks \d+ of the reference's \d+ genes \(\d+ %, at most 20 %\)",
        ),
        (
            lambda f, c: write(f / "query.h5ad", np.where(c.target == c.target.max(), np.nan, c.target)),
            {},
            "query: 1 NaN or infinite values",
        ),
        (lambda f, c: write(f / "ref.h5ad", c.reference - 1), {}, r"reference: \d+ negative values"),
        (
            lambda f, c: write(f / "query.h5ad", log_normalise(c.target)),
            {"counts": "raw"},
            "query is said to hold raw counts, but looks like log",
        ),
        (lambda f, c: None, {"counts": "log"}, "reference is said to hold log-normalised values, but looks like raw counts"),
        (
            lambda f, c: write(f / "query.h5ad", log_normalise(c.target, total=1e6)),
            {},
            r"the query holds log values of 1e\+06 counts per cell, the other file raw counts",
        ),
        (lambda f, c: write(f / "ref.h5ad", c.reference[:5]), {}, "the reference has 5 cells but 5 latent dimensions"),
        (lambda f, c: None, {"labels": "celltype"}, r"has no label column 'celltype' \(columns: cell_type\)"),
        (lambda f, c: (f / "query.h5ad").write_text("cells"), {}, r"query.h5ad cannot be read as an AnnData file"),
        (lambda f, c: None, {"device": "tpu:x"}, "torch has no device 'tpu:x'"),
        (
            lambda f, c: write(f / "ref.h5ad", c.reference * (np.arange(150)[:, None] % 2 == np.arange(120) % 2)),
            {"presence": 0.6},
            r"no gene is seen in more than 60 %",
        ),
    ],
)
def test_what_is_wrong_with_the_files_is_said_before_anything_is_trained(files, cohort, spoil, options, message, monkeypatch):
    spoil(files, cohort)
    monkeypatch.setattr("tasks.single_cell.application.Dice.fit", None)  # calling it would be a TypeError
    with pytest.raises(ValueError, match=message):
        denoise(params_for(files, **options), files / "out.h5ad", NullLog())
    assert not (files / "out.h5ad").exists()


def test_the_result_must_be_named_as_what_it_is(files):
    with pytest.raises(ValueError, match=r"let its name end in .h5ad, got 'out.csv'"):
        denoise(params_for(files), files / "out.csv", NullLog())


def test_a_browser_export_of_one_cell_becomes_an_h5ad(files, cohort):
    folder = files / "export"
    folder.mkdir()
    rows = [f"gene{j}\t{value:g}" for j, value in enumerate(cohort.target[0])]
    (folder / "exprMatrix.tsv").write_text("\n".join(["gene\tcell0", *rows]))
    (folder / "meta.tsv").write_text("Cell\tage\tnote\ncell0\t12\t\n")
    denoise(params_for(files, query=folder, rho=1.0), files / "out.h5ad", NullLog())
    found = anndata.read_h5ad(files / "out.h5ad")
    assert found.obs["age"].tolist() == ["12"]
    assert np.isfinite(found.obsm["X_dice"]).all()


def test_cells_without_counts_in_the_genes_used_are_named(files, cohort):
    lonely = cohort.target.copy()
    lonely[5] = 0
    write(files / "query.h5ad", np.hstack([lonely, np.ones((60, 1), np.float32)]), genes=[*(f"gene{j}" for j in range(120)), "other"])
    with pytest.raises(ValueError, match=r"query: 1 cells have no counts in the \d+ genes that are used, for example 'query5'"):
        denoise(params_for(files), files / "out.h5ad", NullLog())


def test_missing_files_are_named(files):
    with pytest.raises(FileNotFoundError, match=r"gone.h5ad is missing"):
        denoise(params_for(files, query=files / "gone.h5ad"), files / "out.h5ad", NullLog())


@pytest.mark.parametrize(
    "change", [{"latents": 0}, {"rho": 0.0}, {"rho": -1.0}, {"counts": "tpm"}, {"presence": 1.0}, {"draws": 1}, {"seed": -1}]
)
def test_impossible_options_are_refused(files, change):
    (name,) = change
    with pytest.raises(ValueError, match=rf"(?s){name}.*input_value={change[name]!r}"):
        params_for(files, **change)
