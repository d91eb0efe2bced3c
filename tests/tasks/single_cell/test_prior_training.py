from __future__ import annotations

import numpy as np
import pnp_stages
import pytest
import torch

from tasks.single_cell.cohort_files import read_cohort
from tasks.single_cell.prior_training import PriorParams, _gaussian_error, fit_reference, read_fitted


def test_the_slice_was_seen_by_nothing(pipeline, tmp_path):
    root, _, _ = pipeline
    cells = read_cohort(root / "prepare-reference/factor-0.h5ad")
    fitted = read_fitted(root / "warmstart", "factor", 0)
    assert fitted.held.sum() == 24
    assert len(fitted.latents) == len(fitted.labels) == 216
    values = cells.values.copy()
    values[fitted.held] += 100
    lied = type(cells)(values, cells.genes, cells.labels, None, None, None, cells.kept)
    again, _ = fit_reference(lied, pnp_stages.PARAMS["warmstart"], 0)
    np.testing.assert_array_equal(again.space.loadings, fitted.space.loadings)
    np.testing.assert_array_equal(again.space.mean, fitted.space.mean)
    z = torch.ones(3, 3)
    draws = [f.prior.sample(z, 1.0, torch.Generator().manual_seed(0)) for f in (fitted, again)]
    assert torch.equal(*draws)


def test_genes_below_the_presence_filter_are_left_out(pipeline):
    root, _, _ = pipeline
    cells, fitted = read_cohort(root / "prepare-reference/pbmc-0.h5ad"), read_fitted(root / "warmstart", "pbmc", 0)
    assert not (fitted.columns & ~cells.kept).any()
    assert fitted.columns.sum() == len(fitted.space.genes)
    assert [g for g, used in zip(cells.genes, fitted.columns, strict=True) if used] == list(fitted.space.genes)
    np.testing.assert_allclose(fitted.standardise(cells)[~fitted.held] @ fitted.space.loadings, fitted.latents, atol=1e-9)


def test_only_named_references_get_a_control(pipeline):
    root, metrics, _ = pipeline
    assert read_fitted(root / "warmstart", "factor", 0).control is not None
    assert read_fitted(root / "warmstart", "pbmc", 0).control is None
    assert {"dice.noise_error.pbmc", "wiener.noise_error.pbmc", "latents.scale.pbmc"} <= metrics["warmstart"].keys()


def test_losses_are_kept(pipeline):
    _, _, log = pipeline
    assert any("loss_factor" in row for row in log.steps)


def test_the_gaussians_error_has_a_closed_form():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40_000, 2)) * [2.0, 0.5]

    class Stub:
        latents = rows
        prior = type("P", (), {"scale": 1.0})()

    a, v = 0.4, np.array([4.0, 0.25])
    expected = (a * v / (a * v + 1 - a)).mean()  # variance that the noise keeps, given its sum with the signal
    assert _gaussian_error(Stub(), rows, np.array([a]), 1) == pytest.approx(expected, rel=0.02)  # type: ignore[arg-type]


def test_other_numbers_of_components_and_the_targets_basis(pipeline):
    root, _, _ = pipeline
    cells, target = read_cohort(root / "prepare-reference/factor-0.h5ad"), read_cohort(root / "prepare-target/setup1-0.h5ad")
    params = pnp_stages.PARAMS["warmstart"]
    two, _ = fit_reference(cells, params, 0, latents=2)
    assert two.space.k == 2
    own, _ = fit_reference(cells, params, 0, basis_of=target)
    main = read_fitted(root / "warmstart", "factor", 0)
    np.testing.assert_array_equal(own.space.mean, main.space.mean)
    assert np.abs(own.space.loadings - main.space.loadings).max() > 1e-3


def test_more_components_than_cells_allow_are_refused(pipeline):
    root, _, _ = pipeline
    cells = read_cohort(root / "prepare-reference/factor-0.h5ad")
    with pytest.raises(ValueError, match="k must lie in"):
        fit_reference(cells, PriorParams(latents=80), 0)


def test_weights_do_not_depend_on_the_number_of_processes(pipeline, tmp_path, monkeypatch):
    root, metrics, _ = pipeline
    monkeypatch.setenv("PAPERS_THREADS", "2")
    again = pnp_stages.run_stage("warmstart", root, tmp_path / "warmstart")
    assert again == metrics["warmstart"]
    first, second = ((folder / "factor-0/prior.safetensors").read_bytes() for folder in (root / "warmstart", tmp_path / "warmstart"))
    assert first == second
