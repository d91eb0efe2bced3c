from __future__ import annotations

import pytest
import torch
from attention_cases import generator

from tasks.attention.arms import MATCHED, Tuned, calibrated_arms, matched_arm, vattention_arms
from tasks.attention.vattention import VAttentionConfig


def tuned():
    return Tuned(
        ends=4,
        oracle={"10": VAttentionConfig(heavy=0.02)},
        hashattention={"10": VAttentionConfig(heavy=0.05, predictor="hashattention")},
        topp={"10": 0.9},
        magicpig={"10": 16},
        heavy_share={"10": 0.25},
        magicpig_bits=6,
    )


def test_what_was_tuned_survives_the_file(tmp_path):
    tuned().write(tmp_path / "tuned.json")
    assert Tuned.read(tmp_path / "tuned.json") == tuned()


@pytest.mark.parametrize("name", MATCHED)
def test_matched_arms_read_the_density_that_they_are_given(name):
    logits = torch.randn(2, 5, 400, generator=generator())
    arm = matched_arm(name, 0.15, 4, lambda layer, query, key, logits: logits, 0.25)
    weights = arm.method(logits, torch.ones(5, 400, dtype=torch.bool), logits, generator(1))
    assert ((weights > 0).sum(-1) == 60).all()


def test_only_hashattention_takes_the_learned_predictor():
    def hashes(layer, query, key, logits):
        return logits

    learned = {name for name in MATCHED if matched_arm(name, 0.1, 4, hashes).predictor is hashes}
    assert learned == {"hashattention"}
    arms = vattention_arms(tuned(), "10", hashes)
    assert arms["vattention"].predictor is None
    assert arms["vattention_hash"].predictor is hashes


def test_calibrated_arms_take_what_calibration_set():
    arms = calibrated_arms(tuned(), "10", seed=3)
    assert arms["oracle_topp"].method.p == 0.9
    assert (arms["magicpig"].predictor.tables, arms["magicpig"].predictor.bits, arms["magicpig"].predictor.seed) == (16, 6, 3)


def test_unknown_arms_are_refused():
    with pytest.raises(ValueError, match="unknown arm 'streaming'; known: sink_window"):
        matched_arm("streaming", 0.1, 4, lambda *_: None)
