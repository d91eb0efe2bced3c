from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.common.node import Inputs, NullLog
from tasks.vision_language.digit_grid import CELL, CELLS, NUMBER, TOKEN, VOCABULARY, draw_grids, split_digits
from tasks.vision_language.scoring import answer_hits, answer_logits
from tasks.vision_language.tiny_llava import (
    TinyLlavaParams,
    accuracy_by_kind,
    alignment_loss,
    load_tiny_llava,
    make_tiny_llava,
    train,
    train_tiny_llava,
)

SMALL = TinyLlavaParams(steps=4, batch=4, turns=2, hidden=32, heads=2, layers=2, vision_hidden=16, seeds=2, test_images=5)
TRAIN, TEST = split_digits(0)


def grids(count: int = 5, turns: int = 1):
    return draw_grids(TEST, count, turns, ["read"], np.random.default_rng(0))


def test_the_model_sees_sixteen_visual_tokens_and_the_whole_vocabulary():
    model = make_tiny_llava(SMALL, 0).eval()
    given = grids().batch()
    labels = given.pop("labels")
    with torch.inference_mode():
        output = model(**given)
    assert output.logits.shape == (*labels.shape, len(VOCABULARY))
    assert torch.stack(list(output.image_outputs.pooler_output)).shape == (5, CELLS, 32)


def test_questions_about_one_image_are_answered_as_if_asked_alone():
    model = make_tiny_llava(SMALL, 0).eval()
    some = grids(turns=3)
    together = answer_logits(model, some)
    assert together.shape == (5, 3, len(VOCABULARY))
    for turn in range(3):
        one = some.__class__(some.pixels, some.digits, some.kinds, some.questions[:, turn : turn + 1], some.answers[:, turn : turn + 1])
        given = one.batch()
        with torch.inference_mode():
            plain = model(input_ids=given["input_ids"][:, :-1], pixel_values=given["pixel_values"]).logits[:, -1]
        torch.testing.assert_close(together[:, turn], plain, atol=1e-5, rtol=1e-5)


def test_answers_depend_on_the_image():
    model = make_tiny_llava(SMALL, 0).eval()
    some = grids()
    darker = some.__class__(some.pixels * 0.5, some.digits, some.kinds, some.questions, some.answers)
    assert not torch.allclose(answer_logits(model, darker), answer_logits(model, some))


def test_hits_count_the_most_likely_token_of_all():
    model = make_tiny_llava(SMALL, 0).eval()
    some = grids(turns=2)
    best = answer_logits(model, some).argmax(-1).numpy()
    right = some.__class__(some.pixels, some.digits, some.kinds, some.questions, best)
    assert answer_hits(model, right).tolist() == [1.0] * 10
    wrong = some.__class__(some.pixels, some.digits, some.kinds, some.questions, best + np.array([0, 1]))
    assert answer_hits(model, wrong).tolist() == [1.0, 0.0] * 5


def test_batches_do_not_change_answers():
    model = make_tiny_llava(SMALL, 0).eval()
    torch.testing.assert_close(answer_logits(model, grids(), batch=2), answer_logits(model, grids()), atol=1e-5, rtol=1e-5)


def test_weights_follow_the_seed_alone_and_queries_start_as_keys():
    models = [make_tiny_llava(SMALL, seed) for seed in (0, 0, 1)]
    first, again, other = (dict(m.named_parameters()) for m in models)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
    for layer in models[0].model.language_model.layers:
        assert torch.equal(layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight)


def test_alignment_is_least_when_visual_tokens_are_the_words():
    model = make_tiny_llava(SMALL, 0)
    words = model.get_input_embeddings().weight.detach()
    digits = torch.from_numpy(grids().digits)
    right = 20 * (words[NUMBER + digits] + words[CELL : CELL + CELLS])
    wrong = 20 * (words[NUMBER + (digits + 1) % 10] + words[CELL : CELL + CELLS])
    assert alignment_loss(model, right, digits) < alignment_loss(model, wrong, digits)
    zero = alignment_loss(model, torch.zeros_like(right), digits)
    assert zero.item() == pytest.approx(np.log(10) + np.log(16), rel=1e-5)


def test_training_learns_to_read_a_grid_of_few_scans():
    few = TRAIN.__class__(TRAIN.images[:4], TRAIN.labels[:4])
    params = SMALL.model_copy(update={"steps": 60, "batch": 8, "turns": 8, "rate": 5e-3})
    model, losses = train_tiny_llava(params, few, 0)
    assert losses.shape == (60,)
    assert losses[-5:].mean() < 0.5 * losses[:5].mean()
    assert accuracy_by_kind(model, few, 50, ["read"], 0)["read"] > 0.2


def test_the_node_writes_models_that_load_to_the_same_answers_and_processes_change_nothing(tmp_path, monkeypatch):
    runs = []
    for name, processes in (("a", "1"), ("b", "2")):
        monkeypatch.setenv("PAPERS_THREADS", processes)
        runs.append(train(SMALL, Inputs(), tmp_path / name, NullLog()))
    first, second = runs
    assert first == second
    assert {"vlm.accuracy.read", "vlm.accuracy.read.lo", "vlm.accuracy.read.n"} <= set(first)
    a, b = (tmp_path / name / "seed1/model.safetensors" for name in ("a", "b"))
    assert a.read_bytes() == b.read_bytes()
    model, _ = train_tiny_llava(SMALL, split_digits(1)[0], 1)
    torch.testing.assert_close(answer_logits(load_tiny_llava(tmp_path / "a/seed1"), grids()), answer_logits(model, grids()))


def test_the_answer_token_of_a_cell_is_its_digit():
    some = grids(1)
    cell = some.questions[0, 0, 1] - CELL
    assert some.answers[0, 0] == NUMBER + some.digits[0, cell]
    assert some.questions[0, 0, 0] == TOKEN["read"]


def test_impossible_parameters_are_refused():
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        TinyLlavaParams(steps=0)
    with pytest.raises(ValueError, match="read"):
        TinyLlavaParams(kinds=("colour",))
