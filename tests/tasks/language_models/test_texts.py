from __future__ import annotations

import pytest
import torch

from tasks.language_models import texts
from tasks.language_models.texts import docstrings, documents, side_of, source_files, token_sequences

PACKAGE = ("numpy",)


def test_a_draw_is_a_function_of_its_seed(tokenizer):
    one, same, other = (token_sequences(tokenizer, 3, 64, seed, packages=PACKAGE) for seed in (0, 0, 1))
    assert one.ids.shape == (3, 64)
    assert one.ids.dtype == torch.int64
    assert torch.equal(one.ids, same.ids)
    assert one.sha256 == same.sha256 != other.sha256
    assert one.fingerprint == int(one.sha256[:8], 16)


def test_calibration_and_evaluation_share_no_file_and_no_text():
    held = {side: set() for side in texts.SIDES}
    counts = dict.fromkeys(texts.SIDES, 0)
    for name, path in source_files():
        counts[side_of(name)] += 1
        held[side_of(name)] |= set(docstrings(path))
    assert 2 * counts["calibration"] < counts["evaluation"]
    assert len(held["calibration"]) > 500
    assert not held["calibration"] & held["evaluation"]


def test_seeds_change_the_order_only():
    assert sorted(documents(0, "calibration", PACKAGE)) == sorted(documents(5, "calibration", PACKAGE))


def test_docstrings_are_long_each_once_and_in_order(tmp_path):
    path = tmp_path / "module.py"
    long = "word " * 100
    path.write_text(f'"""{long}one"""\ndef f():\n    """{long}two"""\ndef g():\n    """Short."""\nclass H:\n    """{long}two"""\n')
    assert docstrings(path) == [f"{long}one", f"{long}two"]
    path.write_text("def broken(:")
    assert docstrings(path) == []


def test_test_files_are_left_out():
    assert not any("test" in name for name, _ in source_files(PACKAGE))


def test_bad_input_is_refused(tokenizer):
    with pytest.raises(ValueError, match="fewer than 100000 x 100000"):
        token_sequences(tokenizer, 100_000, 100_000, 0, "calibration", ("tqdm",))
    with pytest.raises(ValueError, match="count >= 1"):
        token_sequences(tokenizer, 0, 10, 0)
    with pytest.raises(ValueError, match="side must be one of calibration, evaluation"):
        next(documents(0, "training"))
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        source_files(("no_such_package",))
