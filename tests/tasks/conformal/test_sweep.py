from __future__ import annotations

import pytest

from flows.uncertain_imputation import DELTAS_EFFECT
from tasks.common.node import Inputs, NullLog
from tasks.conformal import sweep
from tasks.conformal.diagnostics import constant_error_effect


def test_sweep_follows_theorem_2_and_no_shift_has_no_effect(tmp_path):
    metrics = sweep.train(sweep.SweepParams(seeds=2, rows=20_000), Inputs(), tmp_path, NullLog())
    for name, delta in sweep.DELTAS.items():
        if delta:
            effect = constant_error_effect(delta, 1.0)
            assert metrics[f"delta_{name}.change.under"] * effect > 0
            assert metrics[f"delta_{name}.change.over"] * effect < 0
            assert metrics[f"delta_{name}.change.none"] == 0.0
            assert DELTAS_EFFECT[name] == effect
    assert metrics["delta_0.coverage.under"] == pytest.approx(0.9, abs=0.01)
    # Exact limits: unweighted clean scores have coverage F(F_clean^-1(0.9)).
    assert metrics["delta_p1000.coverage.under"] == pytest.approx(metrics["naive.coverage.under"], abs=2e-3)
