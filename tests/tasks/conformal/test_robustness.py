from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from tasks.common.formats import read_parquet
from tasks.common.node import Inputs, NullLog
from tasks.conformal import robustness
from tasks.conformal.synthetic import three_ways


def test_cells_of_the_union_and_their_golden_order(tmp_path):
    metrics = robustness.train(robustness.RobustnessParams(seeds=4, rows=8000), Inputs(), tmp_path, NullLog())
    cells = read_parquet(tmp_path / "cells.parquet")
    assert set(cells["cell"]) == set(robustness.CELLS)
    wide = cells.pivot_table(index=["seed", "cell"], columns="arm", values="coverage")
    assert (wide["union"] >= wide[["naive", "pcp", "ui"]].max(axis=1)).all()
    assert metrics["union_none.coverage.s2"] < 0.85
    assert min(metrics[f"union_{cell}.coverage.s2"] for cell in robustness.CELLS if cell != "none") > 0.885
    # A constant imputer without residual puts corrupted labels in the middle of a constant band: too small scores.
    assert metrics["ui_none.coverage.s2"] <= metrics["naive_none.coverage.s2"] + 0.01


def test_beta_above_alpha_is_refused_before_anything_runs():
    with pytest.raises(ValidationError, match="beta must lie in"):
        robustness.RobustnessParams(alpha=0.1, beta=0.2)


def test_the_useless_band_holds_nine_tenths_of_the_clean_labels_and_the_right_one_of_all():
    sample = three_ways(20_000, np.random.default_rng(1))
    lower, upper = robustness._band(sample, np.arange(10_000), right=False, alpha=0.1)
    assert len(set(lower)) == len(set(upper)) == 1
    y, clean = sample.y[:10_000], ~sample.masked[:10_000]
    assert ((y < lower[0]) & clean).sum() / clean.sum() == pytest.approx(0.05, abs=1e-3)
    assert ((y > upper[0]) & clean).sum() / clean.sum() == pytest.approx(0.05, abs=1e-3)
    lower, upper = robustness._band(sample, np.arange(10_000), right=True, alpha=0.1)
    assert (sample.y < lower).mean() == pytest.approx(0.05, abs=0.006)
    assert (sample.y > upper).mean() == pytest.approx(0.05, abs=0.006)
