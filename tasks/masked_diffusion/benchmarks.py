"""GSM8K, HumanEval and MBPP as problems of one form: a prompt, and a way to judge an answer.

Rows come from the Hugging Face hub (`datasets`), or from JSON Lines or Parquet files in the benchmarks' own columns. Code is judged by
running it, which is off unless it is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from tasks.common.assets import AssetMissing
from tasks.common.formats import read_parquet, write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.masked_diffusion.sandbox import run_code

Benchmark = Literal["gsm8k", "humaneval", "mbpp"]
HUB: dict[Benchmark, tuple[str, str | None, str]] = {
    "gsm8k": ("openai/gsm8k", "main", "test"),
    "humaneval": ("openai/openai_humaneval", None, "test"),
    "mbpp": ("google-research-datasets/mbpp", "full", "test"),
}
"""Data set, configuration and split on the hub."""


@dataclass(frozen=True)
class Problem:
    """A prompt, and what judges its answer: a number for GSM8K, code to be run for the others.

    Attributes:
        benchmark: where it is from.
        name: its number or identifier there.
        prompt: what the model is asked.
        reference: the right number, or tests.
        start: code before the answer (HumanEval), or empty.
    """

    benchmark: str
    name: str
    prompt: str
    reference: str
    start: str = ""


def gsm8k_problem(row: Mapping[str, Any], number: int) -> Problem:
    """From `question` and `answer`, whose last line is `#### <number>`."""
    prompt = f"{row['question'].strip()}\nThink step by step. End with a line `#### ` and the number."
    return Problem("gsm8k", str(number), prompt, str(final_number(row["answer"])))


def humaneval_problem(row: Mapping[str, Any], number: int) -> Problem:
    """From `prompt`, `test` and `entry_point`."""
    prompt = f"Complete this Python function. Answer with the whole function in one code block.\n```python\n{row['prompt'].rstrip()}\n```"
    tests = f"{row['test']}\ncheck({row['entry_point']})\n"
    return Problem("humaneval", str(row.get("task_id", number)), prompt, tests, row["prompt"])


def mbpp_problem(row: Mapping[str, Any], number: int) -> Problem:
    """From `text` (or `prompt`) and `test_list`."""
    tests = "\n".join(row["test_list"])
    text = row.get("text") or row["prompt"]
    prompt = f"{text.strip()}\nAnswer with Python code in one code block. It must pass these tests:\n{tests}"
    return Problem("mbpp", str(row.get("task_id", number)), prompt, f"{row.get('test_setup_code') or ''}\n{tests}\n")


READERS = {"gsm8k": gsm8k_problem, "humaneval": humaneval_problem, "mbpp": mbpp_problem}


def final_number(text: str) -> float | None:
    """The number behind the last `####`, else the last number of the text; None if there is none.

    >>> final_number("8 - 5 = 3 left. #### 1,203"), final_number("so it is $7.50."), final_number("none")
    (1203.0, 7.5, None)
    """
    tail = text.rpartition("####")[2]
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", tail) or re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    if not found:
        return None
    return float((found[0] if "####" in text else found[-1]).replace(",", ""))


def code_of(text: str) -> str:
    r"""The first fenced block of an answer, else all of it.

    >>> code_of("Sure:\n```python\nx = 1\n```\nDone.")
    'x = 1'
    """
    found = re.search(r"```(?:python|py)?\s*\n(.*?)(?:\n```|\Z)", text, re.S)
    return (found[1] if found else text).strip("\n")


def is_right(problem: Problem, text: str, run: bool = False, seconds: float = 5.0) -> bool | None:
    """Whether an answer is right.

    Args:
        problem: what was asked.
        text: the answer.
        run: run generated code; without, answers to code problems are not judged.
        seconds: limit for running it.

    Returns:
        True or False, or None where it was not judged.
    """
    if problem.benchmark == "gsm8k":
        found = final_number(text)
        return found is not None and abs(found - float(problem.reference)) < 1e-6
    if not run:
        return None
    code = code_of(text)
    if problem.start and "def " not in code:  # the body alone
        code = problem.start + code
    elif problem.start:  # imports and helpers of the prompt
        code = f"{problem.start.rstrip()}\n    pass\n\n{code}"
    return run_code(f"{code}\n\n{problem.reference}", seconds).passed


def rows_of(benchmark: Benchmark, source: Path | None) -> Iterator[Mapping[str, Any]]:
    """Rows of a file, or of the hub.

    Raises:
        FileNotFoundError: if the file is missing.
        ValueError: if it is of another form.
        AssetMissing: without a file, if `datasets` is not installed.
    """
    if source is not None:
        if not source.is_file():
            raise FileNotFoundError(f"there is no {source}; give a JSON Lines or Parquet file of {benchmark}")
        if source.suffix == ".parquet":
            for row in read_parquet(source).to_dict("records"):
                yield {str(name): value for name, value in row.items()}
        elif source.suffix in (".jsonl", ".json"):
            yield from (json.loads(line) for line in source.read_text(encoding="utf-8").splitlines() if line.strip())
        else:
            raise ValueError(f"{source} must end in .jsonl or .parquet")
        return
    try:
        from datasets import load_dataset  # type: ignore[import-not-found]
    except ImportError:
        raise AssetMissing("datasets", "pip install datasets") from None
    name, configuration, split = HUB[benchmark]
    yield from load_dataset(name, configuration, split=split)


def problems_of(benchmark: Benchmark, rows: Iterable[Mapping[str, Any]], count: int | None = None) -> list[Problem]:
    """The first `count` problems.

    Raises:
        ValueError: if a row lacks a column, naming it.
    """
    found: list[Problem] = []
    for number, row in enumerate(rows):
        if count is not None and number >= count:
            break
        try:
            found.append(READERS[benchmark](row, number))
        except KeyError as missing:
            raise ValueError(f"row {number} of {benchmark} has no column {missing}; it has {', '.join(map(str, row))}") from None
    return found


class BenchmarkParams(Params):
    """Parameters of `prepare`.

    Attributes:
        benchmarks: how many problems of which; None: all.
        files: local files instead of the hub.
        calibration: problems of GSM8K, from the end of the list, that are kept for tuning.
    """

    benchmarks: Mapping[Benchmark, int | None] = {"gsm8k": None, "humaneval": None, "mbpp": None}
    files: Mapping[Benchmark, Path] = {}
    calibration: int = Field(64, ge=1)


def prepare(params: BenchmarkParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `problems.parquet` (split, benchmark, name, prompt, reference, start)."""
    import pandas as pd

    rows = []
    for benchmark, count in params.benchmarks.items():
        found = problems_of(benchmark, rows_of(benchmark, params.files.get(benchmark)))
        kept = found[: len(found) - params.calibration] if benchmark == "gsm8k" else found
        rows += [{"split": "test", **vars(problem)} for problem in kept[:count]]
        if benchmark == "gsm8k":
            rows += [{"split": "calibration", **vars(problem)} for problem in found[len(kept) :]]
    table = pd.DataFrame(rows)
    write_parquet(out / "problems.parquet", table)
    named = "problems." + table["split"] + "." + table.benchmark
    return {str(name): float(count) for name, count in named.value_counts(sort=False).items()}


def read_problems(folder: Path, split: str) -> list[Problem]:
    """What `prepare` wrote."""
    table = read_parquet(folder / "problems.parquet")
    columns = list(Problem.__dataclass_fields__)
    return [Problem(*row) for row in table.loc[table["split"] == split, columns].itertuples(index=False, name=None)]
