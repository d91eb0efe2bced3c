"""Stage that writes synthetic long-context prompts of a wanted length in tokens, as a chat whose answer has begun."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, field_validator

from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.language_models.pretrained import load_tokenizer
from tasks.language_models.prompts import Prompt, write_prompts
from tasks.language_models.ruler_tasks import TASKS, draw

DIVIDER = "<<<here the question begins>>>"


class PromptSetParams(Params):
    """One file of prompts.

    Attributes:
        tasks: how many prompts of each task there are for each seed.
        tokens: length of context and question, not exceeded and missed by less than one filler unit.
        seeds: repetitions, each with its own prompts.
        first_seed: the first of them; sets with other seeds share no prompt.
    """

    tasks: dict[str, int] = Field({"niah_single": 4, "niah_multikey_4": 4, "vt": 1, "fwe": 1, "kv_flat": 1})
    tokens: int = Field(1500, ge=128)
    seeds: int = Field(3, ge=1)
    first_seed: int = Field(0, ge=0)

    @field_validator("tasks")
    @classmethod
    def _known(cls, tasks: dict[str, int]) -> dict[str, int]:
        for task, count in tasks.items():
            if task not in TASKS:
                raise ValueError(f"tasks must be among {', '.join(TASKS)}, got {task!r}")
            if count < 1:
                raise ValueError(f"tasks.{task} must be at least 1, got {count}")
        if not tasks:
            raise ValueError("tasks must name at least one task, got none")
        return tasks


class RulerParams(Params):
    """Which prompts are made.

    Attributes:
        sets: by name; each becomes `<name>.parquet`.
        model: folder or model id whose tokenizer counts, in place of the folder of the need `warmstart`.
    """

    sets: dict[str, PromptSetParams] = Field(
        {
            "quality": PromptSetParams(),
            "long": PromptSetParams(tasks={"niah_multikey_4": 1, "niah_multikey_16": 1}, tokens=6000, seeds=3, first_seed=100),
            "calibration": PromptSetParams(tasks={"niah_single": 1, "niah_multikey_4": 1, "vt": 1, "fwe": 1}, seeds=1, first_seed=200),
        }
    )
    model: str = ""


def prepare(params: RulerParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: a file of prompts per set.

    Metrics, for each set: `prompts.count.<set>`, `prompts.tokens.<set>` (mean of context and question), `prompts.answer_tokens.<set>`
    and `prompts.fingerprint.<set>`, 32 bits of the digest of all token ids.
    """
    tokenizer = load_tokenizer(params.model or inputs["warmstart"] / "model")
    metrics: Metrics = {}
    for name, wanted in log.progress(params.sets.items(), total=len(params.sets), desc="prompt sets"):
        prompts = make_prompts(tokenizer, wanted)
        write_prompts(out / f"{name}.parquet", prompts)
        metrics[f"prompts.count.{name}"] = float(len(prompts))
        metrics[f"prompts.tokens.{name}"] = float(np.mean([len(p.context) + len(p.question) for p in prompts]))
        metrics[f"prompts.answer_tokens.{name}"] = float(np.mean([len(p.answer) for p in prompts]))
        metrics[f"prompts.fingerprint.{name}"] = fingerprint(prompts)
    return metrics


def make_prompts(tokenizer: Any, wanted: PromptSetParams) -> list[Prompt]:
    """The prompts of a set: seed by seed, task by task. Each is a function of its seed, task and number alone."""
    return [
        ruler_prompt(tokenizer, task, wanted.tokens, seed, number)
        for seed in range(wanted.first_seed, wanted.first_seed + wanted.seeds)
        for task, count in wanted.tasks.items()
        for number in range(count)
    ]


def ruler_prompt(tokenizer: Any, task: str, tokens: int, seed: int, number: int = 0) -> Prompt:
    """One prompt whose context and question have at most `tokens` tokens and as many as fit.

    Raises:
        ValueError: for an unknown task, or if not even the shortest text fits.
    """
    rng = np.random.default_rng([seed, zlib.crc32(task.encode()), number])
    question = draw(task, rng)

    def parts(units: int) -> tuple[list[int], list[int]]:
        return split_chat(tokenizer, question.text(units), question.question, question.prefix)

    units = largest(lambda u: sum(map(len, parts(u))) <= tokens, tokens)
    if units < 1:
        shortest = sum(map(len, parts(1)))
        raise ValueError(f"tokens must be at least {shortest} for task {task!r} with this tokenizer, got {tokens}")
    context, asked = parts(units)
    return Prompt(task, seed, tuple(context), tuple(asked), tuple(encode(tokenizer, question.answer)), question.references)


def split_chat(tokenizer: Any, text: str, question: str, prefix: str) -> tuple[list[int], list[int]]:
    """Token ids of a chat that stops in its answer, divided where the question begins: (context, question with the answer's prefix).

    The user's turn is the text, an empty line and the question, in the tokenizer's chat form; without one, plain lines.
    """
    if getattr(tokenizer, "chat_template", None):
        turn = [{"role": "user", "content": f"{text}\n\n{DIVIDER}{question}"}]
        chat = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        head, tail = chat.split(DIVIDER)
        return encode(tokenizer, head), encode(tokenizer, tail + prefix)
    return tokenizer(f"{text}\n\n", verbose=False).input_ids, encode(tokenizer, f"{question}\n{prefix}")


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text, nothing added."""
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    return ids


def largest(fits: Callable[[int], bool], limit: int) -> int:
    """The largest n in 0..limit for which `fits` holds, by bisection; 0 if it does not hold for 1.

    Example:
        >>> largest(lambda n: n * n <= 50, 100)
        7
    """
    low, high = 0, limit + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def fingerprint(prompts: list[Prompt]) -> float:
    """32 bits of the digest of all token ids."""
    digest = hashlib.sha256()
    for p in prompts:
        digest.update(np.asarray([*p.context, -1, *p.question, -1, *p.answer], dtype=np.int64).tobytes())
    return float(int(digest.hexdigest()[:8], 16))
