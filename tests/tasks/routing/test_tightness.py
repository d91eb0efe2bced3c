from __future__ import annotations

import pytest

from tasks.routing import tightness
from tasks.routing.tightness import TightnessParams, measure_tightness, tightness_metrics


def test_sets_are_nested_at_every_depth_and_the_root_is_feasible():
    table = measure_tightness(TightnessParams(instances=15, nodes=8))
    assert (table["exact"] <= table["tsl"]).all()
    assert (table["tsl"] <= table["local"]).all()
    assert ((table["ssl"] == 0) | (table["ssl"] == 7 - table["depth"])).all()
    assert (table.loc[table["depth"] == 0, "exact"] > 0).all()
    assert (table["exact"] < table["tsl"]).any()
    metrics = tightness_metrics(table)
    assert 0 < metrics["tsl.surplus_nodes.tightness"] < metrics["local.surplus_nodes.tightness"]


def test_no_instance_with_a_tour_is_an_error(monkeypatch):
    monkeypatch.setattr(tightness, "feasible_next", lambda *state: [])
    with pytest.raises(ValueError, match="none of 2 instances of 6 nodes has a tour"):
        measure_tightness(TightnessParams(instances=2, nodes=6))
