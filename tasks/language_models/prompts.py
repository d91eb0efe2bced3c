"""Long-context prompts in three parts: a context, a question with the beginning of the answer, and the answer.

A context may be read densely before the question and the answer meet sparse attention; where a prompt is divided therefore belongs to
the data. Token ids are stored, so that later stages need no tokenizer and every stage divides alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.common.formats import read_parquet, write_parquet

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        task: name of the task, for example `niah_single`.
        seed: repetition that it belongs to.
        context: token ids of the chat template's beginning and the long text.
        question: token ids of the question, the template's end, and the beginning of the answer.
        answer: token ids of the answer that is expected, without end-of-text.
        references: texts that a right answer contains.
    """

    task: str
    seed: int
    context: tuple[int, ...]
    question: tuple[int, ...]
    answer: tuple[int, ...]
    references: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        """Tokens of all three parts."""
        return len(self.context) + len(self.question) + len(self.answer)

    def context_ids(self, device: str = "cpu") -> Tensor:
        """(1, n) token ids of the context."""
        return _ids(self.context, device)

    def following_ids(self, device: str = "cpu") -> Tensor:
        """(1, R) token ids of question and answer without the answer's last token, which predicts nothing that is known."""
        return _ids(self.question + self.answer[:-1], device)

    def answer_ids(self, device: str = "cpu") -> Tensor:
        """(A,) token ids of the answer; the last A rows of a run over `following_ids` predict them."""
        return _ids(self.answer, device)[0]


def write_prompts(path: Path, prompts: Iterable[Prompt]) -> None:
    """Write prompts as Parquet, a row each."""
    import pandas as pd

    rows = [
        {
            "task": p.task,
            "seed": p.seed,
            "context": list(p.context),
            "question": list(p.question),
            "answer": list(p.answer),
            "references": list(p.references),
        }
        for p in prompts
    ]
    write_parquet(path, pd.DataFrame(rows, columns=["task", "seed", "context", "question", "answer", "references"]))


def read_prompts(path: Path) -> list[Prompt]:
    """What `write_prompts` wrote, in order."""
    rows: Any = read_parquet(path).itertuples()
    return [
        Prompt(
            str(row.task),
            int(row.seed),
            tuple(int(i) for i in row.context),
            tuple(int(i) for i in row.question),
            tuple(int(i) for i in row.answer),
            tuple(str(text) for text in row.references),
        )
        for row in rows
    ]


def _ids(tokens: tuple[int, ...], device: str) -> Tensor:
    import torch

    return torch.tensor([tokens], dtype=torch.long, device=device)
