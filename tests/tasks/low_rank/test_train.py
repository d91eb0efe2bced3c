"""The training stage on a tiny random model."""

import pandas as pd
import pytest
import torch

from tasks.common.node import Inputs, NullLog
from tasks.low_rank.calibration import statistics_file
from tasks.low_rank.checkpoints import load_factors
from tasks.low_rank.statistics import load_statistics
from tasks.low_rank.train import Arm, TrainParams, arm_weights, factors_file, train
from tests.tasks.low_rank.stages import ARMS

pytestmark = pytest.mark.usefixtures("one_process")


def test_training_writes_factors_of_every_arm_and_repeats(folders, trained, tmp_path):
    again = train(TrainParams(seeds=2, arms=ARMS), Inputs(folders), tmp_path, NullLog())
    assert again == trained
    for arm, settings in ARMS.items():
        for iterate in ("selected", "last"):
            factors = load_factors(factors_file(tmp_path, arm, 1, iterate))
            assert {p for _, p in factors} == set(settings.projections)
    assert set(trained) >= {f"fit_{arm}.selected_step.smollm2" for arm in ARMS}
    errors = pd.read_parquet(folders["train"] / "errors.parquet")
    assert (errors[errors.arm == "wsvd_kv"]["selected"] <= errors[errors.arm == "wsvd_kv"]["before"] * (1 + 1e-6)).all()


def test_global_ranks_differ_and_spend_what_uniform_ones_would(folders, trained):
    factors = load_factors(factors_file(folders["train"], "wsvd_r50", 0))
    for p in ("q", "k", "v"):
        ranks = [rank for (_, name), found in factors.items() if name == p for rank in found.ranks]
        assert len(set(ranks)) > 1
        assert sum(ranks) == 6 * len(ranks)  # floor(0.5 * 16 / (1 + 16/96))


def test_shuffled_weights_are_the_same_numbers_elsewhere(folders):
    layers = load_statistics(statistics_file(folders["train-calibrate"], 0))
    plain = arm_weights(Arm(), layers, 0, 1, "k")
    moved = arm_weights(Arm(weighting="shuffled"), layers, 0, 1, "k")
    assert torch.equal(plain.flatten().sort().values, moved.flatten().sort().values)
    assert not torch.equal(plain, moved)
    assert torch.equal(moved, arm_weights(Arm(weighting="shuffled"), layers, 0, 1, "k"))
