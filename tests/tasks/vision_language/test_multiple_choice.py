import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tasks.common.assets import AssetMissing
from tasks.low_rank.vision_language_models import ModelParams, load_vision_language
from tasks.vision_language.multiple_choice import Question, hits, letter_of, parquet_files, science_qa, seed_bench
from tests.tasks.vision_language.tiny_processor import save_science_qa, save_seed_bench, save_tiny_llava


def test_science_qa_keeps_questions_with_an_image(tmp_path):
    found = list(science_qa(str(save_science_qa(tmp_path))))
    assert [q.text for q in found] == ["Context: look\nWhich is 0?", "Which is 1?", "Which is 3?"]
    assert [q.choices for q in found] == [("this", "that"), ("this", "that", "neither"), ("this", "that", "neither")]
    assert [q.letter for q in found] == ["A", "B", "B"]
    assert found[0].image[:4] == b"\x89PNG"


def test_seed_bench_keeps_single_images(tmp_path):
    found = list(seed_bench(str(save_seed_bench(tmp_path))))
    assert [(q.letter, q.choices) for q in found] == [("C", ("a", "b", "c", "d"))] * 2


@pytest.mark.parametrize(
    ("text", "index"),
    [
        *(("B", 1), ("b.", 1), ("(D)", 3), ("Answer: C", 2), ("A nice one", 0), ("I think B", 1)),
        *(("E", None), ("because", None), ("", None)),
    ],
)
def test_letters_are_read_out_of_answers(text, index):
    assert letter_of(text, 4) == index


def test_missing_files_and_columns_are_named(tmp_path):
    with pytest.raises(AssetMissing, match=r"holds no test-\*.parquet"):
        parquet_files(str(tmp_path), "test")
    pq.write_table(pa.table({"image": [None], "question": ["?"]}), tmp_path / "test-0.parquet")
    with pytest.raises(ValueError, match="lacks the columns answer, choices, hint"):
        list(science_qa(str(tmp_path)))


@pytest.mark.parametrize(("choices", "answer"), [(("only",), 0), (("a", "b"), 2), (("a", "b"), -1)])
def test_impossible_questions_are_refused(choices, answer):
    with pytest.raises(ValueError, match="2 to 10 choices"):
        Question(b"", "?", choices, answer)


def test_images_stored_as_paths_are_refused(tmp_path):
    row = {"image": {"bytes": None, "path": "x.png"}, "question": "?", "choices": ["a", "b"], "answer": 0, "hint": ""}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "test-0.parquet")
    with pytest.raises(ValueError, match=r"path alone \('x.png'\)"):
        list(science_qa(str(tmp_path)))


def test_samples_carry_the_image_and_label_the_answer_alone(tmp_path):
    folder = save_tiny_llava(tmp_path / "m")
    model, asker = load_vision_language(ModelParams(model=str(folder), dtype="float32", device="cpu"))
    question = next(science_qa(str(save_science_qa(tmp_path / "q"))))
    sample = asker.sample(question)
    assert int((sample["input_ids"] == model.config.image_token_id).sum()) == 16
    labelled = sample["input_ids"][sample["labels"] != -100]
    assert asker.processor.tokenizer.decode(labelled).strip() == question.letter
    assert torch.equal(sample["labels"][0, -len(labelled) :], labelled)
    blank = {**asker.inputs(question), "pixel_values": torch.zeros(1, 3, 32, 32)}
    assert not torch.equal(model(**asker.inputs(question)).logits, model(**blank).logits)


def test_hits_are_greedy_answers(tmp_path):
    folder = save_tiny_llava(tmp_path / "m")
    model, asker = load_vision_language(ModelParams(model=str(folder), dtype="float32", device="cpu"))
    asked = list(science_qa(str(save_science_qa(tmp_path / "q"))))
    found = hits(model, asker, asked)
    assert found.tolist() == [float(asker.answer(model, q) == q.answer) for q in asked]
