from __future__ import annotations

import numpy as np
import pytest

from tasks.single_cell.cohort_files import read_cohort
from tasks.single_cell.held_out_slice import noised_slice
from tasks.single_cell.prior_training import read_fitted


def of(root, family, target):
    reference = read_cohort(root / f"prepare-reference/{family}-0.h5ad")
    return reference, read_fitted(root / "warmstart", family, 0), read_cohort(root / f"prepare-target/{target}-0.h5ad")


@pytest.mark.parametrize(("target", "sd"), [("setup1", 1.0), ("setup4", 3.0)])
def test_expression_gets_the_targets_noise(pipeline, target, sd):
    root, _, _ = pipeline
    reference, fitted, cells = of(root, "factor", target)
    rows = noised_slice(reference, fitted, cells, seed=0)
    assert rows.clean.shape == rows.noisy.shape == (192, 80)  # 24 cells, eight times
    assert rows.expression is None
    added = (rows.noisy - rows.clean).var()
    expected = np.mean((sd / fitted.space.std) ** 2)
    assert added == pytest.approx(expected, rel=0.15)
    np.testing.assert_allclose(rows.latents, rows.clean @ fitted.space.loadings)


def test_counts_are_thinned(pipeline):
    root, _, _ = pipeline
    reference, fitted, cells = of(root, "pbmc", "pbmc_p30")
    rows = noised_slice(reference, fitted, cells, seed=0)
    assert rows.expression is not None
    held = reference.values[fitted.held][:, fitted.columns]
    copies = len(rows.expression) // len(held)
    assert ((rows.expression > 0) <= np.concatenate([held > 0] * copies)).all()
    assert (rows.expression > 0).sum() < 0.6 * copies * (held > 0).sum()
    np.testing.assert_allclose(rows.noisy, fitted.space.standardise(rows.expression))


def test_labels_are_not_looked_at(pipeline):
    root, _, _ = pipeline
    reference, fitted, cells = of(root, "pbmc", "pbmc_p30")
    blind = [type(c)(c.values, c.genes, np.full(len(c.values), "?"), c.counts, c.signal, c.oracle, c.kept) for c in (reference, cells)]
    a, b = noised_slice(reference, fitted, cells, 0), noised_slice(blind[0], fitted, blind[1], 0)
    np.testing.assert_array_equal(a.noisy, b.noisy)
