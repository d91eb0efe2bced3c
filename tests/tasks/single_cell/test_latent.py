from __future__ import annotations

import numpy as np
import pytest

from tasks.single_cell.latent import LEAST_VARIANCE, LatentSpace, fit_latent_space


def cells(n=60, d=12, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 3)) @ rng.standard_normal((3, d)) * 2 + rng.standard_normal((n, d)) + 5


def names(d=12):
    return [f"g{j}" for j in range(d)]


def test_scaler_and_basis_against_an_eigendecomposition():
    x = cells()
    space, kept = fit_latent_space(x, names(), 3, clip=1e6)
    assert kept.all()
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    values, vectors = np.linalg.eigh(z.T @ z / len(z))
    top = vectors[:, ::-1][:, :3]
    np.testing.assert_allclose(space.loadings @ space.loadings.T, top @ top.T, atol=1e-8)
    np.testing.assert_allclose(space.loadings.T @ space.loadings, np.eye(3), atol=1e-10)
    np.testing.assert_allclose(space.explained, values[::-1][:3])
    np.testing.assert_allclose(space.project(x), z @ space.loadings)
    assert space.scale == pytest.approx(np.sqrt(np.square(z @ space.loadings).mean()))


def test_signs_do_not_depend_on_the_solvers_start():
    x = cells()
    a, b = (fit_latent_space(x, names(), 3, seed=s)[0].loadings for s in (0, 1))
    np.testing.assert_allclose(a, b, atol=1e-8)
    assert (a[np.abs(a).argmax(axis=0), np.arange(3)] > 0).all()


def test_the_references_scaler_is_used_for_everybody():
    x = cells()
    space, _ = fit_latent_space(x, names(), 2)
    shifted = space.standardise(x + 3 * x.std(axis=0))
    np.testing.assert_allclose(shifted.mean(axis=0), 3, atol=0.2)


def test_large_values_are_clipped():
    x = cells()
    space, _ = fit_latent_space(x, names(), 2, clip=2.5)
    far = x[:1].copy()
    far[0, 4] = 1e6
    assert space.standardise(far)[0, 4] == 2.5
    assert np.abs(space.standardise(x)).max() <= 2.5


def test_genes_that_do_not_vary_are_dropped():
    x = cells()
    x[:, 4] = 0.3
    space, kept = fit_latent_space(x, names(), 2)
    assert np.flatnonzero(~kept).tolist() == [4]
    assert "g4" not in space.genes
    assert len(space.genes) == 11


def test_residual_variance_finds_the_noise_of_every_gene():
    rng = np.random.default_rng(0)
    v = np.linalg.qr(rng.standard_normal((40, 2)))[0]
    sd = np.exp(0.5 * rng.standard_normal(40))
    x = 4 * rng.standard_normal((4000, 2)) @ v.T + sd * rng.standard_normal((4000, 40))
    space, _ = fit_latent_space(x, names(40), 2)
    np.testing.assert_allclose(space.residual, (sd / x.std(axis=0)) ** 2, rtol=0.25)
    np.testing.assert_array_equal(space.noise("gene"), space.residual)
    assert set(space.noise("identity")) == {1.0}
    np.testing.assert_allclose(space.noise("scalar"), space.residual.mean())


def test_a_gene_that_is_explained_fully_keeps_a_little_noise():
    rng = np.random.default_rng(0)
    space, _ = fit_latent_space(rng.standard_normal((50, 1)) @ np.ones((1, 5)), names(5), 1)
    np.testing.assert_allclose(space.residual, LEAST_VARIANCE)


def test_a_basis_of_other_cells_keeps_the_scaler():
    x, y = cells(), cells(seed=4)
    space, _ = fit_latent_space(x, names(), 3)
    other = space.with_basis_of(y)
    np.testing.assert_array_equal(other.mean, space.mean)
    z = space.standardise(y)
    top = np.linalg.svd(z, full_matrices=False)[2][:3].T
    np.testing.assert_allclose(other.loadings @ other.loadings.T, top @ top.T, atol=1e-8)
    assert not np.allclose(other.loadings, space.loadings)


def test_saved_and_read_it_is_the_same(tmp_path):
    space, _ = fit_latent_space(cells(), names(), 3)
    space.save(tmp_path)
    again = LatentSpace.load(tmp_path)
    assert again.genes == space.genes
    for name in ("mean", "std", "loadings", "explained", "residual"):
        np.testing.assert_array_equal(getattr(again, name), getattr(space, name))
    assert (again.scale, again.clip, again.k) == (space.scale, space.clip, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": np.full((4, 12), np.nan)}, "finite matrix"),
        ({"genes": ["g"] * 12}, "1 distinct"),
        ({"genes": names(3)}, "got 3 names"),
        ({"k": 0}, r"k must lie in 1\.\.11"),
        ({"k": 12}, "12 genes that vary, got 12"),
        ({"values": cells(3), "k": 3}, "for 3 cells"),
        ({"clip": 0.0}, "clip must be positive"),
    ],
)
def test_impossible_references_are_refused(change, message):
    given = {"values": cells(), "genes": names(), "k": 2} | change
    with pytest.raises(ValueError, match=message):
        fit_latent_space(**given)


def test_cells_with_other_genes_are_refused():
    space, _ = fit_latent_space(cells(), names(), 2)
    with pytest.raises(ValueError, match="12 genes as columns, got shape"):
        space.project(np.zeros((3, 11)))
