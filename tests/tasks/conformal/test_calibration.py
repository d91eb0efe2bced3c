from __future__ import annotations

import conformal_stages
import numpy as np
import pytest
from pydantic import ValidationError

from tasks.conformal.calibration import ARMS, CalibrateParams, Split, calibrate
from tasks.conformal.evaluation import arm_sets, score_sets
from tasks.conformal.imputation import ResidualPools
from tasks.conformal.intervals import cqr_scores
from tasks.conformal.pcp import pcp_threshold
from tasks.conformal.quantiles import conformal_quantile, weighted_quantile
from tasks.conformal.weights import likelihood_ratio_weights

PARAMS = CalibrateParams()


def test_every_arm_is_described_and_found():
    split = conformal_stages.one_split()
    noisy = split._replace(calibration=split.calibration.assign(observed=split.calibration["y"] + split.calibration["masked"]))
    found = calibrate(noisy, PARAMS, observed=True).thresholds
    assert set(found) == set(ARMS)
    assert set(calibrate(conformal_stages.one_split(), PARAMS).thresholds) == set(ARMS) - {"observed"}


def test_without_corruption_all_imputing_methods_are_the_oracle():
    split = conformal_stages.one_split(share=0.0)
    found = calibrate(split, PARAMS).thresholds
    same = {found[arm] for arm in ("naive", "clean_oracle", "naive_imp", "ui", "ui_global", "ui_linear", "ui_blind")}
    assert len(same) == 1
    assert found["pcp_true"] >= found["naive"]
    assert calibrate(split, PARAMS).facts["fallback_share"] == 0.0


def test_thresholds_by_hand():
    split = conformal_stages.one_split()
    cal = split.calibration
    scores = cqr_scores(cal["y"], cal["lower"], cal["upper"])
    found = calibrate(split, PARAMS)
    assert found.thresholds["clean_oracle"] == conformal_quantile(scores, 0.1)
    assert found.thresholds["naive"] == conformal_quantile(scores[~cal["masked"]], 0.1)
    labels = np.where(cal["masked"], cal["impute"], cal["y"])
    assert found.thresholds["naive_imp"] == conformal_quantile(cqr_scores(labels, cal["lower"], cal["upper"]), 0.1)
    w = likelihood_ratio_weights(cal["probability"])
    w_test = (1 - cal["probability"].mean()) / (1 - split.test["probability"])
    clean = ~cal["masked"].to_numpy()
    np.testing.assert_array_equal(found.with_z, weighted_quantile(scores[clean], w[clean], w_test, 0.9))


@pytest.mark.parametrize(
    ("arm", "column", "clusters", "neighbours"),
    [
        ("ui", "impute", 20, 20),
        ("ui_global", "impute", 1, 20),
        ("ui_clusters_5", "impute", 5, 20),
        ("ui_clusters_50", "impute", 50, 20),
        ("ui_neighbours_5", "impute", 20, 5),
        ("ui_linear", "impute_linear", 20, 20),
        ("ui_blind", None, 1, 20),
    ],
)
def test_every_imputing_arm_draws_from_the_pools_it_is_named_after(arm, column, clusters, neighbours):
    split = conformal_stages.one_split(seed=3)
    split = split._replace(**{part: getattr(split, part).assign(impute_linear=1.5) for part in ("reference", "calibration")})
    ref, cal = split.reference, split.calibration
    guess = (lambda rows: rows[column].to_numpy()) if column else lambda rows: np.zeros(len(rows))
    masked = cal["masked"].to_numpy()
    pools = ResidualPools(ref["z_0"], ref["y"] - guess(ref), ref["masked"], clusters, seed=3, neighbours=neighbours)
    uniforms = np.random.default_rng([3, 6]).random(int(cal["row"].max()) + 1)[cal["row"]]
    labels = cal["y"].to_numpy().copy()
    labels[masked] = guess(cal)[masked] + pools.draw(cal["z_0"][masked], uniforms[masked])
    expected = conformal_quantile(cqr_scores(labels, cal["lower"], cal["upper"]), 0.1)
    assert calibrate(split, PARAMS).thresholds[arm] == expected


@pytest.mark.parametrize(
    ("arm", "weights", "beta"),
    [
        ("pcp_true", "true", 0.005),
        ("pcp_est", "est", 0.005),
        ("pcp_const", "const", 0.005),
        ("pcp_beta_020", "true", 0.02),
        ("pcp_beta_050", "true", 0.05),
    ],
)
def test_every_weighted_arm_has_its_weights_and_beta(arm, weights, beta):
    split = conformal_stages.one_split(seed=3, n=9000)
    cal = split.calibration
    masked, p = cal["masked"].to_numpy(), cal["probability"].to_numpy()
    estimated = np.clip(cal["mask_probability"] + masked.mean() - cal["mask_probability"].mean(), 0, 0.99)
    w = {"true": 1 / (1 - p), "est": 1 / (1 - estimated), "const": np.ones(masked.size)}[weights]
    scores = cqr_scores(cal["y"], cal["lower"], cal["upper"])
    assert calibrate(split, PARAMS).thresholds[arm] == pcp_threshold(scores, w, masked, 0.1, beta)


def test_true_labels_of_corrupted_rows_are_never_read():
    split = conformal_stages.one_split()
    reference, cal, test, seed = split
    lied = cal.assign(y=np.where(cal["masked"], 1e6, cal["y"]))
    lied_reference = reference.assign(y=np.where(reference["masked"], 1e6, reference["y"]))
    honest = calibrate(split, PARAMS).thresholds
    other = calibrate(Split(lied_reference, lied, test, seed), PARAMS).thresholds
    assert {arm for arm in honest if honest[arm] != other[arm]} == {"clean_oracle"}


def test_order_of_calibration_rows_changes_nothing():
    split = conformal_stages.one_split()
    order = np.random.default_rng(0).permutation(len(split.calibration))
    shuffled = split._replace(calibration=split.calibration.iloc[order].reset_index(drop=True))
    assert calibrate(shuffled, PARAMS).thresholds == pytest.approx(calibrate(split, PARAMS).thresholds, abs=1e-12)


def test_uncertain_imputation_covers_where_naive_sets_and_naive_imputation_do_not():
    coverage = {arm: [] for arm in ("naive", "naive_imp", "ui", "triply", "pcp_true")}
    for seed in range(12):
        split = conformal_stages.one_split(seed, n=4500)
        found = calibrate(split, PARAMS)
        scored = score_sets(split, arm_sets(split, found.thresholds, found.with_z)).set_index("arm")["coverage"]
        for arm, values in coverage.items():
            values.append(scored[arm])
    mean = {arm: np.mean(values) for arm, values in coverage.items()}
    assert mean["naive"] < 0.86
    assert mean["naive_imp"] < 0.885
    assert mean["ui"] > 0.885
    assert mean["pcp_true"] > 0.895
    assert mean["triply"] >= mean["ui"]


def test_theorem_3_agrees_with_the_thresholds_on_every_split():
    for seed in range(20):
        facts = calibrate(conformal_stages.one_split(seed), PARAMS).facts
        assert facts["theorem3_says_larger"] == facts["est_threshold_is_larger"]


def test_parameters_out_of_range_are_refused():
    with pytest.raises(ValidationError, match=r"beta must lie in \(0, alpha\) = \(0, 0.1\), got 0.2"):
        CalibrateParams(beta=0.2)
    with pytest.raises(ValidationError, match="greater than 0"):
        CalibrateParams(alpha=0.0)
    with pytest.raises(ValidationError, match="Extra inputs"):
        CalibrateParams(gamma=1.0)  # type: ignore[call-arg]
