from __future__ import annotations

import pytest
from small_concrete import COMMON

from tasks.common.node import NullLog
from tasks.gaussian_process.diffusion_bridge import BridgeParams
from tasks.gaussian_process.identity import IdentityParams, evaluate


@pytest.mark.parametrize("options", [{}, {"doob": False}, {"start": "paper", "integrator": "euler"}, {"learn_sigma": True}])
def test_zero_amortiser_is_ddvi_and_a_moved_one_is_not(small_inputs, tmp_path, options):
    params = IdentityParams(**COMMON, bridge=BridgeParams(steps=3, hidden=8, amortiser=8, **options))
    metrics = evaluate(params, small_inputs, tmp_path, NullLog())
    assert metrics["frozen.loss_difference.concrete"] <= 1e-6
    assert metrics["frozen.gradient_difference.concrete"] <= 1e-6
    assert metrics["moved.loss_difference.concrete"] > 1e-3
    assert metrics["moved.gradient_difference.concrete"] > 1e-3
