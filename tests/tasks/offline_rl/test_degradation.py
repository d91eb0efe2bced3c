"""Degraded actions and borrowed ones, against brute force."""

import doctest
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree

from tasks.offline_rl import degradation as module
from tasks.offline_rl.degradation import degrade_actions, nearest_failures, nearest_failures_chunked
from tasks.offline_rl.preference import gaussian_log_prob, preference_loss, segment_score
from tasks.offline_rl.transitions import Standardiser


def slow_nearest(queries, failures):
    return [min(range(len(failures)), key=lambda j: (float(((q - failures[j]) ** 2).sum()), j)) for q in queries]


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(module).failed == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 999), st.integers(1, 40), st.integers(1, 4))
def test_the_tree_and_the_blocks_agree_with_brute_force_on_a_lattice_full_of_ties(seed, m, d):
    rng = np.random.default_rng(seed)
    queries, failures = rng.integers(-2, 3, (15, d)) / 2.0, rng.integers(-2, 3, (m, d)).astype(float)
    expected = slow_nearest(queries, failures)
    assert nearest_failures(queries, failures).tolist() == expected
    assert nearest_failures_chunked(queries, failures, chunk=7).tolist() == expected


def test_without_ties_it_is_the_tree():
    rng = np.random.default_rng(0)
    queries, failures = rng.normal(size=(200, 6)), rng.normal(size=(500, 6))
    np.testing.assert_array_equal(nearest_failures(queries, failures), cKDTree(failures).query(queries)[1])
    np.testing.assert_array_equal(nearest_failures_chunked(queries, failures, chunk=64), cKDTree(failures).query(queries)[1])


def test_the_neighbour_does_not_depend_on_the_order_of_failures():
    rng = np.random.default_rng(1)
    queries, failures, order = rng.normal(size=(50, 3)), rng.normal(size=(80, 3)), rng.permutation(80)
    np.testing.assert_array_equal(order[nearest_failures(queries, failures[order])], nearest_failures(queries, failures))


def test_standardised_neighbours_do_not_depend_on_the_units_and_a_constant_column_does_no_harm():
    rng = np.random.default_rng(2)
    rows = np.hstack([rng.normal(size=(120, 3)), np.full((120, 1), 4.0)])

    def found(x):
        z = Standardiser.of(x)(x)
        return nearest_failures(z[:40], z[40:])

    np.testing.assert_array_equal(found(rows), found(rows * [1.0, 1000.0, 0.01, 7.0]))
    assert np.isfinite(Standardiser.of(rows)(rows)).all()


def test_a_failure_in_the_same_state_lends_its_own_action():
    failures = np.random.default_rng(3).normal(size=(30, 4))
    assert nearest_failures(failures[[11]], failures).tolist() == [11]


def test_noise_has_the_asked_spread_and_clipping_keeps_the_box():
    action, noise = torch.zeros(20_000, 2), torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0))
    assert degrade_actions(action, 0.3, noise).std().item() == pytest.approx(0.3, rel=0.02)
    clipped = degrade_actions(torch.ones(20_000, 2), 0.3, noise, (-1.0, 1.0))
    assert clipped.max().item() == 1.0
    assert (clipped == 1).float().mean().item() == pytest.approx(0.5, abs=0.02)  # why clipping is off: half the negatives are gone


@pytest.mark.parametrize("bias", [1.0, 0.6])
def test_without_noise_the_gradient_is_that_of_the_positives_scaled(bias):
    mean = torch.tensor([[0.1, -0.2]], dtype=torch.float64, requires_grad=True)
    action, alpha = torch.tensor([[0.4, 0.3]], dtype=torch.float64), 0.7
    negative = degrade_actions(action, 0.0, torch.ones_like(action))
    good, bad = (segment_score(gaussian_log_prob(mean, x, 0.5)[None], alpha) for x in (action, negative))
    loss = preference_loss(good, bad, bias).sum()
    (found,) = torch.autograd.grad(loss, mean, retain_graph=True)
    (of_good,) = torch.autograd.grad(good.sum(), mean)
    scale = -torch.sigmoid((bias * bad - good).detach()) * (1 - bias)
    torch.testing.assert_close(found, scale * of_good)
    if bias == 1.0:
        assert loss.item() == pytest.approx(math.log(2))
        assert found.abs().max().item() < 1e-12


def test_bad_values_are_refused():
    with pytest.raises(ValueError, match=r"sigma must be at least 0, got -0\.1"):
        degrade_actions(torch.zeros(1, 2), -0.1, torch.zeros(1, 2))
    with pytest.raises(ValueError, match="noise must have"):
        degrade_actions(torch.zeros(1, 2), 0.1, torch.zeros(1, 3))
    for queries, failures in ((np.zeros((2, 3)), np.zeros((0, 3))), (np.zeros((2, 3)), np.zeros((4, 2)))):
        for search in (nearest_failures, nearest_failures_chunked):
            with pytest.raises(ValueError, match="m >= 1"):
                search(queries, failures)
