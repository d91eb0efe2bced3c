from __future__ import annotations

import pytest
from tiny_checkpoints import save_tokenizer

from tasks.masked_diffusion.delimiters import CHARACTERS, decoded_pieces, delimiter_ids


def test_tokens_that_end_in_a_delimiter():
    pieces = ["a", "a.", ".a", "b, ", "\n", "x\n", "。", "f(", "f()", "", " "]
    assert sorted(delimiter_ids(pieces)) == [1, 3, 4, 5, 6, 8]
    assert sorted(delimiter_ids(pieces, ["newline"])) == [4, 5]
    assert delimiter_ids(pieces, []) == frozenset()


def test_every_set_has_its_characters():
    for name, characters in CHARACTERS.items():
        assert delimiter_ids(list(characters), [name]) == frozenset(range(len(characters)))


def test_an_unknown_set_is_refused():
    with pytest.raises(ValueError, match="unknown delimiter set 'commas'; known: punctuation"):
        delimiter_ids(["a"], ["commas"])


def test_from_a_tokenizer(tmp_path):
    from transformers import PreTrainedTokenizerFast

    size = save_tokenizer(tmp_path)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    pieces = decoded_pieces(tokenizer)
    assert len(pieces) == size
    assert pieces[tokenizer.eos_token_id] == ""
    ends = delimiter_ids(pieces)
    assert set(tokenizer("; : !")["input_ids"]) & ends
    assert all(pieces[i].rstrip(" ")[-1] in ".,;:!?\n)]}。，；：！？" for i in ends)
