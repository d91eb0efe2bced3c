"""Prompts from the files of published long-context benchmarks: RULER and AIME, in their official layouts.

    ruler   <folder>/<task>/validation.jsonl with `input`, `outputs` and perhaps `answer_prefix` (NVIDIA's generator), or
            <folder>/<task>/*.parquet (or <folder>/<task>*.parquet) with `context`, `question`, `answer_prefix` and `answer`
    aime    <folder>/*.parquet or *.jsonl with `Problem` and `Answer`, or with the columns of the second RULER layout

A prompt is divided where its question begins: by the columns, or before the last line of a whole input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.language_models.pretrained import load_tokenizer
from tasks.language_models.prompts import Prompt, write_prompts
from tasks.language_models.ruler import RulerParams, encode, fingerprint, split_chat
from tasks.language_models.ruler import prepare as prepare_generated

RULER_TASKS = (
    *("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3"),
    *("niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2"),
)
RULER_HARD = ("niah_multikey_2", "niah_multikey_3", "fwe", "vt", "qa_1", "qa_2")
"""The six that the paper calls RULER-HARD are not listed there; these are our choice."""
AIME_REQUEST = "Please reason step by step, and put your final answer within \\boxed{}."


class FileSet(Params):
    """One file of prompts, read from a benchmark's folder.

    Attributes:
        kind: layout of the files.
        folder: where they are.
        tasks: which tasks of RULER.
        count: prompts per task.
        skip: prompts per task that are left out at the beginning, so that sets share none.
        seeds: the prompts of a task are dealt to so many repetitions in turn.
        model: folder or model id whose tokenizer reads this set, in place of that of the other sets.
    """

    kind: Literal["ruler", "aime"] = "ruler"
    folder: Path = Path()
    tasks: tuple[str, ...] = RULER_TASKS
    count: int = Field(50, ge=1)
    skip: int = Field(0, ge=0)
    seeds: int = Field(5, ge=1)
    model: str = ""


class BenchmarkParams(RulerParams):
    """As `RulerParams`; sets in `files` come from a benchmark's files instead.

    Attributes:
        files: by name; each becomes `<name>.parquet`.
    """

    files: dict[str, FileSet] = Field({})


def prepare(params: BenchmarkParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: a file of prompts per set, generated or read; metrics as `tasks.language_models.ruler.prepare`.

    Raises:
        ValueError: if a set is both generated and read.
        FileNotFoundError: if a benchmark's file is missing, naming where it was looked for.
    """
    if both := sorted(params.sets.keys() & params.files.keys()):
        raise ValueError(f"sets {', '.join(both)} are both generated and read from files; remove one of the two")
    metrics = prepare_generated(RulerParams(sets=params.sets, model=params.model), inputs, out, log) if params.sets else {}
    for name, wanted in params.files.items():
        tokenizer = load_tokenizer(wanted.model or params.model or inputs["warmstart"] / "model")
        prompts = read_benchmark(tokenizer, wanted)
        write_prompts(out / f"{name}.parquet", prompts)
        metrics[f"prompts.count.{name}"] = float(len(prompts))
        metrics[f"prompts.tokens.{name}"] = sum(len(p.context) + len(p.question) for p in prompts) / len(prompts)
        metrics[f"prompts.answer_tokens.{name}"] = sum(len(p.answer) for p in prompts) / len(prompts)
        metrics[f"prompts.fingerprint.{name}"] = fingerprint(prompts)
    return metrics


def read_benchmark(tokenizer: Any, wanted: FileSet) -> list[Prompt]:
    """The prompts of a set, task by task.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a task has no rows left, or a row lacks its columns.
    """
    folder = wanted.folder.expanduser()
    tasks = wanted.tasks if wanted.kind == "ruler" else ("aime",)
    prompts = []
    for task in tasks:
        rows = list(_rows(folder, task, wanted.kind))[wanted.skip : wanted.skip + wanted.count]
        if not rows:
            raise ValueError(f"{folder}: task {task} has no more than the {wanted.skip} prompts that are skipped; lower `skip`")
        prompts += [_prompt(tokenizer, task, number, row, wanted.seeds) for number, row in enumerate(rows)]
    return prompts


def divided(row: Mapping[str, Any]) -> tuple[str, str, str, tuple[str, ...]]:
    r"""(text, question, beginning of the answer, references) of a row in any of the layouts.

    Raises:
        ValueError: naming the columns that there are.

    Example:
        >>> divided({"input": "Read this.\n1 2 3\nWhich is last?", "outputs": ["3"], "answer_prefix": "It is"})
        ('Read this.\n1 2 3', 'Which is last?', 'It is', ('3',))
    """
    if {"context", "question"} <= row.keys():
        found = row.get("answer", row.get("answers", row.get("outputs")))
        return str(row["context"]), str(row["question"]), str(row.get("answer_prefix") or ""), _references(found)
    if "input" in row:
        text, _, question = str(row["input"]).rstrip().rpartition("\n")
        return text.rstrip(), question, str(row.get("answer_prefix") or ""), _references(row.get("outputs"))
    lower = {str(key).lower(): value for key, value in row.items()}
    if {"problem", "answer"} <= lower.keys():
        return str(lower["problem"]), AIME_REQUEST, "", _references(str(lower["answer"]))
    raise ValueError(f"a row needs context and question, input and outputs, or problem and answer; it has {', '.join(map(str, row))}")


def _prompt(tokenizer: Any, task: str, number: int, row: Mapping[str, Any], seeds: int) -> Prompt:
    text, question, prefix, references = divided(row)
    context, asked = split_chat(tokenizer, text, question, prefix)
    answer = encode(tokenizer, " " + ", ".join(references))
    return Prompt(task, number % seeds, tuple(context), tuple(asked), tuple(answer), references)


def _references(found: Any) -> tuple[str, ...]:
    if found is None:
        raise ValueError("a row has no answer (columns answer, answers or outputs)")
    return (found,) if isinstance(found, str) else tuple(str(text) for text in found)


def _rows(folder: Path, task: str, kind: str) -> Iterator[Mapping[str, Any]]:
    """Rows of a task's files, in the order of the files' names."""
    patterns = ("*.parquet", "*.jsonl")
    places = [folder.glob(p) for p in patterns] if kind == "aime" else [(folder / task).rglob(p) for p in patterns]
    if kind == "ruler":
        places += [folder.glob(f"{task}{p}") for p in (".parquet", "-*.parquet", ".jsonl")]
    files: Sequence[Path] = sorted(path for place in places for path in place)
    if not files:
        looked = f"{folder}/*.parquet or *.jsonl" if kind == "aime" else f"{folder}/{task}/validation.jsonl or {folder}/{task}/*.parquet"
        raise FileNotFoundError(f"no file of task {task}: looked for {looked}; download the data set there, or correct `folder`")
    import pandas as pd

    for path in files:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_json(path, lines=True, dtype=False)
        yield from ({str(key): value for key, value in row.items()} for row in frame.to_dict("records"))
