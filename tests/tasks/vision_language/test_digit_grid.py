from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.vision_language.digit_grid import CELLS, IGNORED, KINDS, TOKEN, VOCABULARY, draw_grids, split_digits, spoken

TRAIN, TEST = split_digits(0)


def answer_by_reading(values: np.ndarray, what: str, where: str) -> str:
    """The answer of somebody who sees the digits (4, 4)."""
    if what == "read":
        return str(values[int(where[1]) - 1, "abcd".index(where[0])])
    if what == "largest":
        return str(max(values[int(where[-1]) - 1]))
    kind, digit = what.split("_")
    if kind == "count":
        assert where == "grid"
        return str(sum(int(v) == int(digit) for v in values.flatten()))
    return "yes" if int(digit) in values[:, "abcd".index(where[-1])] else "no"


@given(seed=st.integers(0, 10_000), kind=st.sampled_from(KINDS))
@settings(max_examples=60, deadline=None)
def test_answers_are_what_a_reader_would_say(seed, kind):
    grids = draw_grids(TEST, 3, 4, [kind], np.random.default_rng(seed))
    for image in range(3):
        values = grids.digits[image].reshape(4, 4)
        for line in spoken(grids, image):
            what, where, answer = line.split()
            assert what.startswith(kind)
            assert answer == answer_by_reading(values, what, where)


def test_each_cell_shows_a_scan_of_its_digit():
    grids = draw_grids(TRAIN, 2, 1, ["read"], np.random.default_rng(0))
    for cell in range(CELLS):
        row, column = divmod(cell, 4)
        shown = grids.pixels[0, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
        same = (TRAIN.images == shown).all((1, 2))
        assert set(TRAIN.labels[same]) == {grids.digits[0, cell]}
    assert grids.pixels.min() >= -1
    assert grids.pixels.max() <= 1


def test_training_and_test_scans_are_disjoint_and_follow_the_seed():
    together = np.concatenate([TRAIN.images, TEST.images]).reshape(1797, -1)
    assert len(TRAIN.labels) == 1437
    assert len(np.unique(together, axis=0)) == len(np.unique(split_digits(1)[0].images.reshape(1437, -1), axis=0)) + 360
    assert not np.array_equal(split_digits(1)[0].labels, TRAIN.labels)
    assert np.array_equal(split_digits(0)[0].images, TRAIN.images)


def test_a_batch_labels_answers_alone_and_repeats_grey_in_three_channels():
    grids = draw_grids(TRAIN, 2, 3, KINDS, np.random.default_rng(0))
    batch = grids.batch()
    ids, labels = batch["input_ids"], batch["labels"]
    assert ids.shape == labels.shape == (2, 1 + CELLS + 3 * 3)
    assert (ids[:, 0] == TOKEN["<bos>"]).all()
    assert (ids[:, 1 : 1 + CELLS] == TOKEN["<image>"]).all()
    counted = labels != IGNORED
    assert counted.sum(1).tolist() == [3, 3]
    assert (labels[counted] == ids[counted]).all()
    assert np.array_equal(labels[counted].reshape(2, 3).numpy(), grids.answers)
    assert batch["pixel_values"].shape == (2, 3, 32, 32)
    assert (batch["pixel_values"][:, 0] == batch["pixel_values"][:, 2]).all()
    assert grids.batch(slice(1, 2))["input_ids"].tolist() == ids[1:].tolist()


def test_kinds_are_asked_equally_often_and_has_is_balanced():
    grids = draw_grids(TRAIN, 2000, 2, KINDS, np.random.default_rng(0))
    shares = np.bincount(grids.kinds.ravel(), minlength=4) / grids.kinds.size
    np.testing.assert_allclose(shares, 0.25, atol=0.03)
    yes = (grids.answers == TOKEN["yes"])[grids.kinds == KINDS.index("has")].mean()
    assert 0.55 < yes < 0.75  # half are there on purpose, and some others by chance


def test_words_are_distinct():
    assert len(set(VOCABULARY)) == len(VOCABULARY) == len(TOKEN)


def test_impossible_arguments_are_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="some of read, largest, count, has"):
        draw_grids(TRAIN, 1, 1, [], rng)
    with pytest.raises(ValueError, match="colour"):
        draw_grids(TRAIN, 1, 1, ["colour"], rng)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="at least one image and one question, got 0 and 1"):
        draw_grids(TRAIN, 0, 1, ["read"], rng)
    with pytest.raises(ValueError, match="train_share"):
        split_digits(0, 1.0)
