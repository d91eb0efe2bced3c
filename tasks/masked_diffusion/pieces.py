"""Text to token ids and back: a vocabulary of pieces in a file, or the tokenizer of a published model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tasks.common.formats import read_json, write_json
from tasks.masked_diffusion.delimiters import PROSE, decoded_pieces, delimiter_ids

FILE = "vocabulary.json"


class Text(Protocol):
    """What decoding needs of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of an answer, special tokens left out."""
        ...

    def delimiters(self, sets: Sequence[str] = PROSE) -> frozenset[int]:
        """Ids of tokens after which a block may end."""
        ...


class Pieces:
    """A vocabulary of pieces; the longest piece that fits is taken first, pieces in <> are special.

    Args:
        pieces: by id.

    Raises:
        ValueError: by `encode`, for text that no piece covers.

    >>> pieces = Pieces(["a", "b", "ab", ";", "<mask>"])
    >>> pieces.encode("aba;"), pieces.decode([2, 4, 3]), sorted(pieces.delimiters())
    ([2, 0, 3], 'ab;', [3])
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = list(pieces)
        self._ids = {piece: i for i, piece in enumerate(self.pieces)}
        self._special = {i for i, piece in enumerate(self.pieces) if len(piece) > 2 and piece.startswith("<") and piece.endswith(">")}
        self._longest = max(map(len, self.pieces), default=1)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt; blanks around it are dropped."""
        text, found, place = text.strip(), [], 0
        while place < len(text):
            sizes = range(min(self._longest, len(text) - place), 0, -1)
            size = next((size for size in sizes if text[place : place + size] in self._ids), 0)
            if not size:
                raise ValueError(f"the vocabulary has no piece for {text[place]!r} in {text!r}; it knows {' '.join(self.pieces)}")
            found.append(self._ids[text[place : place + size]])
            place += size
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of an answer, special pieces left out."""
        return "".join(self.pieces[token] for token in tokens if token not in self._special)

    def delimiters(self, sets: Sequence[str] = PROSE) -> frozenset[int]:
        """Ids of pieces after which a block may end."""
        return delimiter_ids(["" if i in self._special else piece for i, piece in enumerate(self.pieces)], sets)

    def save(self, folder: Path) -> None:
        """Write `vocabulary.json`."""
        write_json(folder / FILE, self.pieces)


class Tokenizer:
    """A tokenizer of `transformers`, with its chat template where it has one.

    Args:
        tokenizer: a `PreTrainedTokenizerFast` or its like.
        chat: prompts are one turn of a user, as instruction-tuned models expect.
    """

    def __init__(self, tokenizer: Any, chat: bool = True) -> None:
        self.tokenizer = tokenizer
        self.chat = chat and bool(getattr(tokenizer, "chat_template", None))
        self._pieces: list[str] | None = None

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt."""
        if self.chat:
            turn = [{"role": "user", "content": text}]
            text = self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
        return list(self.tokenizer(text, add_special_tokens=not self.chat)["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of an answer, special tokens left out."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def delimiters(self, sets: Sequence[str] = PROSE) -> frozenset[int]:
        """Ids of tokens after which a block may end."""
        if self._pieces is None:
            self._pieces = decoded_pieces(self.tokenizer)
        return delimiter_ids(self._pieces, sets)


def load_text(folder: Path, chat: bool = True) -> Text:
    """The vocabulary or tokenizer of a model folder; no code from the folder is run.

    Raises:
        FileNotFoundError: if it has none.
    """
    if (folder / FILE).is_file():
        return Pieces(read_json(folder / FILE))
    if (folder / "tokenizer.json").is_file():
        from transformers import PreTrainedTokenizerFast

        return Tokenizer(PreTrainedTokenizerFast.from_pretrained(folder), chat)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():  # as Dream's folder
        from transformers import Qwen2Tokenizer

        return Tokenizer(Qwen2Tokenizer.from_pretrained(folder), chat)
    raise FileNotFoundError(f"{folder} has no {FILE}, no tokenizer.json, and no vocab.json with merges.txt")
