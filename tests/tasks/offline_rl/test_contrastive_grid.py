"""The grid over lambda and sigma: its range, with an interval that errs on the large side."""

import doctest

import numpy as np
import pytest

from tasks.offline_rl import contrastive_grid as module
from tasks.offline_rl.contrastive_grid import range_of_means

pytestmark = pytest.mark.xdist_group("contrastive")


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(module).failed == 0


def test_the_range_is_of_means_and_the_interval_contains_it():
    values = np.array([[0.5, 0.7, 0.6], [0.9, 0.7, 0.8], [0.6, 0.6, 0.6]])
    found = range_of_means("r", values, np.random.default_rng(0))
    assert found["r"] == pytest.approx(0.2)
    assert found["r.lo"] <= found["r"] <= found["r.hi"]
    assert found["r.n"] == 3


def test_noise_alone_makes_the_interval_lean_to_large_ranges():
    rng = np.random.default_rng(0)
    found = range_of_means("r", 0.5 + 0.1 * rng.normal(size=(6, 8)), np.random.default_rng(1))
    assert found["r.hi"] - found["r"] > found["r"] - found["r.lo"]
    with pytest.raises(ValueError, match="settings, seeds"):
        range_of_means("r", np.zeros(3), rng)


def test_the_stage_reports_every_cell_and_both_ranges(contrastive_smoke):
    metrics = contrastive_smoke[0].metrics["evaluate-robustness"]
    cells = {name: value for name, value in metrics.items() if name.endswith(".success.medium")}
    claimed = [cells[f"preforl_l{b}_s{s}.success.medium"] for b in (30, 50, 80) for s in (10, 30)]
    assert metrics["grid.success_range.medium"] == pytest.approx(max(claimed) - min(claimed))
    assert "grid_unbiased.success_range.medium" in metrics
