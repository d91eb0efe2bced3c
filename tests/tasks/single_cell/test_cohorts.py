from __future__ import annotations

import anndata
import numpy as np
import pandas as pd
import pnp_stages
import pytest
from pydantic import ValidationError

from tasks.common.formats import read_json
from tasks.single_cell.cohort_files import read_cohort
from tasks.single_cell.cohorts import CohortParams, FileCohort
from tasks.single_cell.preprocessing import log_normalise
from tasks.single_cell.synthetic import simulate


def test_files_hold_what_the_simulator_made(pipeline):
    root, _, _ = pipeline
    made = simulate(4, 240, 60, 1, genes=80, latents=3)
    target = read_cohort(root / "prepare-target/setup4-1.h5ad")
    np.testing.assert_array_equal(target.values, made.target)
    np.testing.assert_allclose(target.signal, made.signal_target, atol=1e-4)
    np.testing.assert_allclose(target.oracle, made.oracle_target() @ made.loadings.T, atol=1e-4)
    reference = read_cohort(root / "prepare-reference/factor-1.h5ad")
    np.testing.assert_array_equal(reference.values, made.reference)
    assert target.labels.tolist() == [f"class {c}" for c in made.labels_target]


def test_blood_is_split_without_overlap_and_thinned(pipeline):
    root, metrics, _ = pipeline
    sides = [anndata.read_h5ad(root / f"{stage}.h5ad") for stage in ("prepare-reference/pbmc-0", "prepare-target/pbmc_p30-0")]
    assert not set(sides[0].obs_names) & set(sides[1].obs_names)
    assert sides[0].n_obs + sides[1].n_obs == 679
    target = read_cohort(root / "prepare-target/pbmc_p30-0.h5ad")
    np.testing.assert_allclose(target.values, log_normalise(target.counts), rtol=1e-5)
    ratio = metrics["prepare-target"]["target.counts_per_cell.pbmc_p30"] / metrics["prepare-reference"]["reference.counts_per_cell.pbmc"]
    assert ratio == pytest.approx(0.3, abs=0.04)
    assert target.signal.shape == target.values.shape  # the same cells at full depth
    assert ((target.values > 0) <= (target.signal > 0)).all()


def test_manifest_and_labels_stand_beside(pipeline):
    root, _, _ = pipeline
    manifest = read_json(root / "prepare-target/manifest.json")
    assert manifest["names"] == list(pnp_stages.TARGETS)
    assert all((root / "prepare-target" / entry["file"]).is_file() for entry in manifest["files"])
    cells = pd.read_parquet(root / "prepare-target/pbmc_p30-0-cells.parquet")
    assert set(cells.columns) == {"cell", "label"}


def test_another_target_needs_no_other_reference(tmp_path):
    params = CohortParams(targets=("pbmc_p100",), seeds=1)
    more = CohortParams(targets=("pbmc_p100", "pbmc_p50"), seeds=1)
    assert params.families() == more.families() == ["pbmc"]
    files = []
    for name, given in (("a", params), ("b", more)):
        pnp_stages.run_stage("prepare-reference", tmp_path, tmp_path / name, params=given)
        files.append((tmp_path / name / "pbmc-0.h5ad").read_bytes())
    assert files[0] == files[1]


def test_full_depth_has_no_better_truth(tmp_path):
    pnp_stages.run_stage("prepare-target", tmp_path, tmp_path / "t", params=CohortParams(targets=("pbmc_p100",), seeds=1))
    assert read_cohort(tmp_path / "t/pbmc_p100-0.h5ad").signal is None


def test_the_count_simulator_is_setup_six(tmp_path):
    given = CohortParams(targets=("setup6",), seeds=1, n_reference=60, n_target=30)
    pnp_stages.run_stage("prepare-reference", tmp_path, tmp_path / "r", params=given)
    pnp_stages.run_stage("prepare-target", tmp_path, tmp_path / "t", params=given)
    target = read_cohort(tmp_path / "t/setup6-0.h5ad")
    assert target.counts is not None
    assert target.signal is not None
    assert read_cohort(tmp_path / "r/counts-0.h5ad").counts.shape == (60, 1000)


def test_ones_own_files_are_cut_to_shared_genes(tmp_path):
    rng = np.random.default_rng(0)
    for name, genes in (("a", ["g1", "g2", "g3", "x"]), ("b", ["g3", "y", "g2", "g1"])):
        cells = pd.DataFrame({"type": ["T", "B"] * 20}, index=[f"{name}{i}" for i in range(40)])
        anndata.AnnData(rng.poisson(3.0, (40, 4)).astype(np.float32) + 1, obs=cells, var=pd.DataFrame(index=genes)).write_h5ad(
            tmp_path / f"{name}.h5ad"
        )
    files = {"mine": FileCohort(reference=str(tmp_path / "a.h5ad"), target=str(tmp_path / "b.h5ad"), labels="type")}
    given = CohortParams(targets=("mine",), seeds=1, files=files)
    pnp_stages.run_stage("prepare-reference", tmp_path, tmp_path / "r", params=given)
    pnp_stages.run_stage("prepare-target", tmp_path, tmp_path / "t", params=given)
    reference, target = read_cohort(tmp_path / "r/mine-0.h5ad"), read_cohort(tmp_path / "t/mine-0.h5ad")
    assert reference.genes == target.genes == ("g1", "g2", "g3")
    assert set(target.labels) == {"T", "B"}
    missing = CohortParams(targets=("mine",), seeds=1, files={"mine": files["mine"].model_copy(update={"labels": "kind"})})
    with pytest.raises(ValueError, match="no label column 'kind'"):
        pnp_stages.run_stage("prepare-target", tmp_path, tmp_path / "u", params=missing)


@pytest.mark.parametrize("bad", [{"targets": ("setup9",)}, {"seeds": 0}, {"presence": 1.0}, {"n_target": 3}, {"reference_share": 1.0}])
def test_impossible_cohorts_are_refused(bad):
    with pytest.raises((ValidationError, ValueError)):
        CohortParams(**bad)
