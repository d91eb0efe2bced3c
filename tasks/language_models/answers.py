"""Score the text of an answer by the rule of its task."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tasks.language_models.ruler_tasks import string_match_all, string_match_part

COMPETITIONS = ("aime",)
"""Prefixes of tasks whose answer is one whole number, boxed or the last one of the text."""


def score_answer(task: str, text: str, references: Sequence[str]) -> float:
    r"""Score in [0, 1]: RULER's rules (any reference for `qa_*`, share of the references found otherwise), the number for competitions.

    Example:
        >>> score_answer("qa_1", "It was in Paris.", ["Paris", "London"]), score_answer("vt", "a b", ["a", "c"])
        (1.0, 0.5)
        >>> score_answer("aime2024", r"so the sum is \boxed{073}.", ["73"])
        1.0
    """
    if task.startswith(COMPETITIONS):
        return float(final_number(text) == final_number(references[0]))
    return string_match_part(text, references) if task.startswith("qa_") else string_match_all(text, references)


def final_number(text: str) -> int | None:
    r"""The whole number in the last ``\boxed{...}``, else the last one of the text; `None` without any."""
    boxed = re.findall(r"\\boxed\{\s*(\d+)\s*\}", text)
    found = boxed or re.findall(r"\d+", text.replace(",", ""))
    return int(found[-1]) if found else None
