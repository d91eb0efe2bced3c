from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tasks.conformal.regressor import METHODS, SHARES, fit_intervals
from tasks.tabular.splits import random_parts


def sample(n: int, seed: int):
    rng = np.random.default_rng(seed)
    x, z = rng.random((n, 2)), rng.random(n)
    y = x[:, 0] + 2 * z + rng.standard_normal(n) * (0.2 + z)
    masked = rng.random(n) < np.where(z > 0.7, 0.85, 0.02)
    return x, z, np.where(masked, np.nan, y), masked, y


def test_sets_cover_new_rows_and_naive_ones_do_not():
    coverage = {method: [] for method in METHODS}
    for seed in range(4):
        x, z, y, masked, _ = sample(6000, seed)
        fitted = fit_intervals(x, z, y, masked, seed=seed)
        new_x, _, _, _, new_y = sample(4000, 100 + seed)
        for method in METHODS:
            lo, hi = fitted.interval(new_x, method)
            coverage[method].append(((lo <= new_y) & (new_y <= hi)).mean())
    mean = {method: np.mean(values) for method, values in coverage.items()}
    assert mean["naive"] < 0.86
    assert mean["ui"] > 0.88
    assert mean["triply"] >= max(mean["ui"], mean["pcp"], mean["naive"])


def test_same_seed_same_intervals():
    x, z, y, masked, _ = sample(800, 0)
    first, second = (fit_intervals(x, z, y, masked, seed=3) for _ in "ab")
    assert first.thresholds == second.thresholds


def test_reference_rows_that_never_visit_the_corrupted_part_are_reported():
    x, z, y, _, _ = sample(2000, 0)
    y = np.where(np.isnan(y), 0.0, y)
    with pytest.warns(UserWarning, match=r"100% of the imputed rows have no pool"):
        fit_intervals(x, z, y, z > 0.7)


def test_frames_and_columns_are_rows_by_position():
    x, z, y, masked, _ = sample(800, 0)
    plain = fit_intervals(x, z, y, masked).thresholds
    index = pd.RangeIndex(800)[::-1]
    framed = fit_intervals(pd.DataFrame(x, index), pd.Series(z, index), y[:, None], pd.Series(masked, index)).thresholds
    assert framed == plain


def test_bad_input_is_refused():
    x, z, y, masked, _ = sample(800, 0)
    with pytest.raises(ValueError, match="alpha must lie in"):
        fit_intervals(x, z, y, masked, alpha=2.0)
    with pytest.raises(ValueError, match="training rows are corrupted"):
        fit_intervals(x, z, y, np.ones(800, bool))
    with pytest.raises(ValueError, match="x 800, z 800, y 800, masked 799"):
        fit_intervals(x, z, y, masked[:-1])
    with pytest.raises(ValueError, match="beta must lie in"):
        fit_intervals(x, z, y, masked, beta=0.5)
    with pytest.raises(ValueError, match=r"x must have shape \(n, d\), got \(800,\)"):
        fit_intervals(x[:, 0], z, y, masked)
    with pytest.raises(ValueError, match="y: 1 of"):
        fit_intervals(x, z, np.where(np.arange(800) == np.flatnonzero(~masked)[0], np.nan, y), masked)
    calibration = random_parts(800, SHARES, np.random.default_rng(0))["calibration"]
    with pytest.raises(ValueError, match="200 of 200 calibration rows are corrupted"):
        fit_intervals(x, z, y, np.isin(np.arange(800), calibration))
    with pytest.raises(KeyError, match="unknown method 'best'; known: naive, pcp, ui, triply"):
        fit_intervals(x, z, y, masked).interval(x, "best")
