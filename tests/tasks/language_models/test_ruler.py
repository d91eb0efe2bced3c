from __future__ import annotations

import pytest
from pydantic import ValidationError

from tasks.common.node import Inputs, NullLog
from tasks.language_models.prompts import read_prompts
from tasks.language_models.ruler import PromptSetParams, RulerParams, fingerprint, make_prompts, prepare, ruler_prompt, split_chat
from tasks.language_models.ruler_tasks import TASKS

FEW = PromptSetParams(tasks=dict.fromkeys(TASKS, 1), tokens=1200, seeds=2)


@pytest.fixture(scope="module")
def prompts(loaded):
    return make_prompts(loaded[1], FEW)


def test_no_prompt_is_too_long_and_each_is_as_long_as_fits(prompts):
    assert len(prompts) == 2 * len(TASKS)
    for p in prompts:
        read = len(p.context) + len(p.question)
        assert 1200 - 60 < read <= 1200, p.task  # a filler unit has fewer than 60 tokens of this tokenizer
        assert p.length == read + len(p.answer)


def test_the_parts_together_are_the_chat_and_the_division_is_where_the_question_begins(prompts, tokenizer):
    p = prompts[1]
    context, question, answer = (tokenizer.decode(ids) for ids in (p.context, p.question, p.answer))
    assert context.startswith("<|im_start|>user\nRemember the secret numbers")
    assert question.startswith("What is the secret number of ")
    assert "<|im_end|>\n<|im_start|>assistant\nThe secret number of" in question
    assert question.endswith(" is")
    assert answer == f" {p.references[0]}"
    assert p.references[0] in context


def test_a_prompt_is_a_function_of_its_seed_task_and_number_alone(prompts, tokenizer):
    alone = ruler_prompt(tokenizer, "vt", 1200, seed=1)
    assert alone in prompts
    assert ruler_prompt(tokenizer, "vt", 1200, seed=1, number=1) != alone
    assert len({p.context for p in prompts}) == len(prompts)


def test_without_a_chat_form_lines_are_plain(tokenizer):
    class Bare:
        chat_template = None

        def __call__(self, text, **arguments):
            return tokenizer(text, **arguments)

    context, question = split_chat(Bare(), "Some text.", "Which?", "It is")
    assert tokenizer.decode(context) == "Some text.\n\n"
    assert tokenizer.decode(question) == "Which?\nIt is"


def test_the_stage_writes_sets_that_share_no_prompt(folder, tmp_path):
    sets = {"quality": FEW, "calibration": FEW.model_copy(update={"first_seed": 7, "seeds": 1})}
    (tmp_path / "in").mkdir()
    (tmp_path / "in/model").symlink_to(folder)
    params = RulerParams(sets=sets)
    one = prepare(params, Inputs({"warmstart": tmp_path / "in"}), tmp_path / "a", NullLog())
    two = prepare(params, Inputs({"warmstart": tmp_path / "in"}), tmp_path / "b", NullLog())
    assert one == two
    assert (tmp_path / "a/quality.parquet").read_bytes() == (tmp_path / "b/quality.parquet").read_bytes()
    quality, calibration = (read_prompts(tmp_path / f"a/{name}.parquet") for name in sets)
    assert one["prompts.count.quality"] == len(quality) == 12
    assert one["prompts.fingerprint.quality"] == fingerprint(quality) != fingerprint(calibration)
    assert not {p.context for p in quality} & {p.context for p in calibration}
    assert one["prompts.answer_tokens.quality"] == pytest.approx(sum(len(p.answer) for p in quality) / 12)


def test_too_few_tokens_are_refused_with_how_many_are_needed(tokenizer):
    with pytest.raises(ValueError, match=r"tokens must be at least \d+ for task 'niah_multikey_16'.*got 128"):
        ruler_prompt(tokenizer, "niah_multikey_16", 128, seed=0)


@pytest.mark.parametrize(("tasks", "message"), [({"qa": 1}, "'qa'"), ({"vt": 0}, "tasks.vt must be at least 1"), ({}, "at least one")])
def test_unknown_tasks_and_counts_are_refused(tasks, message):
    with pytest.raises(ValidationError, match=message):
        PromptSetParams(tasks=tasks)
