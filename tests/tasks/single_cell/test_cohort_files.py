from __future__ import annotations

import pnp_stages
import pytest

from tasks.common.formats import read_json, write_json
from tasks.common.node import Inputs
from tasks.single_cell.cohort_files import cases, family_of, read_cohort


def test_targets_know_their_reference():
    names = ("setup1", "setup4", "setup5", "setup6", "pbmc_p100", "pbmc_p7", "mine")
    assert [family_of(n, ("mine",)) for n in names] == ["factor", "factor", "genewise", "counts", "pbmc", "pbmc", "mine"]


@pytest.mark.parametrize("name", ["setup7", "pbmc_p0", "pbmc_p101", "pbmc_px", "", "mine"])
def test_unknown_targets_are_refused(name):
    with pytest.raises(ValueError, match=r"unknown target .* known: setup1"):
        family_of(name)


def test_cases_pair_files_of_the_two_stages(pipeline):
    root, _, _ = pipeline
    inputs = Inputs({need: root / need for need in ("prepare-reference", "prepare-target")})
    found = cases(inputs, ("pbmc_p30", "setup2", "setup1"))
    assert [(c.target, c.family, c.seed) for c in found] == [
        ("pbmc_p30", "pbmc", 0),
        ("pbmc_p30", "pbmc", 1),
        ("setup1", "factor", 0),
        ("setup1", "factor", 1),
    ]
    assert all(c.target_file.is_file() and c.reference_file.is_file() for c in cases(inputs))
    assert len(cases(inputs)) == 2 * len(pnp_stages.TARGETS)


def test_stages_that_do_not_fit_are_refused(pipeline, tmp_path):
    root, _, _ = pipeline
    manifest = read_json(root / "prepare-reference/manifest.json")
    inputs = Inputs({"prepare-reference": tmp_path, "prepare-target": root / "prepare-target"})
    write_json(tmp_path / "manifest.json", manifest | {"seeds": 5})
    with pytest.raises(ValueError, match="references have 5 seeds, targets 2"):
        cases(inputs)
    write_json(tmp_path / "manifest.json", manifest | {"names": ["factor"]})
    with pytest.raises(ValueError, match="'setup5' needs the reference 'genewise'"):
        cases(inputs)


def test_a_file_comes_back_with_all_that_is_known(pipeline):
    root, _, _ = pipeline
    reference = read_cohort(root / "prepare-reference/pbmc-0.h5ad")
    assert reference.counts is not None
    assert reference.signal is None
    assert 0 < reference.kept.sum() < reference.kept.size
    target = read_cohort(root / "prepare-target/setup1-0.h5ad")
    assert target.counts is None
    assert target.values.shape == target.signal.shape == target.oracle.shape == (60, 80)
    assert target.kept.all()
