"""Tokens after which a block of text may end, from a tokenizer: those whose text ends in a delimiter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

CHARACTERS = {
    "punctuation": ".,;:!?",
    "cjk": "。，；：！？",
    "newline": "\n",
    "brackets": ")]}",
}
"""Sets of delimiters by name."""

PROSE = ("punctuation", "cjk", "newline", "brackets")
"""What the paper snaps to."""


def delimiter_ids(pieces: Sequence[str], sets: Iterable[str] = PROSE) -> frozenset[int]:
    r"""Ids of tokens whose text ends in a delimiter; blanks behind it do not count, a newline does.

    Args:
        pieces: text of every token, by id (`decoded_pieces` makes them from a tokenizer).
        sets: names of `CHARACTERS`.

    Raises:
        ValueError: for an unknown set.

    >>> sorted(delimiter_ids(["a", "b;", ". ", ")\n", ""], ["punctuation", "newline"]))
    [1, 2, 3]
    """
    names = list(sets)
    if unknown := [name for name in names if name not in CHARACTERS]:
        raise ValueError(f"unknown delimiter set {unknown[0]!r}; known: {', '.join(CHARACTERS)}")
    ends = tuple("".join(CHARACTERS[name] for name in names))
    return frozenset(i for i, piece in enumerate(pieces) if ends and piece.rstrip(" ").endswith(ends))


def decoded_pieces(tokenizer: object) -> list[str]:
    """Text of every token of a `transformers` tokenizer, special tokens as empty text."""
    specials = set(tokenizer.all_special_ids)  # type: ignore[attr-defined]
    size = len(tokenizer)  # type: ignore[arg-type]
    decode = tokenizer.decode  # type: ignore[attr-defined]
    return ["" if i in specials else decode([i]) for i in range(size)]
