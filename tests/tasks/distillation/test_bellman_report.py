"""Held-out losses and returns of small sets."""

import pandas as pd
import pytest

from tasks.distillation.bellman_report import BellmanReportParams

pytestmark = pytest.mark.xdist_group("distillation")


def test_the_stage_is_deterministic(smoke):
    (first, _, _), (second, _, _) = smoke
    assert first["evaluate-bellman"] == second["evaluate-bellman"]
    assert first["evaluate-bellman"]


def test_metrics_are_those_of_the_table_of_results(smoke):
    metrics, _, folder = smoke[0]
    results = pd.read_parquet(folder / "evaluate-bellman" / "results.parquet")
    found = metrics["evaluate-bellman"]

    def values(arm, quantity, environment, size):
        keys = zip(("arm", "quantity", "environment", "size"), (arm, quantity, environment, size), strict=True)
        part = results
        for column, value in keys:
            part = part[part[column] == value]
        return part.sort_values("seed").value.to_numpy()

    ours, rand = (values(arm, "heldout_loss_error", "cartpole", 30) for arm in ("syn_many", "rand"))
    assert found["syn_many.heldout_loss_error.cartpole_n30"] == pytest.approx(ours.mean())
    assert found["syn_many.heldout_ratio.cartpole_n30"] == pytest.approx((ours / rand).mean())
    other = [values(arm, "heldout_features_loss_error", "cartpole", 30) for arm in ("syn_many", "rand")]
    assert found["syn_many.heldout_features_ratio.cartpole_n30"] == pytest.approx((other[0] / other[1]).mean())
    cells = [values("rand", "heldout_loss_error", e, 30).mean() for e in ("cartpole", "acrobot", "mountaincar")]
    assert found["rand.heldout_loss_error.pooled_n30"] == pytest.approx(sum(cells) / 3)
    full, chance = (values(arm, "return", "cartpole", 0).mean() for arm in ("full", "random_policy"))
    gap = max(full - chance, 0.05 * abs(chance))
    expected = (values("rand", "return", "cartpole", 100).mean() - chance) / gap
    assert found["rand.normalised_return.cartpole_n100"] == pytest.approx(expected)
    assert "values_only.return.cartpole_n30" not in found
    assert not [name for name in found if name.split(".")[1].startswith("return") and "pooled" in name], "rewards of different units"


def test_impossible_parameters_are_refused():
    with pytest.raises(ValueError, match=r"asks for sizes \[7\]"):
        BellmanReportParams(learners={"a": {"sizes": [7]}})
    with pytest.raises(ValueError, match="Extra inputs"):
        BellmanReportParams(temperature=1)
