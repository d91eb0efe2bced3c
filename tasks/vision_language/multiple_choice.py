"""Multiple-choice questions about images: ScienceQA and SEED-Bench in their published layout, prompts, and answers as letters.

Both sets are Parquet files on the Hugging Face hub (`derek-thomas/ScienceQA`, `lmms-lab/SEED-Bench`); a local folder with the same files
does as well. An answer is a letter; accuracy is the share of questions whose generated letter is right.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.common.assets import AssetMissing

if TYPE_CHECKING:
    import torch

LETTERS = "ABCDEFGHIJ"
INSTRUCTION = "Answer with the option's letter from the given choices directly."


@dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        image: encoded bytes (PNG or JPEG).
        text: the question, with its hint where there is one.
        choices: two to ten.
        answer: index of the right choice.
    """

    image: bytes
    text: str
    choices: tuple[str, ...]
    answer: int

    def __post_init__(self) -> None:
        if not 2 <= len(self.choices) <= len(LETTERS) or not 0 <= self.answer < len(self.choices):
            raise ValueError(f"a question needs 2 to {len(LETTERS)} choices and an answer among them, got {self.choices} and {self.answer}")

    @property
    def letter(self) -> str:
        """Letter of the right choice."""
        return LETTERS[self.answer]

    def prompt(self) -> str:
        """What the model is asked.

        >>> print(Question(b"", "Which is red?", ("the apple", "the sky"), 0).prompt())
        Which is red?
        A. the apple
        B. the sky
        Answer with the option's letter from the given choices directly.
        """
        options = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, self.choices, strict=False)]
        return "\n".join([self.text, *options, INSTRUCTION])


def letter_of(text: str, choices: int) -> int | None:
    """Index of the choice that an answer names, None if it names none.

    Letters beyond the choices are words: "I think B" is B.

    >>> letter_of("B", 4), letter_of(" (c).", 4), letter_of("The answer is D", 4), letter_of("E", 4)
    (1, 2, 3, None)
    """
    upper = LETTERS[:choices]
    found = re.match(rf"\s*\(?([{upper}{upper.lower()}])\)?(?![A-Za-z])", text) or re.search(rf"(?<![A-Za-z])([{upper}])(?![A-Za-z])", text)
    return LETTERS.index(found[1].upper()) if found else None


def parquet_files(source: str, split: str) -> list[Path]:
    """Parquet files of a split: in a local folder, or of a data set on the hub (its cache first).

    Raises:
        AssetMissing: if there are none.
    """
    folder = Path(source).expanduser()
    command = f"huggingface-cli download --repo-type dataset {source}"
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(source, repo_type="dataset", allow_patterns=[f"*{split}-*.parquet"]))
        except Exception as error:
            raise AssetMissing(source, command, f"cannot be had ({type(error).__name__})") from error
    files = sorted(folder.rglob(f"{split}-*.parquet"))
    if not files:
        raise AssetMissing(source, command, f"holds no {split}-*.parquet in {folder}")
    return files


def science_qa(source: str, split: str = "test") -> Iterator[Question]:
    """ScienceQA's questions that have an image (2,017 in the test split): columns image, question, choices, answer, hint.

    Raises:
        AssetMissing: if the files are not there.
        ValueError: if they lack a column.
    """
    for row in _rows(source, split, ("image", "question", "choices", "answer", "hint")):
        if row["image"] is not None:
            text = f"Context: {row['hint']}\n{row['question']}" if row["hint"] else row["question"]
            yield Question(_bytes(row["image"]), text, tuple(row["choices"]), int(row["answer"]))


def seed_bench(source: str, split: str = "test") -> Iterator[Question]:
    """SEED-Bench's questions about a single image (14,232): columns image, question, choice_a to choice_d, answer, data_type.

    Raises:
        AssetMissing: if the files are not there.
        ValueError: if they lack a column.
    """
    names = tuple(f"choice_{letter}" for letter in "abcd")
    for row in _rows(source, split, ("image", "question", *names, "answer", "data_type")):
        if row["data_type"] == "image":
            image = row["image"][0] if isinstance(row["image"], list) else row["image"]
            yield Question(_bytes(image), row["question"], tuple(row[name] for name in names), LETTERS.index(row["answer"].strip().upper()))


READERS = {"scienceqa": science_qa, "seed_bench": seed_bench}


def _rows(source: str, split: str, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    for path in parquet_files(source, split):
        with pq.ParquetFile(path) as file:
            lacking = sorted(set(columns) - set(file.schema_arrow.names))
            if lacking:
                raise ValueError(f"{path} lacks the columns {', '.join(lacking)} (it has {', '.join(file.schema_arrow.names)})")
            for batch in file.iter_batches(64, columns=list(columns)):
                yield from batch.to_pylist()


def _bytes(image: dict[str, Any]) -> bytes:
    if not image.get("bytes"):
        raise ValueError(f"an image is stored as a path alone ({image.get('path')!r}); use the files in which images are embedded")
    found: bytes = image["bytes"]
    return found


class Asker:
    """Questions as inputs of a vision-language model.

    Args:
        processor: of the model (`AutoProcessor`), with a chat template.
        device: of the model.
        dtype: of pixel values.
    """

    def __init__(self, processor: Any, device: str, dtype: torch.dtype) -> None:
        self.processor, self.device, self.dtype = processor, device, dtype

    def inputs(self, question: Question, answer: str = "") -> dict[str, torch.Tensor]:
        """One prompt with its image, (1, T); the answer's text follows, if any."""
        from PIL import Image

        content = [{"type": "image"}, {"type": "text", "text": question.prompt()}]
        text = self.processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True) + answer
        with Image.open(io.BytesIO(question.image)) as image:
            found = self.processor(images=[image.convert("RGB")], text=[text], return_tensors="pt")
        return {name: value.to(self.device, self.dtype if value.is_floating_point() else None) for name, value in found.items()}

    def sample(self, question: Question) -> dict[str, torch.Tensor]:
        """A calibration sample: prompt, image and right letter, with labels (-100 before the letter) for the answer alone.

        Raises:
            ValueError: if the letter adds no token.
        """
        prompt = self.inputs(question)["input_ids"].shape[1]
        found = self.inputs(question, f" {question.letter}")
        if found["input_ids"].shape[1] <= prompt:
            raise ValueError(f"the answer {question.letter!r} adds no token to the prompt; the tokenizer or the template swallows it")
        labels = found["input_ids"].clone()
        labels[:, :prompt] = -100
        return {**found, "labels": labels}

    def answer(self, model: Any, question: Question, new_tokens: int = 4) -> int | None:
        """Index of the choice that the model names, greedily."""
        import torch

        inputs = self.inputs(question)
        with torch.inference_mode():
            found = model.generate(**inputs, max_new_tokens=new_tokens, do_sample=False)
        text = self.processor.tokenizer.decode(found[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return letter_of(text, len(question.choices))


def hits(model: Any, asker: Asker, questions: list[Question]) -> np.ndarray:
    """1 for every question that is answered rightly, (n,)."""
    return np.array([float(asker.answer(model, question) == question.answer) for question in questions])
