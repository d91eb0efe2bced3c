"""Questions about 4 x 4 grids of real handwritten digits, with answers of one token.

An image is 32 x 32: sixteen 8 x 8 digits of scikit-learn's `load_digits` (1,797 scans of NIST forms, UCI), one per cell. Digits are split
into training and test images BEFORE grids are composed, so that no test grid holds a scan seen in training. Words are tokens: a question is
two of them (what, where), its answer one, and several questions about one image follow each other in a sequence,

    <bos> 16 x <image> what where answer what where answer ...

Kinds of question: `read` (digit in a cell), `largest` (digit in a row), `count` (how many d in the grid), `has` (is d in a column). Nothing
here knows about models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    import torch

Kind = Literal["read", "largest", "count", "has"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SIDE, PIXELS = 4, 8
CELLS = SIDE * SIDE
IGNORED = -100

_COLUMNS = "abcd"
VOCABULARY: tuple[str, ...] = (
    *("<pad>", "<bos>", "<image>"),
    *(str(number) for number in range(CELLS + 1)),
    *("yes", "no", "read", "largest", "grid"),
    *(f"{kind}_{digit}" for kind in ("count", "has") for digit in range(10)),
    *(f"{column}{row + 1}" for row in range(SIDE) for column in _COLUMNS),
    *(f"row_{row + 1}" for row in range(SIDE)),
    *(f"column_{column}" for column in _COLUMNS),
)
TOKEN: dict[str, int] = {word: index for index, word in enumerate(VOCABULARY)}
NUMBER, CELL = TOKEN["0"], TOKEN["a1"]
"""First token of the numbers 0...16 and of the cells a1...d4, row by row."""


@dataclass(frozen=True)
class Digits:
    """Scans to compose grids of: images (n, 8, 8) in [-1, 1], labels (n,)."""

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Grids:
    """Images with questions.

    Attributes:
        pixels: (n, 32, 32) in [-1, 1].
        digits: what is in each cell, row by row, (n, 16).
        kinds: index into `KINDS`, (n, turns).
        questions: tokens (what, where), (n, turns, 2).
        answers: tokens, (n, turns).
    """

    pixels: np.ndarray
    digits: np.ndarray
    kinds: np.ndarray
    questions: np.ndarray
    answers: np.ndarray

    def batch(self, rows: slice = slice(None)) -> dict[str, torch.Tensor]:
        """What a LLaVA model takes: `input_ids` (n, T), `pixel_values` (n, 3, 32, 32), and `labels` (n, T) of the answers alone."""
        import torch

        turns = np.concatenate([self.questions[rows], self.answers[rows][..., None]], axis=-1)
        count = len(turns)
        ids = np.empty((count, 1 + CELLS + turns[0].size), dtype=np.int64)
        ids[:, 0], ids[:, 1 : 1 + CELLS], ids[:, 1 + CELLS :] = TOKEN["<bos>"], TOKEN["<image>"], turns.reshape(count, -1)
        labels = np.full_like(ids, IGNORED)
        labels[:, 1 + CELLS + 2 :: 3] = self.answers[rows]
        pixels = torch.from_numpy(self.pixels[rows])[:, None].expand(-1, 3, -1, -1).contiguous()
        return {"input_ids": torch.from_numpy(ids), "pixel_values": pixels, "labels": torch.from_numpy(labels)}


def split_digits(seed: int, train_share: float = 0.8) -> tuple[Digits, Digits]:
    """Training and test scans, disjoint.

    Raises:
        ValueError: if a share leaves one of them empty.

    >>> train, test = split_digits(0)
    >>> len(train.labels), len(test.labels)
    (1437, 360)
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(seed).permutation(len(data.target))
    cut = int(train_share * len(order))
    if not 0 < cut < len(order):
        raise ValueError(f"train_share must leave training and test scans of {len(order)}, got {train_share}")
    images = (data.images / 8 - 1).astype(np.float32)
    train, test = (Digits(images[part], data.target[part]) for part in (order[:cut], order[cut:]))
    return train, test


def draw_grids(digits: Digits, count: int, turns: int, kinds: Sequence[Kind], rng: np.random.Generator) -> Grids:
    """Random grids with random questions; half of the `has` questions ask for a digit that is there.

    Args:
        digits: scans to draw from, with replacement.
        count: images.
        turns: questions per image.
        kinds: what may be asked, equally often.
        rng: all randomness.

    Raises:
        ValueError: for no or unknown kinds, or fewer than one image or question.

    >>> train, _ = split_digits(0)
    >>> grids = draw_grids(train, 2, 3, ["read"], np.random.default_rng(0))
    >>> grids.pixels.shape, grids.questions.shape, spoken(grids, 0)
    ((2, 32, 32), (2, 3, 2), ['read b1 4', 'read b4 0', 'read b1 4'])
    """
    if not kinds or (unknown := set(kinds) - set(KINDS)):
        raise ValueError(f"kinds of question must be some of {', '.join(KINDS)}, got {list(kinds) if not kinds else sorted(unknown)}")
    if count < 1 or turns < 1:
        raise ValueError(f"need at least one image and one question, got {count} and {turns}")
    chosen = rng.integers(0, len(digits.labels), (count, CELLS))
    values = digits.labels[chosen]
    cells = digits.images[chosen].reshape(count, SIDE, SIDE, PIXELS, PIXELS)
    pixels = cells.transpose(0, 1, 3, 2, 4).reshape(count, SIDE * PIXELS, SIDE * PIXELS)
    asked = np.array([KINDS.index(kind) for kind in kinds])[rng.integers(0, len(kinds), (count, turns))]
    questions, answers = _asked(values.reshape(count, SIDE, SIDE), asked, rng)
    return Grids(np.ascontiguousarray(pixels), values, asked, questions, answers)


def _asked(values: np.ndarray, kinds: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Question and answer tokens for digits (n, 4, 4) and kinds (n, turns)."""
    image = np.arange(len(values))[:, None]
    row, column = rng.integers(0, SIDE, kinds.shape), rng.integers(0, SIDE, kinds.shape)
    there = values[image, rng.integers(0, SIDE, kinds.shape), column]
    digit = rng.integers(0, 10, kinds.shape)
    digit = np.where((kinds == KINDS.index("has")) & (rng.random(kinds.shape) < 0.5), there, digit)
    found = (values[image, :, column] == digit[..., None]).any(-1)
    makers = {
        "read": (TOKEN["read"] + 0 * digit, CELL + SIDE * row + column, NUMBER + values[image, row, column]),
        "largest": (TOKEN["largest"] + 0 * digit, TOKEN["row_1"] + row, NUMBER + values[image, row].max(-1)),
        "count": (
            TOKEN["count_0"] + digit,
            TOKEN["grid"] + 0 * digit,
            NUMBER + (values[:, None] == digit[..., None, None]).sum((2, 3)),
        ),
        "has": (TOKEN["has_0"] + digit, TOKEN["column_a"] + column, np.where(found, TOKEN["yes"], TOKEN["no"])),
    }
    is_kind = [kinds == KINDS.index(kind) for kind in KINDS]
    what, where, answer = (np.select(is_kind, [makers[kind][part] for kind in KINDS]) for part in range(3))
    return np.stack([what, where], axis=-1), answer


def spoken(grids: Grids, image: int) -> list[str]:
    """Questions and answers about one image, in words."""
    turns = np.concatenate([grids.questions[image], grids.answers[image][:, None]], axis=1)
    return [" ".join(VOCABULARY[token] for token in turn) for turn in turns]
