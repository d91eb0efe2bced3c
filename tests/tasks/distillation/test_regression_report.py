"""Test errors of models trained on small sets."""

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.xdist_group("distillation")


def test_the_stage_is_deterministic(smoke):
    (first, _, _), (second, _, _) = smoke
    assert first["evaluate-supervised"] == second["evaluate-supervised"]
    assert first["evaluate-supervised"]


def test_metrics_are_those_of_the_table_of_errors(smoke):
    metrics, _, folder = smoke[0]
    errors = pd.read_parquet(folder / "evaluate-supervised" / "errors.parquet")
    found = metrics["evaluate-supervised"]

    def mse(arm, size):
        part = errors[(errors.table == "concrete") & (errors.arm == arm) & (errors["size"] == size)]
        return part.sort_values("trial").mse.to_numpy()

    ours, rand, full = mse("syn_k100", 20), mse("rand", 20), errors[(errors.table == "concrete") & (errors.arm == "full")].mse
    assert found["rand.mse.concrete_n20"] == pytest.approx(rand.mean())
    assert found["rand.median_mse.concrete_n20"] == pytest.approx(np.median(rand))
    assert found["rand.relative_mse.concrete_n20"] == pytest.approx(rand.mean() / full.mean())
    assert found["syn_k100.log_mse.concrete_n20-rand.log_mse.concrete_n20"] == pytest.approx(np.log(ours / rand).mean())
    assert found["syn_k100.relative_mse.concrete_n20"] == pytest.approx(1.0, abs=1e-3)
    assert found["root.relative_mse.concrete_n20"] == pytest.approx(1.0, abs=1e-6)
