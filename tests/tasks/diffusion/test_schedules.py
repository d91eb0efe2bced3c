from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.diffusion.schedules import SCHEDULES, check_rho, last_level_below, noise_to_signal, signal_levels, signal_share


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("levels", [21, 64, 256, 1000])
def test_signal_falls_from_nearly_all_to_nearly_none(schedule, levels):
    abar = signal_levels(schedule, levels)
    assert abar.shape == (levels,)
    assert (np.diff(abar) < 0).all()
    assert abar[0] > 0.95 if levels < 64 else abar[0] > 0.99
    assert 0 < abar[-1] < 0.1


def test_linear_at_a_thousand_levels_is_the_usual_one():
    betas = np.linspace(1e-4, 0.02, 1000)
    slow = []
    left = 1.0
    for beta in betas:
        left *= 1 - beta
        slow.append(left)
    np.testing.assert_allclose(signal_levels("linear", 1000), slow, rtol=1e-12)


def test_step_variances_run_between_the_same_ends_by_different_laws():
    levels = 100
    betas = {}
    for schedule in ("linear", "quadratic", "exponential", "sigmoid"):
        abar = np.concatenate([[1.0], signal_levels(schedule, levels)])
        betas[schedule] = 1 - abar[1:] / abar[:-1]
        assert betas[schedule][0] == pytest.approx(0.1 / levels, rel=0.6)
        assert betas[schedule][-1] == pytest.approx(20 / levels, rel=0.01)
    np.testing.assert_allclose(np.diff(np.sqrt(betas["quadratic"]), 2), 0, atol=1e-9)
    np.testing.assert_allclose(np.diff(np.log(betas["exponential"]), 2), 0, atol=1e-9)
    np.testing.assert_allclose(np.diff(betas["linear"], 2), 0, atol=1e-9)
    assert betas["sigmoid"][50] == pytest.approx((0.1 + 20) / 2 / levels, rel=0.1)


@given(st.floats(0.01, 200))
def test_share_and_ratio_are_inverse(rho):
    assert noise_to_signal(signal_share(rho)) == pytest.approx(rho)


@settings(deadline=None)
@given(st.sampled_from(SCHEDULES), st.floats(0.1, 3.0))
def test_the_last_level_below_rho_by_a_loop(schedule, rho):
    abar = signal_levels(schedule, 256)
    slow = max(t for t in range(256) if abar[t] >= 1 / (1 + rho**2))
    assert last_level_below(abar, rho) == slow


def test_a_level_with_exactly_the_ratio_counts():
    assert last_level_below(np.array([0.9, 0.5, 0.1]), 1.0) == 1


@pytest.mark.parametrize("rho", [0.0, -1.0])
def test_rho_must_be_positive(rho):
    with pytest.raises(ValueError, match="rho must be positive"):
        check_rho(signal_levels("linear", 256), rho)


def test_rho_beyond_the_last_level_is_refused_with_the_largest():
    abar = signal_levels("linear", 256)
    largest = np.sqrt(1 / abar[-1] - 1)
    check_rho(abar, largest * 0.999)
    with pytest.raises(ValueError, match=f"at most {largest:.4g}"):
        check_rho(abar, largest * 1.001)
    with pytest.raises(ValueError, match="first level"):
        last_level_below(abar, 1e-4)


def test_unknown_schedules_and_too_few_levels_are_refused():
    with pytest.raises(ValueError, match="linear, cosine"):
        signal_levels("cubic", 100)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="more than 20, got 20"):
        signal_levels("linear", 20)
