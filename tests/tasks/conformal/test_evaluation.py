from __future__ import annotations

import warnings

import conformal_stages
import numpy as np
import pandas as pd
import pytest

from flows.uncertain_imputation import paper
from tasks.conformal import figures
from tasks.conformal.calibration import CalibrateParams, Split, calibrate
from tasks.conformal.evaluation import arm_sets, coverage_by_decile, metrics_of, score_sets

PARAMS = CalibrateParams()


def test_figures_are_drawn(smoke):
    _, _, log = smoke
    assert set(log.figures) == set(paper.figures)
    assert all(width <= 12 and height <= 6 for _, (width, height) in log.figures.values())


def test_coverage_by_z_by_hand():
    # Labels are their row number and z falls with it; the set [0, 11.5] holds the first 12 of 20 rows, which have the largest z.
    test = pd.DataFrame({"y": np.arange(20.0), "z_0": -np.arange(20.0)})
    split = Split(test, test, test, 0)
    sets = {arm: (np.zeros(20), np.full(20, 11.5)) for arm in ("naive", "ui")}
    sets["naive"] = (np.append(np.zeros(19), -np.inf), np.append(np.full(19, 11.5), np.inf))  # one infinite set, of the last row
    found = score_sets(split, sets).set_index("arm")
    columns = ["coverage", "coverage_high_z", "coverage_low_z", "length", "infinite_share"]
    assert found.loc["ui", columns].tolist() == [12 / 20, 1.0, 7 / 15, 11.5, 0.0]
    assert found.loc["naive", columns].tolist() == pytest.approx([13 / 20, 1.0, 8 / 15, 11.5, 1 / 20])
    deciles = coverage_by_decile(split, sets)
    assert deciles["decile"].tolist() == list(range(10))
    assert deciles["ui"].tolist() == [0.0] * 4 + [1.0] * 6
    assert deciles["naive"].tolist() == [0.5] + [0.0] * 3 + [1.0] * 6


def test_figures_without_real_sets_or_finite_lengths():
    scores = pd.DataFrame(
        [
            {"arm": arm, "data": "ames", "split": split, "coverage": 1.0, "length": np.nan if arm == "pcp_est" else 1.0}
            for arm in figures.LABELS
            for split in range(3)
        ]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for real in (["ames"], []):
            for draw in (figures.ablation, figures.coverage_boxes, figures.length_boxes):
                assert len(draw(scores, real).axes) >= 1


def test_infinite_sets_are_counted_and_left_out_of_lengths():
    split = conformal_stages.one_split()
    found = calibrate(split, PARAMS)
    sets = arm_sets(split, found.thresholds | {"pcp_est": np.inf}, found.with_z)
    scored = score_sets(split, sets).set_index("arm")
    assert scored.loc["pcp_est", "infinite_share"] == 1.0
    assert scored.loc["triply", "coverage"] == 1.0
    assert np.isnan(scored.loc["pcp_est", "length"])
    table = score_sets(split, sets).assign(data="ames", split=0)
    metrics = metrics_of(table, ["ames"])
    assert all(np.isfinite(v) for v in metrics.values())
    assert "pcp_est.length.ames" not in metrics
    assert metrics["pcp_est.infinite_share.pooled"] == 1.0
    assert metrics["triply.below_parts.all"] == 0.0
