"""Texts of every seed."""

import pytest

from tasks.common.node import Inputs, NullLog
from tasks.low_rank.prepared import PrepareParams, beginnings, prepare, sequences

pytestmark = pytest.mark.usefixtures("one_process")


def test_texts_differ_between_seeds_and_sides_and_repeat(folders, tmp_path):
    parts = [sequences(folders["prepare"], seed, part) for seed in (0, 1) for part in ("calibration", "held_out", "evaluation")]
    assert [tuple(p.shape) for p in parts] == [(4, 24), (2, 24), (3, 24)] * 2
    rows = {tuple(row.tolist()) for part in parts for row in part}
    assert len(rows) == 18
    again = prepare(PrepareParams(seeds=2, calibration=4, held_out=2, evaluation=3, tokens=24), Inputs(folders), tmp_path, NullLog())
    assert again["texts.sequences"] == 18
    assert (tmp_path / "sequences.safetensors").read_bytes() == (folders["prepare"] / "sequences.safetensors").read_bytes()


def test_seeds_that_were_not_prepared_are_named(folders):
    with pytest.raises(KeyError, match="seed 7"):
        sequences(folders["prepare"], 7, "calibration")


def test_too_much_text_is_refused(folders, monkeypatch):
    from transformers import AutoTokenizer

    monkeypatch.setattr("tasks.low_rank.prepared.documents", lambda seed, side: iter(["short", "a text that is long enough"]))
    tokenizer = AutoTokenizer.from_pretrained(folders["warmstart"] / "model")
    with pytest.raises(ValueError, match=r"only 1 files for calibration hold 9 tokens of docstrings, not 2"):
        beginnings(tokenizer, 2, 9, 0, "calibration")
