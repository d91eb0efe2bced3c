"""The stage that asks compressed vision-language models, on tiny ones."""

from __future__ import annotations

import pytest
import torch
from kept_log import KeptLog

from tasks.common.node import Inputs, NullLog
from tasks.low_rank import vision_language_evaluation
from tasks.low_rank.attention import attention_blocks
from tasks.low_rank.methods import spectra_of, truncated
from tasks.low_rank.vision_language_evaluation import VisionLanguageParams, calibrated, floating_arms
from tasks.quantisation.quantised_training import QuantisationParams
from tasks.vision_language.digit_grid import split_digits
from tasks.vision_language.tiny_llava import TinyLlavaParams, make_tiny_llava
from tasks.vision_language.tiny_llava import train as train_models

TINY = TinyLlavaParams(steps=3, batch=4, turns=2, hidden=32, heads=2, layers=2, vision_hidden=16, seeds=2, test_images=10, workers=1)
SHORT = VisionLanguageParams(
    seeds=2, calibration=16, held_out=6, turns=2, questions=12, test_turns=2, steps=2, keep_every=1, training=QuantisationParams(steps=2)
)

pytestmark = pytest.mark.usefixtures("one_process")


@pytest.fixture(scope="module")
def case():
    """A tiny LLaVA with factors of its keys and values, and what calibration knows of it."""
    model = make_tiny_llava(TINY, 0).eval()
    blocks = attention_blocks(model)
    statistics = calibrated(model, split_digits(0)[0], SHORT, 0)
    factors = truncated("head_white", spectra_of("head_white", blocks, statistics, ("k", "v")), blocks, 0.5, None, ("k", "v"))
    return model, blocks, statistics, factors


def test_the_text_models_blocks_are_found_and_the_towers_are_not(case):
    _, blocks, _, _ = case
    assert len(blocks) == 2
    assert all("language_model" in block.name for block in blocks)


def test_unweighted_and_weighted_fine_tuning_differ(case):
    model, blocks, statistics, _ = case
    found = floating_arms(model, blocks, statistics, split_digits(0)[0], SHORT, 0)
    assert set(found) == {"svdllm", "head_white", "wsvd_noq", "unweighted"}
    assert not torch.equal(found["unweighted"][0, "k"].A, found["head_white"][0, "k"].A)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    train_models(TINY, Inputs(), folder, NullLog())
    return Inputs({"warmstart-vlm": folder})


def test_the_vision_language_stage_reports_every_arm_and_repeats(models, tmp_path):
    log = KeptLog()
    metrics = vision_language_evaluation.evaluate(SHORT, models, tmp_path, log)
    assert list(log.figures) == ["vlm_accuracy"]
    arms = ["dense", "svdllm", "head_white", "unweighted", "wsvd_noq"]
    arms += [f"{arm}_{p}" for p in ("w8a8", "w2a8") for arm in ("wsvd", "noq_rtn", "rtn", "hadamard")]
    arms += [f"{part}_w2a8" for part in ("no_s1", "no_s2", "fixed_s2", "no_qat")]
    for arm in arms:
        for what in ("accuracy", "kl_nats"):
            assert metrics[f"{arm}.{what}.digit_grid.n"] == 2
    assert "no_s1_w8a8.accuracy.digit_grid" not in metrics
    assert metrics["dense.kl_nats.digit_grid"] < 1e-9
    pair = "wsvd_w8a8.accuracy.digit_grid-wsvd_noq.accuracy.digit_grid"
    assert metrics[pair] == pytest.approx(metrics["wsvd_w8a8.accuracy.digit_grid"] - metrics["wsvd_noq.accuracy.digit_grid"])
    assert "wsvd_w2a8.kl_nats.digit_grid-no_s1_w2a8.kl_nats.digit_grid" in metrics
    assert vision_language_evaluation.evaluate(SHORT, models, tmp_path, NullLog()) == metrics
