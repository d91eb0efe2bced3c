"""Node that draws the sequences: calibration, held-out calibration and evaluation text of every seed.

A sequence is the beginning of one file's docstrings, so that every sequence is other prose. Calibration and evaluation never share a file
(`tasks.language_models.texts`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from tasks.common.node import Inputs, Log, Metrics, Params
from tasks.language_models.texts import Side, documents

if TYPE_CHECKING:
    import torch

FILE = "sequences.safetensors"
Part = Literal["calibration", "held_out", "evaluation"]
PARTS: tuple[Part, ...] = ("calibration", "held_out", "evaluation")


class PrepareParams(Params):
    """How much text.

    Attributes:
        seeds: repetitions, each with text of its own.
        calibration: sequences from which statistics are taken.
        held_out: calibration sequences on which an iterate is chosen.
        evaluation: sequences on which models are compared.
        tokens: length of a sequence.
    """

    seeds: int = Field(3, ge=1)
    calibration: int = Field(24, ge=1)
    held_out: int = Field(8, ge=1)
    evaluation: int = Field(16, ge=1)
    tokens: int = Field(96, ge=8)


def prepare(params: PrepareParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: `sequences.safetensors` with `<seed>.<part>`, (n, T) token ids; needs the language model's folder for its tokenizer.

    Metrics: `texts.sequences`, `texts.tokens`, and `texts.fingerprint`, the first 32 bits of the digest of all ids.
    """
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(inputs.file("warmstart", "model"))
    found: dict[str, torch.Tensor] = {}
    for seed in log.progress(range(params.seeds), desc="texts"):
        both = beginnings(tokenizer, params.calibration + params.held_out, params.tokens, seed, "calibration")
        found[f"{seed}.calibration"] = both[: params.calibration].clone()
        found[f"{seed}.held_out"] = both[params.calibration :].clone()
        found[f"{seed}.evaluation"] = beginnings(tokenizer, params.evaluation, params.tokens, seed, "evaluation")
    save_file(found, out / FILE)
    digest = hashlib.sha256(b"".join(found[name].numpy().tobytes() for name in sorted(found))).hexdigest()
    return {
        "texts.sequences": float(sum(len(ids) for ids in found.values())),
        "texts.tokens": float(sum(ids.numel() for ids in found.values())),
        "texts.fingerprint": float(int(digest[:8], 16)),
    }


def beginnings(tokenizer: Any, count: int, length: int, seed: int, side: Side) -> torch.Tensor:
    """The first `length` tokens of `count` files' docstrings, (count, length), in the order of the seed.

    Raises:
        ValueError: if there are not as many files with as much text.
    """
    import torch

    found: list[Sequence[int]] = []
    for text in documents(seed, side):
        # A token is never more than a few dozen characters: the rest of a long file need not be read.
        ids = tokenizer(text[: 24 * length], add_special_tokens=False, verbose=False).input_ids
        if len(ids) >= length:
            found.append(ids[:length])
        if len(found) == count:
            return torch.tensor(found)
    raise ValueError(f"only {len(found)} files for {side} hold {length} tokens of docstrings, not {count}; ask for fewer or shorter ones")


def sequences(folder: Path, seed: int, part: Part) -> torch.Tensor:
    """Token ids (n, T) of one seed.

    Raises:
        KeyError: for a seed that was not prepared.
    """
    from safetensors import safe_open

    with safe_open(folder / FILE, "pt") as file:
        if f"{seed}.{part}" not in file.keys():  # noqa: SIM118, the file is no mapping
            raise KeyError(f"no {part} sequences of seed {seed} in {folder / FILE}; raise `seeds` of the stage that prepares them")
        found: torch.Tensor = file.get_tensor(f"{seed}.{part}")
    return found
