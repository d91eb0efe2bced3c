"""Statistics of the comparison, on tables written by hand."""

from __future__ import annotations

import doctest

import numpy as np
import pandas as pd
import pytest

from tasks.common.formats import read_parquet, write_parquet
from tasks.common.node import Inputs, NullLog
from tasks.common.statistics import paired
from tasks.gaussian_process import evaluation
from tasks.gaussian_process.evaluation import EvaluateParams, best_sigma, collect, comparisons, early_area, evaluate, gaps, summaries

PARAMS = EvaluateParams()
ELBOS = {"ddvi": [-1.0, -1.2], "dbvi": [-0.8, -0.9], "frozen": [-1.1, -1.1], "dsvi": [-0.5, -0.6], "mean_vector": [-0.9, -1.0]}


def runs(elbos=ELBOS, names=("concrete", "boston")) -> pd.DataFrame:
    rows = []
    for arm, values in elbos.items():
        for name in names:
            for seed, value in enumerate(values):
                shift = 0.1 * (name == "boston")
                rows += [
                    (arm, name, seed, "elbo", value - shift),
                    (arm, name, seed, "rmse", 5 - value),
                    (arm, name, seed, "nll", 3 - value),
                ]
                rows += [(arm, name, seed, "rmse_sd", 0.5 - value / 10)]
                if arm != "dsvi":
                    rows += [(arm, name, seed, f"{q}_{layer}", layer * 10.0) for q in ("path", "end", "route") for layer in (1, 2)]
                    rows += [(arm, name, seed, "center_norm_1", 1.0), (arm, name, seed, "kl", 60.0)]
    return pd.DataFrame(rows, columns=["arm", "data", "seed", "quantity", "value"])


def curves(elbos=ELBOS) -> pd.DataFrame:
    rows = []
    for arm, values in elbos.items():
        for name in ("concrete", "boston"):
            for seed, value in enumerate(values):
                for step in (10, 20, 30, 40, 50):
                    rows += [(arm, name, seed, step, "rmse", 5 - value + 50 / step), (arm, name, seed, step, "elbo", value)]
    return pd.DataFrame(rows, columns=["arm", "data", "seed", "step", "quantity", "value"])


def test_examples():
    assert doctest.testmod(evaluation).failed == 0


def test_area_is_the_mean_log_error_of_the_early_marks():
    curve = pd.DataFrame({"seed": [0] * 5 + [1] * 5, "step": [10, 20, 30, 40, 50] * 2, "value": [8.0, 2, 99, 99, 99, 4, 4, 99, 99, 99]})
    np.testing.assert_allclose(early_area(curve, 0.4), [np.log(4.0), np.log(4.0)])


def test_a_share_before_the_first_mark_is_refused():
    curve = pd.DataFrame({"seed": 0, "step": [50, 100], "value": [2.0, 1.0]})
    with pytest.raises(ValueError, match=r"first mark, step 50 of 100, got 0\.4"):
        early_area(curve, 0.4)


def test_derived_quantities_by_hand():
    table = collect(runs(), curves(), PARAMS)
    assert table["dbvi", "path_last", "concrete"].tolist() == [20.0, 20.0]
    assert table["dbvi", "route", "concrete"].tolist() == [30.0, 30.0]
    assert table["dbvi", "elbo", "pooled"] == pytest.approx([-0.85, -0.95])
    assert ("dsvi", "path_last", "concrete") not in table
    # DDVI ends at 6 + 1 and 6.2 + 1; DBVI's error is 5.8 + 50/step and 5.9 + 50/step
    assert table["dbvi", "steps_to_ddvi", "concrete"].tolist() == [50.0, 40.0]
    assert table["ddvi", "steps_to_ddvi", "concrete"].tolist() == [50.0, 50.0]


def test_differences_are_paired_by_seed():
    metrics = comparisons(collect(runs(), curves(), PARAMS))
    expected = paired("x", ELBOS["dbvi"], ELBOS["ddvi"])
    name = "dbvi.elbo.concrete-ddvi.elbo.concrete"
    assert metrics[name] == pytest.approx(expected["x"])
    assert metrics[f"{name}.lo"] == pytest.approx(expected["x.lo"])
    assert "frozen.rmse.boston-ddvi.rmse.boston" in metrics
    assert "dbvi.elbo.pooled-mean_vector.elbo.pooled" in metrics
    assert "ddvi.elbo.concrete-ddvi.elbo.concrete" not in metrics


def test_baseline_with_fewer_seeds_is_paired_with_the_first_ones():
    shorter = ELBOS | {"ipvi": [-0.7]}
    metrics = comparisons(collect(runs(shorter), curves(shorter), PARAMS))
    assert metrics["dbvi.rmse.concrete-ipvi.rmse.concrete"] == pytest.approx(5.8 - 5.7)
    assert ("ipvi", "elbo", "pooled") in collect(runs(shorter), curves(shorter), PARAMS)


def test_gaps_and_how_they_differ():
    elbos = {
        "dbvi_base": [3.0, 4.0],
        "ddvi_base": [2.0, 2.5],
        "dbvi_sigma_1": [2.1, 3.0],
        "ddvi_sigma_1": [2.0, 3.1],
        "dsvi_base": [4.0, 4.0],
    }
    metrics = gaps(collect(runs(elbos, ("concrete",)), curves(elbos), PARAMS), "concrete")
    assert metrics["gap_base.elbo.concrete"] == pytest.approx(1.25)
    assert metrics["gap_sigma_1.elbo.concrete"] == pytest.approx(0.0)
    assert metrics["gap_base.elbo.concrete-gap_sigma_1.elbo.concrete"] == pytest.approx(1.25)
    assert metrics["gap_sigma_1.elbo.concrete-gap_base.elbo.concrete"] == pytest.approx(-1.25)


def test_each_method_has_its_own_best_sigma():
    elbos = {"dbvi_base": [3.0, 4.0], "ddvi_base": [2.0, 2.5], "dbvi_sigma_1": [2.1, 3.0], "ddvi_sigma_1": [2.0, 3.1]}
    metrics = best_sigma(collect(runs(elbos, ("concrete",)), curves(elbos), PARAMS), "concrete")
    assert (metrics["dbvi_best.sigma.concrete"], metrics["ddvi_best.sigma.concrete"]) == (0.3, 1.0)
    assert metrics["dbvi_best.elbo.concrete-ddvi_best.elbo.concrete"] == pytest.approx(3.5 - 2.55)


def test_control_of_the_accuracy_claim_is_the_first_mark():
    rows = [("dbvi", "digits", 0, step, "accuracy", step / 100) for step in (5, 50, 100)]
    points = pd.DataFrame(rows, columns=["arm", "data", "seed", "step", "quantity", "value"])
    table = collect(runs(), pd.concat([curves(), points]), PARAMS)
    assert table["unfinished", "accuracy", "digits"].tolist() == [0.05]


def test_node_reads_training_stages_and_writes_the_table(tmp_path):
    for need, chosen in (("train-dbvi", ["dbvi", "frozen"]), ("train-ddvi", ["ddvi"])):
        elbos = {arm: ELBOS[arm] for arm in chosen}
        write_parquet(tmp_path / need / "runs.parquet", runs(elbos))
        write_parquet(tmp_path / need / "curves.parquet", curves(elbos))
    inputs = Inputs({need: tmp_path / need for need in ("train-dbvi", "train-ddvi")})
    metrics = evaluate(PARAMS, inputs, tmp_path, NullLog())
    assert metrics["dbvi.elbo.concrete-ddvi.elbo.concrete"] == pytest.approx(0.25)
    assert set(summaries(collect(runs(), curves(), PARAMS))) >= {"dbvi.elbo.concrete", "dbvi.rmse_sd.pooled"}
    frame = read_parquet(tmp_path / "results.parquet")
    assert set(frame["arm"]) == {"dbvi", "frozen", "ddvi"}


@pytest.mark.parametrize("options", [{"pooled": ()}, {"early": 0.0}, {"early": 1.5}])
def test_impossible_parameters_are_refused(options):
    with pytest.raises(ValueError, match=r"least 1|greater than 0|less than or equal to 1"):
        EvaluateParams(**options)
