from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.common.node import Inputs, NullLog
from tasks.masked_diffusion.register_trace import (
    DELIMITER,
    EOS,
    IDS,
    MASK,
    PAD,
    TOKENS,
    ProgramParams,
    TraceTask,
    correct_answer,
    draw_programs,
    prepare,
    read_programs,
    read_task,
)


def spelled(tokens) -> str:
    return "".join(TOKENS[t] for t in tokens)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 14), st.integers(2, 10), st.sampled_from(["+-", "*", "+-*"]), st.floats(0, 1), st.integers(0, 2**31))
def test_answers_are_right(steps, modulus, operations, reset, seed):
    task = TraceTask(steps=steps, modulus=modulus, operations=operations, reset=reset, fewest=max(1, steps // 2))
    prompts, answers = draw_programs(task, 8, np.random.default_rng(seed))
    assert prompts.shape == (8, task.prompt_length)
    assert answers.shape == (8, task.answer_length)
    for prompt, answer in zip(prompts, answers, strict=True):
        right = correct_answer(prompt, modulus)
        assert answer[: len(right)].tolist() == right
        assert (answer[len(right) :] == EOS).all()
        assert MASK not in {*prompt.tolist(), *answer.tolist()}
        assert len(right) % 2 == 0
        assert len(right) >= 2 * max(1, steps // 2)


def test_golden_programme():
    """S =3 +4 -1 =2 *: 3, then 3+4 = 7 mod 5 = 2, then 2-1 = 1, then 2."""
    assert spelled(correct_answer(np.array([IDS[c] for c in "S=3+4-1=2#"]), 5)) == "3;2;1;2;"


def test_prompt_and_answer_have_the_same_stride():
    prompts, answers = draw_programs(TraceTask(), 3, np.random.default_rng(0))
    assert (answers[:, 1::2] == DELIMITER).all()
    assert set(prompts[:, 1:-1:2].flatten()) <= {IDS["="], IDS["+"], IDS["-"]}
    assert (prompts[:, 1] == IDS["="]).all()
    assert len(TOKENS) == 20


def test_resets_have_their_share():
    prompts, _ = draw_programs(TraceTask(steps=20, reset=0.3), 2000, np.random.default_rng(0))
    assert (prompts[:, 3:-1:2] == IDS["="]).mean() == pytest.approx(0.3, abs=0.01)


def test_short_programmes_are_padded():
    prompts, answers = draw_programs(TraceTask(steps=6, fewest=2), 200, np.random.default_rng(0))
    lengths = (prompts != PAD).sum(1)
    assert lengths.min() == 6
    assert lengths.max() == 14
    assert ((answers == EOS).sum(1) == 14 - lengths).all()


def test_prepare_separates_splits_and_seeds(tmp_path):
    params = ProgramParams(task=TraceTask(steps=3), seeds=2, test=20, calibration=10)
    first = prepare(params, Inputs(), tmp_path, NullLog())
    assert first["programs.test.trace"] == 40
    prompts = [tuple(p) for split in ("test", "calibration") for p in read_programs(tmp_path, 0, split)[0]]
    assert len(prompts) == len(set(prompts)) == 30
    assert read_programs(tmp_path, 0, "test")[0] != read_programs(tmp_path, 1, "test")[0]
    assert len(read_programs(tmp_path, 0, "test", 4)[1]) == 4
    assert read_task(tmp_path) == params.task
    again = tmp_path / "again"
    again.mkdir()
    assert prepare(params, Inputs(), again, NullLog()) == first
    assert (again / "programs.parquet").read_bytes() == (tmp_path / "programs.parquet").read_bytes()


def test_impossible_tasks_are_refused(tmp_path):
    for bad in ({"steps": 0}, {"modulus": 11}, {"modulus": 1}, {"operations": "+/"}, {"operations": ""}, {"reset": 1.2}, {"fewest": 0}):
        with pytest.raises(ValidationError):
            TraceTask(**bad)
    with pytest.raises(ValidationError, match=r"fewest must lie in \[1, 4\], got 5"):
        TraceTask(steps=4, fewest=5)
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        draw_programs(TraceTask(), 0, np.random.default_rng(0))
    with pytest.raises(ValueError, match="different programmes were asked for"):
        prepare(ProgramParams(task=TraceTask(steps=1), seeds=1, test=20, calibration=10), Inputs(), tmp_path, NullLog())
    with pytest.raises(ValueError, match="a prompt starts with S"):
        correct_answer(np.array([IDS["="], IDS["1"]]), 5)
    with pytest.raises(ValueError, match="is no operation"):
        correct_answer(np.array([IDS[c] for c in "S12#"]), 5)
