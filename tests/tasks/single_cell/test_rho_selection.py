from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.single_cell.latent import fit_latent_space
from tasks.single_cell.pbmc import thin
from tasks.single_cell.priors import gaussian_prior
from tasks.single_cell.rho_selection import best_rho, hold_out, latent_rmse, score_rho, thinning_share, with_gaussian_noise
from tasks.single_cell.split_gibbs import GibbsParams


@given(st.integers(2, 500), st.floats(0.01, 0.99), st.integers(0, 99))
def test_something_is_held_out_and_something_is_left(cells, share, seed):
    mask = hold_out(cells, seed, share)
    assert 1 <= mask.sum() <= cells - 1
    assert abs(mask.sum() - share * cells) <= 1


def test_the_slice_depends_on_the_seed_alone():
    np.testing.assert_array_equal(hold_out(100, 3), hold_out(100, 3))
    assert (hold_out(100, 3) != hold_out(100, 4)).any()
    with pytest.raises(ValueError, match="at least two cells"):
        hold_out(1, 0)
    with pytest.raises(ValueError, match=r"share in \(0, 1\)"):
        hold_out(9, 0, 1.0)


def test_noise_has_the_variances_asked_for():
    noisy = with_gaussian_noise(np.zeros((40_000, 2)), [4.0, 0.25], np.random.default_rng(0))
    np.testing.assert_allclose(noisy.var(axis=0), [4.0, 0.25], rtol=0.03)


def test_thinning_adds_the_sampling_noise_of_the_target():
    rng = np.random.default_rng(0)
    mean, p = 40.0, 0.5
    full = rng.poisson(mean, 200_000)
    kept = thin(full[:, None], thinning_share(1000, 1000 * p), rng)[:, 0] / thinning_share(1000, 1000 * p)
    target = rng.poisson(mean * p, 200_000) / p
    assert np.var(kept - full) == pytest.approx(np.var(target), rel=0.03)
    with pytest.raises(ValueError, match="depths must be positive"):
        thinning_share(0, 3)


def test_the_choice_meets_the_noise_that_was_added():
    rng = np.random.default_rng(0)
    v = np.linalg.qr(rng.standard_normal((60, 2)))[0]
    clean_cells = 3 * rng.standard_normal((700, 2)) @ v.T + 0.3 * rng.standard_normal((700, 60))
    space, _ = fit_latent_space(clean_cells[:500], [str(i) for i in range(60)], 2)
    prior = gaussian_prior(space.project(clean_cells[:500]))
    clean = space.standardise(clean_cells[500:])
    noisy = clean + np.sqrt(1 + 3.0**2) * rng.standard_normal(clean.shape)
    grid = tuple(rho / space.scale for rho in (0.5, 1.5, 3.0, 6.0, 12.0))
    table = score_rho(space, prior, clean, [noisy], 1.0, GibbsParams(iterations=60, burn_in=10), 0, grid)
    assert best_rho(table) == pytest.approx(3.0)  # unit noise of the likelihood plus rho^2 is what was added
    np.testing.assert_allclose(table["rho"], [0.5, 1.5, 3.0, 6.0, 12.0])


def test_of_equal_errors_the_smaller_rho():
    table = pd.DataFrame({"rho": [1.0, 2.0, 4.0], "rmse": [0.3, 0.2, 0.2], "rmse_centred": [0.1, 0.2, 0.2]})
    assert best_rho(table) == 2.0
    assert best_rho(table, "rmse_centred") == 1.0


def test_a_shift_of_all_cells_does_not_count_in_the_centred_error():
    rng = np.random.default_rng(0)
    x = 3 * rng.standard_normal((300, 2)) @ rng.standard_normal((2, 20)) + rng.standard_normal((300, 20))
    space, _ = fit_latent_space(x, [str(i) for i in range(20)], 2)
    z, prior = space.standardise(x), gaussian_prior(space.project(x))
    shifted = z + 2.0 * space.loadings[:, 0]
    tables = [score_rho(space, prior, z, [y], 1.0, GibbsParams(iterations=6, burn_in=2), 0, (0.1,)) for y in (z, shifted)]
    assert tables[1]["rmse"][0] > 1.3 * tables[0]["rmse"][0]
    assert tables[1]["rmse_centred"][0] == pytest.approx(tables[0]["rmse_centred"][0], rel=0.05)


def test_rmse_by_hand():
    assert latent_rmse([[3.0, 0.0]], [[0.0, 4.0]]) == pytest.approx((25 / 2) ** 0.5)
