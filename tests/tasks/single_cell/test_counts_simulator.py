from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.single_cell.counts_simulator import CountSettings, draw_cells, group_profiles, simulate_counts

PLAIN = {"bcv": 0.0, "dropout_mid": None}


def test_without_extra_noise_counts_are_poisson_around_the_expected():
    cohort = simulate_counts(4000, 2, 0, CountSettings(genes=50, groups=2, **PLAIN))
    gap = (cohort.reference - cohort.expected_reference) / np.sqrt(cohort.expected_reference)
    often = cohort.expected_reference.mean(axis=0) > 1
    np.testing.assert_allclose(gap[:, often].mean(axis=0), 0.0, atol=0.08)
    np.testing.assert_allclose(gap[:, often].std(axis=0), 1.0, atol=0.08)


def test_libraries_are_log_normal_and_the_target_is_shallower():
    s = CountSettings(genes=200, library_location=8.0, library_scale=0.3, target_depth=0.25, **PLAIN)
    cohort = simulate_counts(3000, 3000, 1, s)
    logs = np.log(cohort.expected_reference.sum(axis=1))
    assert logs.mean() == pytest.approx(8.0, abs=0.02)
    assert logs.std() == pytest.approx(0.3, abs=0.02)
    assert np.log(cohort.expected_target.sum(axis=1)).mean() == pytest.approx(8.0 + np.log(0.25), abs=0.02)
    np.testing.assert_allclose(
        cohort.expected_reference[0] / cohort.expected_reference[0].sum(), cohort.profiles[cohort.labels_reference[0]], rtol=1e-4
    )


def test_biological_variation_has_the_stated_coefficient():
    # Gamma-Poisson: variance = m + (cv m)^2 with cv = bcv (1 + 1/sqrt m), up to the inverse chi-square factor f / (f - 2).
    s = CountSettings(genes=2, groups=2, bcv=0.4, bcv_freedom=1e6, dropout_mid=None, library_scale=0.0, library_location=np.log(200.0))
    counts, labels, expected = draw_cells(np.array([[0.5, 0.5], [0.5, 0.5]]), 20_000, 1.0, s, np.random.default_rng(0))
    m, cv = 100.0, 0.4 * (1 + 1 / 10)
    np.testing.assert_allclose(expected, m, rtol=1e-4)
    assert counts.mean() == pytest.approx(m, rel=0.01)
    assert counts.var() == pytest.approx(m + (cv * m) ** 2, rel=0.05)
    assert labels.mean() == pytest.approx(0.5, abs=0.02)


def test_a_tenth_of_the_genes_differs_between_groups():
    s = CountSettings(genes=20_000, groups=2)
    profiles = group_profiles(s, np.random.default_rng(0))
    np.testing.assert_allclose(profiles.sum(axis=1), 1.0)
    ratio = np.log(profiles[0] / profiles[1])
    # Neither group changes a gene with probability 0.9^2; then the ratio is that of the two totals alone.
    assert (np.abs(ratio - np.median(ratio)) < 1e-9).mean() == pytest.approx(0.81, abs=0.01)
    flat = group_profiles(CountSettings(genes=50, groups=2, de_share=0.0), np.random.default_rng(0))
    np.testing.assert_allclose(flat[0], flat[1])


def test_gene_means_are_gamma():
    s = CountSettings(genes=20_000, groups=2, de_share=0.0, mean_shape=0.6)
    share = group_profiles(s, np.random.default_rng(0))[0] * 20_000  # mean 1, squared coefficient of variation 1 / shape
    assert share.var() == pytest.approx(1 / 0.6, rel=0.05)


def test_dropout_removes_half_at_the_midpoint_and_more_below():
    s = CountSettings(
        genes=3, groups=2, bcv=0.0, dropout_mid=np.log(50.0), dropout_slope=-2.0, library_scale=0.0, library_location=np.log(555.0)
    )
    profile = np.array([[5.0, 50.0, 500.0]] * 2) / 555
    counts, _, _ = draw_cells(profile, 20_000, 1.0, s, np.random.default_rng(0))
    # Logistic: at a tenth of the midpoint 1 / (1 + exp(-2 ln 10)) = 0.990 are dropped, at ten times 0.0099.
    assert (counts == 0).mean(axis=0) == pytest.approx([0.990, 0.5, 0.0099], abs=0.012)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_counts_are_whole_no_cell_is_empty_and_a_seed_repeats_itself(seed):
    shallow = CountSettings(genes=30, groups=3, library_location=1.0, dropout_mid=2.0)
    cohort = simulate_counts(20, 15, seed, shallow)
    for counts in (cohort.reference, cohort.target):
        assert (counts == np.rint(counts)).all()
        assert (counts >= 0).all()
        assert (counts.sum(axis=1) > 0).all()
        assert counts.dtype == np.float32
    again = simulate_counts(50, 15, seed, shallow)
    np.testing.assert_array_equal(again.target, cohort.target)
    np.testing.assert_array_equal(again.profiles, cohort.profiles)
    assert again.reference.shape == (50, 30)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": 1}, "groups must be at least 2, got 1"),
        ({"genes": 0}, "genes must be at least 2, got 0"),
        ({"mean_shape": 0.0}, "mean_shape must be positive, got 0.0"),
        ({"target_depth": -1.0}, "target_depth must be positive"),
        ({"bcv": -0.1}, "bcv must be >= 0, got -0.1"),
        ({"de_share": 1.5}, r"de_share must lie in \[0, 1\], got 1.5"),
        ({"dropout_slope": 1.0}, "dropout_slope must be negative"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        CountSettings(**change)


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="need at least 2 cells on both sides and a seed >= 0, got 1, 5 and 0"):
        simulate_counts(1, 5, 0)
