from __future__ import annotations

import pytest
from tiny_checkpoints import save_tokenizer

from tasks.masked_diffusion.pieces import Pieces, Tokenizer, load_text
from tasks.masked_diffusion.register_trace import DELIMITER, IDS, TOKENS


def test_the_vocabulary_of_register_traces(tmp_path):
    Pieces(TOKENS).save(tmp_path)
    text = load_text(tmp_path)
    assert text.encode(" S=3+1#\n") == [IDS[c] for c in "S=3+1#"]
    assert text.decode([IDS["3"], DELIMITER, IDS["<eos>"]]) == "3;"
    assert text.delimiters() == frozenset({DELIMITER})


def test_text_without_a_piece_is_refused():
    with pytest.raises(ValueError, match="has no piece for 'x' in 'ax'"):
        Pieces(["a"]).encode("ax")


def test_tokenizers_of_both_layouts(tmp_path):
    for split in (False, True):
        folder = tmp_path / str(split)
        save_tokenizer(folder, split=split)
        text = load_text(folder)
        assert isinstance(text, Tokenizer)
        assert text.chat is not split  # a template lies in the first
        tokens = text.encode("half as many")
        assert text.decode(tokens).endswith("half as many" if split else "half as many\nA:")
        assert text.delimiters() is not None
        assert text.decode([0]) == ""


def test_chat_can_be_switched_off(tmp_path):
    save_tokenizer(tmp_path)
    text = load_text(tmp_path, chat=False)
    assert text.decode(text.encode("half")) == "half"


def test_a_folder_without_text_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no vocabulary\.json, no tokenizer\.json, and no vocab\.json"):
        load_text(tmp_path)
