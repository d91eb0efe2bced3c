"""The calibration stage on a tiny random model."""

import pytest

from tasks.common.node import Inputs, NullLog
from tasks.low_rank.calibration import CalibrateParams, calibrate, statistics_file
from tasks.low_rank.statistics import load_statistics

pytestmark = pytest.mark.usefixtures("one_process")


def test_calibration_writes_statistics_with_importances_and_repeats(folders, tmp_path):
    metrics = calibrate(CalibrateParams(seeds=2, batch=2), Inputs(folders), tmp_path, NullLog())
    again = statistics_file(tmp_path, 1).read_bytes()
    assert again == statistics_file(folders["train-calibrate"], 1).read_bytes()
    layers = load_statistics(statistics_file(tmp_path, 1))
    assert set(layers[0].importance) == {"q", "k", "v", "qkv"}
    assert set(layers[0].fisher_rotated) == {"k", "v"}
    assert metrics["fisher.tail.k.n"] == 2
    assert metrics["fisher.tail.k"] > 1


def test_statistics_of_another_model_are_refused(folders, tmp_path):
    from tasks.language_models.pretrained import load_model
    from tasks.low_rank.statistics import check_layers

    model, _ = load_model(folders["warmstart"] / "model", dtype="float32")
    layers = load_statistics(statistics_file(folders["train-calibrate"], 0))
    with pytest.raises(ValueError, match="calibrate this model"):
        check_layers(model, layers[:1])
