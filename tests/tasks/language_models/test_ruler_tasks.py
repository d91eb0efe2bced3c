from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from tasks.language_models.ruler_tasks import NOISE, TASKS, draw, majority, needles, string_match_all, string_match_part, zipf_counts


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("units", [1, 7, 60])
def test_a_text_is_a_function_of_the_draw_and_its_length(task, units):
    one, same, other = draw(task, rng(1)), draw(task, rng(1)), draw(task, rng(2))
    assert one.text(units) == same.text(units) == one.text(units)
    assert (one.question, one.answer) == (same.question, same.answer)
    assert one.text(units) != other.text(units)


@pytest.mark.parametrize("task", TASKS)
def test_the_answer_holds_every_reference(task):
    question = draw(task, rng(3))
    assert string_match_all(question.answer, question.references) == 1
    assert question.answer.startswith(" ")


@pytest.mark.parametrize("keys", [1, 4, 16])
def test_every_needle_is_hidden_once_and_the_asked_one_has_the_answer(keys):
    for seed in range(5):
        question = needles(rng(seed), keys)
        text = question.text(50)
        hidden = dict(re.findall(r"The secret number of (\w+) is (\d{4})\.", text))
        assert len(hidden) == len(set(hidden.values())) == keys
        name = re.fullmatch(r"What is the secret number of (\w+)\?", question.question)[1]
        assert hidden[name] == question.references[0] == question.answer.strip()
        assert sum(text.count(line) for line in NOISE) == 50


def test_needles_lie_anywhere():
    places = [needles(rng(s), 1).text(100).split(". ") for s in range(40)]
    at = [next(i for i, line in enumerate(lines) if "secret number of" in line) / len(lines) for lines in places]
    assert min(at) < 0.2
    assert max(at) > 0.8


def test_following_the_chain_finds_the_variables_and_no_others():
    for seed in range(10):
        question = draw("vt", rng(seed))
        value = re.search(r"value (\d{5})", question.question)[1]
        holds: dict[str, str] = {}
        for name, source in re.findall(r"VAR (\w\w) = (\w+)\.", question.text(40)):
            assert name not in holds
            holds[name] = holds.get(source, source)  # an assignment comes after what it refers to
        assert all(v.isdigit() for v in holds.values())
        assert tuple(n for n, v in holds.items() if v == value) == question.references
        assert len(question.references) in (3, 4)


def test_the_frequent_words_are_the_most_frequent():
    for seed in range(5):
        question = draw("fwe", rng(seed))
        counted = Counter(question.text(400).split("\n\n")[1].split()).most_common(4)
        assert tuple(word for word, _ in counted[:3]) == question.references
        assert len({n for _, n in counted}) == 4


@pytest.mark.parametrize("units", [1, 5, 100, 1000])
def test_zipf_counts_fall_strictly_at_the_top(units):
    counts = zipf_counts(units, 30, 1.5)
    assert (np.diff(counts[:4]) < 0).all()
    assert (np.diff(counts) <= 0).all()
    assert counts.min() >= 1


@pytest.mark.parametrize("units", [1, 2, 9, 200])
def test_the_majority_is_one(units):
    for seed in range(6):
        question = majority(rng(seed))
        counted = Counter(question.text(units).split("\n\n")[1].split()).most_common()
        assert counted[0][0] == question.references[0]
        assert counted[0][1] * 2 > units
        assert question.references[0] in question.question


def test_scores_count_references_whatever_their_case():
    assert string_match_all("It is 1234 and ab", ("1234", "AB", "CD")) == pytest.approx(2 / 3)
    assert string_match_part("no idea, perhaps paris", ("Rome", "Paris")) == 1.0
    assert string_match_part("no idea", ("Rome", "Paris")) == 0.0


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"task must be one of niah_single, .*'qa'"):
        draw("qa", rng())
    with pytest.raises(ValueError, match=r"keys must lie in 1\.\."):
        needles(rng(), 0)
    with pytest.raises(ValueError, match="share must lie in"):
        majority(rng(), 0.5)
    for score in (string_match_all, string_match_part):
        with pytest.raises(ValueError, match="at least one text"):
            score("x", ())
