"""The stage that measures the language model in low precision, on a tiny random model."""

from __future__ import annotations

import pandas as pd
import pytest

from tasks.common.node import Inputs, NullLog
from tasks.low_rank import quantised_evaluation
from tasks.low_rank.quantised_evaluation import QuantisedParams
from tasks.low_rank.vision_language_evaluation import VisionLanguageParams
from tasks.quantisation.quantised_training import QuantisationParams

pytestmark = pytest.mark.usefixtures("one_process")


def test_the_language_model_stage_reports_every_arm_and_repeats(folders, trained, tmp_path):
    params = QuantisedParams(seeds=2, precisions=((8, 8), (3, 8)), training=QuantisationParams(steps=2))
    metrics = quantised_evaluation.evaluate(params, Inputs(folders), tmp_path, NullLog())
    for arm in ("float", "wsvd_w8a8", "noq_rtn_w8a8", "wsvd_w3a8", "noq_rtn_w3a8", "rtn_w8a8", "hadamard_w8a8", "qsvd_float", "qsvd_w8a8"):
        assert metrics[f"{arm}.kl_nats.smollm2.n"] == 2
        assert f"{arm}.nats.smollm2" in metrics
    for a, b in (("wsvd_w8a8", "noq_rtn_w8a8"), ("wsvd_w3a8", "float"), ("hadamard_w8a8", "rtn_w8a8")):
        difference = metrics[f"{a}.kl_nats.smollm2-{b}.kl_nats.smollm2"]
        assert difference == pytest.approx(metrics[f"{a}.kl_nats.smollm2"] - metrics[f"{b}.kl_nats.smollm2"], abs=1e-9)
    assert metrics["noq_rtn_w3a8.kl_nats.smollm2"] > metrics["noq_rtn_w8a8.kl_nats.smollm2"]
    curve = pd.read_parquet(tmp_path / "objective.parquet")
    assert set(curve.columns) == {"seed", "precision", "step", "objective"}
    assert len(curve) == 2 * 2 * 3
    assert quantised_evaluation.evaluate(params, Inputs(folders), tmp_path, NullLog()) == metrics


def test_unsupported_precisions_are_refused():
    with pytest.raises(ValueError, match="got 12"):
        QuantisedParams(precisions=((12, 8),))
    with pytest.raises(ValueError, match="12"):
        VisionLanguageParams(precisions=((8, 8), (8, 12)))
