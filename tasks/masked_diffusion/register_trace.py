"""The task "register trace": a short programme of register operations, and after each of them the register's value.

The prompt is `S`, then an operation and a digit for every step, then `#`; the answer has a digit and `;` for every step. `=` sets the
register, `+`, `-` and `*` act on it modulo m. Every answer can be checked exactly. Values behind a `=` can be read at once,
the rest needs the value before it: that is what tells schedulers of parallel decoding apart. Prompt and answer have the same
stride of two tokens, without which a small model does not learn to copy.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field, model_validator

from tasks.common.formats import write_parquet
from tasks.common.node import Inputs, Log, Metrics, Params

TOKENS = (*"0123456789", *"=+-*", "S", "#", ";", "<eos>", "<mask>", "<pad>")
"""The vocabulary; a token's id is its place."""

IDS = {token: place for place, token in enumerate(TOKENS)}
MASK, EOS, PAD, DELIMITER = IDS["<mask>"], IDS["<eos>"], IDS["<pad>"], IDS[";"]
RESET = "="


class TraceTask(Params):
    """The law of programmes.

    Attributes:
        steps: K, the longest programme; prompts have 2 K + 2 tokens, answers 2 K.
        fewest: the shortest; drawn uniformly from fewest..steps. A shorter prompt is padded behind `#`, a shorter answer by `<eos>`.
        modulus: of the register, 2 to 10.
        operations: which of `+`, `-`, `*` occur beside `=`.
        reset: probability of `=` from the second step on; the first is always `=`.
    """

    steps: int = Field(12, ge=1)
    fewest: int | None = Field(None, ge=1)
    modulus: int = Field(5, ge=2, le=10)
    operations: str = Field("+-", pattern=r"^[+*-]+$")
    reset: float = Field(0.4, ge=0, le=1)

    @model_validator(mode="after")
    def _fewest_fits(self) -> TraceTask:
        if self.fewest is not None and self.fewest > self.steps:
            raise ValueError(f"fewest must lie in [1, {self.steps}], got {self.fewest}")
        return self

    @property
    def prompt_length(self) -> int:
        """Tokens of every prompt, 2 K + 2."""
        return 2 * self.steps + 2

    @property
    def answer_length(self) -> int:
        """Tokens of every answer, N = 2 K."""
        return 2 * self.steps


def draw_programs(task: TraceTask, count: int, rng: np.random.Generator, operand: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Random programmes and their traces.

    Args:
        task: their law.
        count: how many, B.
        rng: randomness.
        operand: digits behind `+`, `-` and `*` are below it; None: below the modulus. Smaller ones are easier to learn first.

    Returns:
        prompts (B, 2 K + 2) and answers (B, 2 K), token ids as int64.

    >>> prompts, answers = draw_programs(TraceTask(steps=2, reset=0.0), 1, np.random.default_rng(3))
    >>> "".join(TOKENS[t] for t in prompts[0]), "".join(TOKENS[t] for t in answers[0])
    ('S=4+2#', '4;1;')
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    kinds = np.array([IDS[operation] for operation in (*task.operations, RESET)])
    operations = kinds[rng.integers(len(task.operations), size=(count, task.steps))]  # (B, K)
    operations[rng.random((count, task.steps)) < task.reset] = IDS[RESET]
    operations[:, 0] = IDS[RESET]
    digits = rng.integers(task.modulus, size=(count, task.steps))
    if operand is not None:
        digits = np.where(operations == IDS[RESET], digits, digits % operand)
    lengths = rng.integers(task.fewest or task.steps, task.steps + 1, size=count)
    values = run_programs(operations, digits, task.modulus)

    prompts = np.full((count, task.prompt_length), PAD)
    answers = np.full((count, task.answer_length), EOS)
    prompts[:, 0] = IDS["S"]
    prompts[:, 1:-1:2], prompts[:, 2:-1:2] = operations, digits
    answers[:, ::2], answers[:, 1::2] = values, DELIMITER
    place = np.arange(task.answer_length)
    prompts[:, 1:-1][place >= 2 * lengths[:, None]] = PAD
    answers[place >= 2 * lengths[:, None]] = EOS
    prompts[np.arange(count), 1 + 2 * lengths] = IDS["#"]
    return prompts, answers


def run_programs(operations: np.ndarray, digits: np.ndarray, modulus: int) -> np.ndarray:
    """The register's value after every step, (B, K), of operations (token ids) and digits (B, K)."""
    register = np.zeros(len(digits), dtype=digits.dtype)
    values = np.empty_like(digits)
    for step in range(digits.shape[1]):
        operation, digit = operations[:, step], digits[:, step]
        register = np.select(
            [operation == IDS[RESET], operation == IDS["+"], operation == IDS["-"]],
            [digit, register + digit, register - digit],
            register * digit,
        )
        register %= modulus
        values[:, step] = register
    return values


def correct_answer(prompt: np.ndarray, modulus: int) -> list[int]:
    """The answer to one prompt (2 K + 2,), without `<eos>`: a reader of the text that shares nothing with how it was drawn.

    Raises:
        ValueError: if the prompt is no programme.

    >>> "".join(TOKENS[t] for t in correct_answer(np.array([IDS[c] for c in "S=4+3*2#"]), 5))
    '4;2;4;'
    """
    text = [TOKENS[token] for token in prompt]
    if text[0] != "S" or "#" not in text:
        raise ValueError(f"a prompt starts with S and ends with #, got {''.join(text)!r}")
    steps = text[1 : text.index("#")]
    value, answer = 0, []
    for operation, digit in zip(steps[::2], steps[1::2], strict=True):
        match operation:
            case "=":
                value = int(digit) % modulus
            case "+":
                value = (value + int(digit)) % modulus
            case "-":
                value = (value - int(digit)) % modulus
            case "*":
                value = value * int(digit) % modulus
            case _:
                raise ValueError(f"{operation!r} is no operation in {''.join(text)!r}")
        answer += [IDS[str(value)], DELIMITER]
    return answer


class ProgramParams(Params):
    """Parameters of `prepare`.

    Attributes:
        task: the law of programmes.
        seeds: independent repetitions; each has programmes, and later a model, of its own.
        test: programmes per repetition on which schedulers are compared.
        calibration: others on which they are tuned.
    """

    task: TraceTask = TraceTask()
    seeds: int = Field(3, ge=1)
    test: int = Field(256, ge=1)
    calibration: int = Field(64, ge=1)


def prepare(params: ProgramParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `programs.parquet` (seed, split, prompt, answer) and `task.json`; no programme is in two splits or twice in one."""
    import pandas as pd

    rows = []
    for seed in range(params.seeds):
        prompts, answers = _distinct(params.task, params.test + params.calibration, np.random.default_rng([seed, 1]))
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            split = "test" if number < params.test else "calibration"
            rows.append({"seed": seed, "split": split, "prompt": prompt, "answer": answer})
    table = pd.DataFrame(rows)
    write_parquet(out / "programs.parquet", table)
    (out / "task.json").write_text(params.task.model_dump_json() + "\n")
    resets = np.mean([(np.asarray(prompt) == IDS[RESET]).sum() / params.task.steps for prompt in table.prompt])
    counts = table.split.value_counts()
    return {
        "programs.test.trace": float(counts["test"]),
        "programs.calibration.trace": float(counts["calibration"]),
        "programs.reset_share.trace": float(resets),
    }


def read_programs(folder: Path, seed: int, split: str, count: int | None = None) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and answers of one repetition and split, the first `count` of them."""
    from tasks.common.formats import read_parquet

    table = read_parquet(folder / "programs.parquet")
    table = table[(table.seed == seed) & (table.split == split)]
    table = table if count is None else table.head(count)
    return [list(map(int, p)) for p in table.prompt], [list(map(int, a)) for a in table.answer]


def read_task(folder: Path) -> TraceTask:
    """The law that `prepare` used."""
    return TraceTask.model_validate_json((folder / "task.json").read_text())


def _distinct(task: TraceTask, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    prompts, answers = draw_programs(task, 2 * count, rng)
    _, kept = np.unique(prompts, axis=0, return_index=True)
    kept = np.sort(kept)[:count]
    if len(kept) < count:
        raise ValueError(f"{count} different programmes were asked for, {len(kept)} found; take longer ones")
    return prompts[kept], answers[kept]
