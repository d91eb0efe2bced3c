from __future__ import annotations

import json

import pandas as pd
import pytest

from tasks.common.node import Inputs, NullLog
from tasks.language_models.benchmark_files import (
    AIME_REQUEST,
    RULER_HARD,
    RULER_TASKS,
    BenchmarkParams,
    FileSet,
    divided,
    prepare,
    read_benchmark,
)
from tasks.language_models.prompts import read_prompts
from tasks.language_models.random_llama import byte_tokenizer
from tasks.language_models.smollm2 import SmolLM2Params
from tasks.language_models.smollm2 import prepare as make_model


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer(512)


def official(folder, task, rows=4):
    """As NVIDIA's generator writes it."""
    (folder / task).mkdir(parents=True)
    lines = [
        {
            "index": i,
            "input": f"Some text.\n{'word ' * 20}\nWhat is number {i}?",
            "outputs": [str(i)],
            "length": 40,
            "answer_prefix": " It is",
        }
        for i in range(rows)
    ]
    (folder / task / "validation.jsonl").write_text("\n".join(map(json.dumps, lines)))


def test_nvidias_layout(tokenizer, tmp_path):
    for task in ("vt", "qa_1"):
        official(tmp_path, task)
    prompts = read_benchmark(tokenizer, FileSet(folder=tmp_path, tasks=("vt", "qa_1"), count=3, seeds=2))
    assert [p.task for p in prompts] == ["vt"] * 3 + ["qa_1"] * 3
    assert [p.seed for p in prompts[:3]] == [0, 1, 0]
    assert prompts[1].references == ("1",)
    assert "What is number 1?" in tokenizer.decode(prompts[1].question)
    assert tokenizer.decode(prompts[1].question).endswith(" It is")
    assert "word word" in tokenizer.decode(prompts[1].context)
    assert "What is" not in tokenizer.decode(prompts[1].context)
    assert tokenizer.decode(prompts[1].answer) == " 1"


@pytest.mark.parametrize("name", ["niah_single_1/test-00000-of-00001.parquet", "niah_single_1.parquet", "niah_single_1-00000.parquet"])
def test_the_layout_with_columns(tokenizer, tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    rows = [{"context": "a b c", "question": "Which?", "answer_prefix": "It is", "answer": ["b", "c"], "task": "niah_single_1"}]
    pd.DataFrame(rows).to_parquet(path)
    (found,) = read_benchmark(tokenizer, FileSet(folder=tmp_path, tasks=("niah_single_1",)))
    assert found.references == ("b", "c")


@pytest.mark.parametrize("columns", [("Problem", "Answer"), ("problem", "answer")])
def test_aime(tokenizer, tmp_path, columns):
    pd.DataFrame({"ID": ["2024-I-1"], columns[0]: ["How many?"], columns[1]: [73]}).to_parquet(tmp_path / "aime.parquet")
    (found,) = read_benchmark(tokenizer, FileSet(kind="aime", folder=tmp_path))
    assert found.task == "aime"
    assert found.references == ("73",)
    assert AIME_REQUEST in tokenizer.decode(found.question)
    assert "How many?" in tokenizer.decode(found.context)


def test_sets_can_share_a_file_without_sharing_prompts(tokenizer, tmp_path):
    official(tmp_path, "vt")
    first, second = (read_benchmark(tokenizer, FileSet(folder=tmp_path, tasks=("vt",), count=2, skip=skip)) for skip in (0, 2))
    assert {p.references for p in first}.isdisjoint(p.references for p in second)
    with pytest.raises(ValueError, match="no more than the 9 prompts"):
        read_benchmark(tokenizer, FileSet(folder=tmp_path, tasks=("vt",), skip=9))


def test_a_missing_file_is_named(tokenizer, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"fwe/validation\.jsonl"):
        read_benchmark(tokenizer, FileSet(folder=tmp_path, tasks=("fwe",)))
    with pytest.raises(FileNotFoundError, match="no file of task aime"):
        read_benchmark(tokenizer, FileSet(kind="aime", folder=tmp_path))


def test_rows_without_columns_are_refused():
    with pytest.raises(ValueError, match="it has text"):
        divided({"text": "x"})
    with pytest.raises(ValueError, match="has no answer"):
        divided({"context": "x", "question": "y"})


def test_the_hard_tasks_are_tasks():
    assert len(RULER_TASKS) == 13
    assert set(RULER_HARD) < set(RULER_TASKS)


def test_the_node_writes_generated_and_read_sets(tmp_path):
    model, data, out = (tmp_path / name for name in ("warmstart", "ruler", "out"))
    model.mkdir()
    out.mkdir()
    make_model(SmolLM2Params(source="random"), Inputs(), model, NullLog())
    official(data, "vt")
    params = BenchmarkParams(
        sets={"short": {"tasks": {"niah_single": 1}, "tokens": 400, "seeds": 1}},
        files={"quality": {"folder": data, "tasks": ["vt"], "count": 2}},
    )
    metrics = prepare(params, Inputs({"warmstart": model}), out, NullLog())
    assert metrics["prompts.count.quality"] == 2
    assert metrics["prompts.count.short"] == 1
    assert [p.task for p in read_prompts(out / "quality.parquet")] == ["vt", "vt"]
    with pytest.raises(ValueError, match="quality are both generated and read"):
        prepare(BenchmarkParams(sets={"quality": {}}, files={"quality": {}}), Inputs({"warmstart": model}), out, NullLog())
