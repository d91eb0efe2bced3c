from __future__ import annotations

import pandas as pd
import pytest
from pydantic import ValidationError

from tasks.attention.arms import Tuned
from tasks.attention.calibration import CONFIGS, HASHES, CalibrateParams
from tasks.attention.hash_attention import load_hash_attention
from tasks.attention.tuning import SLACK


def test_every_target_has_a_configuration_that_keeps_it(pipeline):
    root, metrics, _ = pipeline
    tuned = Tuned.read(root / "train" / CONFIGS)
    tried = pd.read_parquet(root / "train/tried.parquet")
    assert set(tried["predictor"]) == {"oracle", "hash"}
    assert len(tried) == 8
    for name, configs in (("oracle", tuned.oracle), ("hash", tuned.hashattention)):
        rows = tried[tried["predictor"] == name]
        within = rows[rows["density"] <= SLACK * 0.25]
        best = within.loc[within["err_mean"].idxmin()] if len(within) else rows.loc[rows["density"].idxmin()]
        assert (configs["10"].heavy, configs["10"].base, configs["10"].epsilon) == (best["heavy"], best["base"], best["epsilon"])
        assert metrics["train"][f"tuned_{name}.density.10"] == best["density"]


def test_the_networks_cover_all_layers_and_heads(pipeline):
    root, metrics, _ = pipeline
    net = load_hash_attention(root / "train" / HASHES)
    assert net.shape[:2] == (metrics["train"]["layers.count.calibration"], metrics["train"]["heads.count.calibration"])


@pytest.mark.parametrize(
    ("wrong", "says"), [({"targets": {}}, "at least one"), ({"targets": {"10": 10}}, r"targets\.10"), ({"device": "tpu"}, "device")]
)
def test_impossible_parameters_are_refused(wrong, says):
    with pytest.raises(ValidationError, match=says):
        CalibrateParams(**wrong)
